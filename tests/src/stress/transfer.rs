//! The kernel reads and writes the set's pages on the program's behalf: files, pipes, and O_DIRECT,
//! where the device itself does so.

use super::Trouble;
use super::board::Shared;
use super::content::{Content, Dice, PAGE};
use super::map;
use super::set::{Held, Set};
use std::cell::Cell;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::Ordering::Relaxed;

/// Pages moved by one step at most. A pipe takes 16 pages before its writer blocks.
const RUN: usize = 16;

/// One thread's scratch file, pipe and bounce buffer.
pub struct Transfer {
    file: File,
    direct: Option<File>,
    pipe: (File, File),
    /// Anonymous memory of ours, pageable like the set.
    bounce: NonNull<u8>,
    seed: u64,
    stamp: Cell<u64>,
}

// SAFETY: the bounce buffer is used by the owning thread only and lives as long as the process.
unsafe impl Send for Transfer {}

impl Transfer {
    pub fn new(directory: &Path, seed: u64, direct: bool, board: Shared) -> Result<Transfer, Trouble> {
        let path = directory.join(format!(".annex-stress-{}-{seed}", std::process::id()));
        let mut options = OpenOptions::new();
        options.read(true).write(true);
        let file = options
            .clone()
            .create(true)
            .truncate(true)
            .open(&path)
            .map_err(Trouble::call("creating the scratch file (is --dir writable?)"))?;
        let direct = if direct { open_direct(&mut options, &path, board)? } else { None };
        // The descriptors keep it; nothing is left behind however the run ends.
        std::fs::remove_file(&path).map_err(Trouble::call("removing the scratch file's name"))?;
        let (read, write): (OwnedFd, OwnedFd) =
            nix::unistd::pipe().map_err(|e| Trouble::Call { what: "pipe", source: e.into() })?;
        let bounce = map::anonymous(RUN * PAGE).map_err(Trouble::call("mmap of a buffer"))?;
        Ok(Transfer { file, direct, pipe: (read.into(), write.into()), bounce, seed, stamp: Cell::new(0) })
    }

    pub fn step(&mut self, set: &Set, dice: &mut Dice, board: Shared) -> Result<(), Trouble> {
        let Some(held) = set.hold_any(dice, RUN) else { return Ok(()) };
        match dice.below(3) {
            0 => self.out_of(&held, &self.file, board, "pwrite() out of it"),
            1 => self.fill_from(&held, &self.file, board, "pread() into it"),
            _ => self.through_pipe(&held, board),
        }
    }

    pub fn direct(&mut self, set: &Set, dice: &mut Dice, board: Shared) -> Result<(), Trouble> {
        let Some(file) = self.direct.as_ref() else { return Ok(()) };
        let Some(held) = set.hold_any(dice, RUN) else { return Ok(()) };
        if dice.one_in(2) {
            self.out_of(&held, file, board, "an O_DIRECT write out of it")
        } else {
            self.fill_from(&held, file, board, "an O_DIRECT read into it")
        }
    }

    /// Set → file; the file's copy must be what the set holds, and the set must still hold it.
    fn out_of(&self, held: &Held<'_>, file: &File, board: Shared, doing: &'static str) -> Result<(), Trouble> {
        let bytes = bytes_of(held.addr(0), held.len());
        file.write_all_at(bytes, 0).map_err(Trouble::call("pwrite"))?;
        let bounce = bytes_of_mut(self.bounce, held.len());
        file.read_exact_at(bounce, 0).map_err(Trouble::call("pread"))?;
        for i in 0..held.count {
            if let Some(content) = held.content(i) {
                self.check_bounce(content, i, held.first + i, doing)?;
            }
        }
        board.checked(held.check(doing)? + held.count);
        Ok(())
    }

    /// File → set.
    fn fill_from(&self, held: &Held<'_>, file: &File, board: Shared, doing: &'static str) -> Result<(), Trouble> {
        board.checked(held.check("a read")?);
        for i in 0..held.count {
            let content = held.renew(i);
            // SAFETY: the buffer has RUN pages, and `count` is at most RUN.
            unsafe { content.fill(map::page(self.bounce, i).as_ptr()) };
        }
        let bounce = bytes_of(self.bounce, held.len());
        file.write_all_at(bounce, 0).map_err(Trouble::call("pwrite"))?;
        let bytes = bytes_of_mut(held.addr(0), held.len());
        file.read_exact_at(bytes, 0).map_err(Trouble::call("pread"))?;
        board.checked(held.check(doing)?);
        self.scribble();
        Ok(())
    }

    /// Set → pipe → buffer, new content → pipe → set.
    fn through_pipe(&mut self, held: &Held<'_>, board: Shared) -> Result<(), Trouble> {
        let (read, write) = &mut self.pipe;
        write.write_all(bytes_of(held.addr(0), held.len())).map_err(Trouble::call("write to a pipe"))?;
        read.read_exact(bytes_of_mut(self.bounce, held.len())).map_err(Trouble::call("read from a pipe"))?;
        for i in 0..held.count {
            if let Some(content) = held.content(i) {
                self.check_bounce(content, i, held.first + i, "write() to a pipe")?;
            }
            let content = held.renew(i);
            // SAFETY: the buffer has RUN pages, and `count` is at most RUN.
            unsafe { content.fill(map::page(self.bounce, i).as_ptr()) };
        }
        let (read, write) = &mut self.pipe;
        write.write_all(bytes_of(self.bounce, held.len())).map_err(Trouble::call("write to a pipe"))?;
        read.read_exact(bytes_of_mut(held.addr(0), held.len())).map_err(Trouble::call("read from a pipe"))?;
        board.checked(held.check("read() from a pipe")? + held.count);
        Ok(())
    }

    fn check_bounce(&self, content: Content, i: usize, page: usize, doing: &'static str) -> Result<(), Trouble> {
        // SAFETY: the buffer has RUN pages, and callers stay below it.
        let seen = unsafe { content.check(map::page(self.bounce, i).as_ptr()) };
        seen.map_err(|mismatch| Trouble::Wrong { doing, page, mismatch, why: "seen in the copy".into() })
    }

    /// Leaves something else in the buffer, so that the next transfer can't pass by not happening.
    fn scribble(&self) {
        self.stamp.set(self.stamp.get() + 1);
        let content = Content::of(!self.seed, 0, self.stamp.get());
        for i in 0..RUN {
            // SAFETY: the buffer has RUN pages.
            unsafe { content.fill(map::page(self.bounce, i).as_ptr()) };
        }
    }
}

fn open_direct(options: &mut OpenOptions, path: &Path, board: Shared) -> Result<Option<File>, Trouble> {
    const TMPFS: i64 = 0x0102_1994;
    let on_tmpfs = nix::sys::statfs::statfs(path).is_ok_and(|fs| fs.filesystem_type().0 == TMPFS);
    match options.custom_flags(libc::O_DIRECT).open(path) {
        Ok(file) if !on_tmpfs => {
            board.direct.store(1, Relaxed);
            Ok(Some(file))
        }
        Ok(_) => Ok(refused(board, path, "tmpfs takes the flag and ignores it")),
        Err(e) if e.kind() == io::ErrorKind::InvalidInput => Ok(refused(board, path, "the filesystem refused it")),
        Err(e) => Err(Trouble::Call { what: "opening the scratch file with O_DIRECT", source: e }),
    }
}

fn refused(board: Shared, path: &Path, why: &str) -> Option<File> {
    if board.direct.swap(2, Relaxed) != 2 {
        eprintln!("annex-stress: O_DIRECT IS NOT TESTED at {}: {why}; give a --dir on a disk", path.display());
    }
    None
}

/// The bytes of held pages or of the thread's own buffer.
fn bytes_of<'a>(at: NonNull<u8>, len: usize) -> &'a [u8] {
    // SAFETY: callers pass pages they hold or their own buffer, mapped for the life of the process;
    // the slice is used for one system call and not kept.
    unsafe { std::slice::from_raw_parts(at.as_ptr(), len) }
}

fn bytes_of_mut<'a>(at: NonNull<u8>, len: usize) -> &'a mut [u8] {
    // SAFETY: as above.
    unsafe { std::slice::from_raw_parts_mut(at.as_ptr(), len) }
}
