//! What is said when something is wrong: enough to read the failure, and to repeat it.
//!
//! Nothing here allocates: a forked child of a program with threads says it, and so does a process
//! that shares the memory, and even the thread-local storage, of another.

use crate::stress::content::Mismatch;
use std::fmt::{self, Write};

/// Why a program is not right.
#[derive(Clone, Debug)]
pub enum Wrong {
    Page {
        mapping: usize,
        page: usize,
        mismatch: Mismatch,
    },
    /// A guard that lets through who reads: what lies there.
    Guard {
        mapping: usize,
        page: usize,
        got: [u8; 8],
    },
    Call {
        what: &'static str,
        errno: i32,
    },
    /// A status as of `waitpid`, which is not that of a good end.
    Child {
        what: &'static str,
        status: i32,
    },
    Stack {
        depth: usize,
        got: u64,
        expected: u64,
    },
    /// Another process's memory, read from outside.
    Elsewhere {
        page: usize,
        mismatch: Mismatch,
    },
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Wrong::Page { mapping, page, mismatch } => write!(f, "mapping {mapping} page {page}: {mismatch}"),
            Wrong::Guard { mapping, page, got } => {
                write!(f, "mapping {mapping} page {page}: the guard can be read: {got:02x?}")
            }
            Wrong::Call { what, errno } => write!(f, "{what} failed: errno {errno}"),
            Wrong::Child { what, status } => write!(f, "{what} found wrong content or died: status {status:#x}"),
            Wrong::Stack { depth, got, expected } => {
                write!(f, "stack frame {depth}: expected {expected:#x}, got {got:#x}")
            }
            Wrong::Elsewhere { page, mismatch } => write!(f, "page {page} of another process: {mismatch}"),
        }
    }
}

impl Wrong {
    /// Says so, and ends the process.
    pub fn give_up(&self) -> ! {
        Text::of(format_args!("annex-shapes: WRONG: {self}\n")).say(libc::STDERR_FILENO);
        // SAFETY: ends this process without running anything else.
        unsafe { libc::_exit(1) }
    }
}

/// A text on the stack, written with one call. What does not fit is left out.
pub struct Text {
    bytes: [u8; 4096],
    len: usize,
}

impl Text {
    pub fn of(args: fmt::Arguments<'_>) -> Text {
        let mut text = Text { bytes: [0; 4096], len: 0 };
        // It can't fail: what does not fit is left out.
        let _ = text.write_fmt(args);
        text
    }

    /// Where each part begins, as C has it: each ends with a zero byte.
    pub fn parts(&self) -> impl Iterator<Item = *const libc::c_char> {
        self.bytes[..self.len].split_inclusive(|byte| *byte == 0).map(|part| part.as_ptr().cast())
    }

    pub fn say(&self, descriptor: i32) {
        // SAFETY: the text is ours. There is nobody to tell that it can't be written.
        unsafe { libc::write(descriptor, self.bytes.as_ptr().cast(), self.len) };
    }
}

impl Write for Text {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        let room = self.bytes.len() - 1 - self.len;
        let fits = s.len().min(room);
        self.bytes[self.len..self.len + fits].copy_from_slice(&s.as_bytes()[..fits]);
        self.len += fits;
        Ok(())
    }
}
