//! An address space as the kernel has it, apart from any process.
//!
//! `/proc/PID/mem` and `/proc/PID/pagemap` belong to the address space that the process had when
//! they were opened. They go on with it when that process ends, calls exec, or was the stub and is
//! killed. So what an address space holds is read through them, and never through a PID that may be
//! somebody else's by now.
//!
//! Which tasks live in an address space is told by the stub's shared page: it lies at an address
//! and is of a file that no other address space has, and a fork does not copy it.

use crate::kernel::lookup::Lookup;
use crate::kernel::process;
use crate::kernel::scan::Pagemap;
use nix::errno::Errno;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;

/// The stub's shared page in its program's mappings: a name that nobody else's mapping has.
pub const SHARED_PAGE: &str = "/memfd:annex-stub-page";

/// An address space, open for reading.
#[derive(Debug)]
pub struct Mm {
    memory: File,
    pagemap: File,
}

impl Mm {
    /// The one that a task has now.
    pub fn open(task: i32) -> io::Result<Mm> {
        let open = |name| File::open(format!("/proc/{task}/{name}"));
        Ok(Mm { memory: open("mem")?, pagemap: open("pagemap")? })
    }

    /// As an annexd before had it open.
    pub fn kept(memory: OwnedFd, pagemap: OwnedFd) -> Mm {
        Mm { memory: memory.into(), pagemap: pagemap.into() }
    }

    /// Its memory and its page map.
    pub fn fds(&self) -> [BorrowedFd<'_>; 2] {
        [self.memory.as_fd(), self.pagemap.as_fd()]
    }

    pub fn pagemap(&self) -> io::Result<Pagemap> {
        self.pagemap.try_clone().map(Pagemap::over)
    }

    /// Where the first guard page (MADV_GUARD_INSTALL) from `start` up to `end` is.
    pub fn first_guard(&self, start: u64, end: u64) -> Option<u64> {
        Pagemap::first_guard(&self.pagemap, start, end)
    }

    /// Reads all of `into` at `addr`. Once the address space has ended there is nothing to be read
    /// (EFAULT).
    pub fn read(&self, addr: u64, into: &mut [u8]) -> io::Result<()> {
        match self.memory.read_exact_at(into, addr) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Err(Errno::EFAULT.into()),
            read => read,
        }
    }
}

/// What tells an address space from all others, for as long as it has the mappings of a stub.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// Where the stub's shared page is.
    pub at: u64,
    /// Its file; 0 if that is not known.
    pub inode: u64,
}

impl Mark {
    /// Whether a task lives in the address space. `None`: it has ended, or can't be looked at.
    pub fn is_in(&self, task: i32) -> Option<bool> {
        let found = Lookup::open(task).and_then(|lookup| lookup.at(self.at)).ok()?;
        let is_it = found.is_some_and(|mapping| {
            mapping.start == self.at
                && mapping.name.starts_with(SHARED_PAGE)
                && (self.inode == 0 || mapping.inode == self.inode)
        });
        // What has ended has no mappings.
        let lives = || process::Stat::read(task).is_some_and(|stat| stat.has_memory && !stat.is_zombie());
        (is_it || lives()).then_some(is_it)
    }

    /// A task of the process that lives in the address space.
    pub fn task_of(&self, pid: i32) -> Option<i32> {
        let is_in = |task: &i32| self.is_in(*task) == Some(true);
        Some(pid).filter(is_in).or_else(|| process::threads(pid).into_iter().find(is_in))
    }

    /// Whether the process, which lives, has left the address space (by exec).
    pub fn was_left_by(&self, pid: i32) -> bool {
        let tasks = process::threads(pid);
        let answers: Vec<_> = tasks.iter().filter_map(|task| self.is_in(*task)).collect();
        !answers.is_empty() && !answers.contains(&true)
    }

    /// Processes that live in the address space, but for `stub`.
    pub fn processes(&self, stub: Option<i32>) -> Vec<(i32, process::Stat)> {
        let others = process::processes().into_iter().filter(|(pid, _)| Some(*pid) != stub);
        others.filter(|(pid, _)| self.task_of(*pid).is_some()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::memfd::{MFdFlags, memfd_create};
    use std::os::fd::AsRawFd;
    use std::process::{Command, Stdio};

    #[test]
    fn what_is_open_of_an_address_space_stays_with_it_when_its_process_becomes_another_program() {
        let mut child = Command::new("sh")
            .args(["-c", "read line; exec cat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let pid = child.id() as i32;
        let is_shell = || process::Stat::read(pid).is_some_and(|stat| stat.comm == "sh");
        while !is_shell() {
            std::thread::yield_now();
        }
        let stack = process::maps(pid).unwrap().into_iter().find(|m| m.name == "[stack]").unwrap();
        let mm = Mm::open(pid).unwrap();
        let mut page = [0u8; 4096];
        mm.read(stack.end - 4096, &mut page).unwrap();
        use std::io::Write;
        child.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
        while is_shell() {
            std::thread::yield_now();
        }
        assert!(mm.read(stack.end - 4096, &mut page).is_err(), "the shell's memory is gone");
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn a_mark_tells_who_lives_in_an_address_space() {
        let file = memfd_create(c"annex-stub-page", MFdFlags::MFD_CLOEXEC).unwrap();
        nix::unistd::ftruncate(&file, 4096).unwrap();
        let map = memmap2::MmapRaw::map_raw(&file).unwrap();
        let inode = nix::sys::stat::fstat(&file).unwrap().st_ino;
        let mark = Mark { at: map.as_ptr().addr() as u64, inode };
        let me = std::process::id() as i32;
        assert_eq!(mark.is_in(me), Some(true));
        assert_eq!(Mark { inode: inode + 1, ..mark }.is_in(me), Some(false), "another file's page");
        let mut other = Command::new("sleep").arg("60").spawn().unwrap();
        let pid = other.id() as i32;
        // Between fork and exec it is a copy of this process.
        while process::Stat::read(pid).is_none_or(|stat| stat.comm != "sleep") {
            std::thread::yield_now();
        }
        assert_eq!((mark.is_in(pid), mark.was_left_by(pid)), (Some(false), true));
        other.kill().unwrap();
        // Its main thread is a zombie: nothing follows from that.
        while process::Stat::read(pid).is_some_and(|stat| !stat.is_zombie()) {
            std::thread::yield_now();
        }
        assert_eq!((mark.is_in(pid), mark.was_left_by(pid)), (None, false));
        other.wait().unwrap();
        assert!(file.as_raw_fd() > 0);
    }
}
