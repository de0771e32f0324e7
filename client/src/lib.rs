//! A region of a program's memory that is paged to donors by annexd, and whose faults the program
//! takes itself.
//!
//! `annex run` and `annex attach` page programs that know nothing of it, through the kernel: a
//! fault puts the thread to sleep, wakes annexd, and that wakes the thread. A program that wants
//! the last microseconds opens a [`Region`] instead. A thread that meets a page which is not there
//! gets SIGBUS, and this library's handler asks annexd for it through memory that both share
//! ([`annex_shared::ring`]); where a CPU is to spare, annexd is looking there already, and nobody
//! sleeps. The region is listed by `annex apps`, its limit is changed by `annex limit`, and `annex
//! detach` brings it back; donors, replicas and checksums are those of any app. annexd may be
//! killed and started anew meanwhile: threads that need a page wait for it.
//!
//! # What a program must know
//! - A system call that is given memory of the region fails with EFAULT where a page of that is not
//!   there: the kernel raises no SIGBUS for itself. [`Region::touch`] brings pages in beforehand;
//!   it is a best effort, since they may go again. Better: buffers elsewhere.
//! - No thread that uses the region may block SIGBUS, and the program may not replace its handler
//!   but by one that passes on what it does not know.
//! - A child process does not have the region: it may exec, or use anything else.
//! - Signals that come while a thread waits for a page are handled when it has it; only SIGKILL
//!   ends the wait.
//! - One region per process, and none for a process that annex has attached as a whole.
//! - x86-64 only, as annexd is.
//!
//! A page that no donor has any more is lost: touching it is SIGBUS, to which the program's own
//! handler, or the end, answers. Nothing reads as zeros that was written.

mod annexd;
mod error;
mod handler;

pub use annex_shared::api::Limit;
pub use error::Error;

use annex_shared::api::{LONGEST_REGION, RegionRequest, SHORTEST_REGION, SOCKET};
use annex_shared::page::PAGE_SIZE;
use annex_shared::ring::Mapping;
use error::system;
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd};
use std::path::PathBuf;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::SeqCst;

/// What is wanted.
#[derive(Clone, Debug)]
pub struct Options {
    /// annexd's control socket.
    pub socket: PathBuf,
    /// Bytes; rounded up to whole pages.
    pub length: usize,
    /// How much of it may be in local memory: `None` is annexd's default.
    pub local: Option<Limit>,
    /// As `annex apps` is to list it; made from the program's name if absent.
    pub name: Option<String>,
}

impl Options {
    /// A region of so many bytes, and the defaults for all else.
    pub fn of(length: usize) -> Options {
        Options { socket: SOCKET.into(), length, local: None, name: None }
    }
}

/// The region: zeros at first. It ends when this is dropped, and what was in it is gone.
#[derive(Debug)]
pub struct Region {
    memory: Memory,
    ring: Mapping,
    /// Rings for annexd. Both descriptors are open for as long as the region is.
    _bell: EventFd,
    socket: PathBuf,
    app: u64,
    process: u32,
}

// SAFETY: the memory is the program's to use as it likes; what else there is may be used by any
// thread.
unsafe impl Send for Region {}
// SAFETY: as above; it is handed out as a raw pointer only.
unsafe impl Sync for Region {}

/// The process that has a region, or 0. A forked child has none.
static OWNER: AtomicU32 = AtomicU32::new(0);

impl Region {
    /// Opens the region of this process.
    ///
    /// # Errors
    /// There is one already, annexd does not run or refuses, or the kernel does.
    pub fn new(options: Options) -> Result<Region, Error> {
        let length = options.length.checked_next_multiple_of(PAGE_SIZE).filter(|length| {
            (SHORTEST_REGION..=LONGEST_REGION).contains(&(*length as u64)) && options.length as u64 >= SHORTEST_REGION
        });
        let length = length.ok_or(Error::Length { length: options.length })?;
        let process = std::process::id();
        let owner = OWNER.load(SeqCst);
        if owner == process || OWNER.compare_exchange(owner, process, SeqCst, SeqCst).is_err() {
            return Err(Error::Second);
        }
        let opened = Region::open(options, length, process);
        if opened.is_err() {
            handler::close();
            OWNER.store(0, SeqCst);
        }
        opened
    }

    fn open(options: Options, length: usize, process: u32) -> Result<Region, Error> {
        let Options { socket, local, name, .. } = options;
        let memory = Memory::map(length).map_err(system("map the region"))?;
        let (ring, fd) = Mapping::create()?;
        let bell = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)
            .map_err(|errno| system("make an eventfd")(errno.into()))?;
        let address = memory.at.as_ptr() as u64;
        let range = (address, address + length as u64);
        // In place before anything can leave.
        handler::open(range, &raw const *ring, bell.as_fd().as_raw_fd()).map_err(system("handle SIGBUS"))?;
        let (ring_fd, bell_fd) = (fd.as_raw_fd(), bell.as_fd().as_raw_fd());
        let request = RegionRequest { address, length: length as u64, ring: ring_fd, bell: bell_fd, name, local };
        let app = annexd::open(&socket, &request)?.id;
        Ok(Region { memory, ring, _bell: bell, socket, app, process })
    }

    /// Its first byte. All of it may be read and written, by any thread.
    pub fn as_ptr(&self) -> *mut u8 {
        self.memory.at.as_ptr()
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.memory.length
    }

    /// Never: the shortest region has some pages.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// The number by which annexd knows it, as `annex apps` lists it.
    pub fn app(&self) -> u64 {
        self.app
    }

    /// Brings these bytes' pages in, for a system call to find them there. What is outside of the
    /// region is left out. They may go again at any time, if the region is above its limit: a call
    /// that fails with EFAULT is worth another try after another touch.
    pub fn touch(&self, bytes: Range<usize>) {
        let (first, end) = (bytes.start / PAGE_SIZE, bytes.end.min(self.len()).div_ceil(PAGE_SIZE));
        for page in first..end {
            // SAFETY: the page lies in the region.
            unsafe { self.as_ptr().add(page * PAGE_SIZE).read_volatile() };
        }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            // In a forked child, which has none of it: what the parent has goes on.
            return;
        }
        // First of all, so that nothing is brought back.
        self.memory.unmap();
        handler::close();
        self.ring.end();
        // If annexd is not there, the next one finds a region without pages, and lets go of it with
        // the process.
        let _ = annexd::close(&self.socket, self.app);
        OWNER.store(0, SeqCst);
    }
}

/// The region's mapping between two inaccessible pages, so that the kernel takes it for no part of
/// another one.
#[derive(Debug)]
struct Memory {
    at: NonNull<u8>,
    length: usize,
    mapped: bool,
}

impl Memory {
    fn map(length: usize) -> io::Result<Memory> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let whole = length + 2 * PAGE_SIZE;
        // SAFETY: at an address of the kernel's choice; then a part of that very mapping is made
        // accessible, and advice given on it.
        unsafe {
            let base = libc::mmap(std::ptr::null_mut(), whole, libc::PROT_NONE, flags, -1, 0);
            if base == libc::MAP_FAILED {
                return Err(io::Error::last_os_error());
            }
            let at = base.cast::<u8>().add(PAGE_SIZE);
            let memory = Memory { at: NonNull::new_unchecked(at), length, mapped: true };
            let failed = libc::mprotect(at.cast(), length, libc::PROT_READ | libc::PROT_WRITE) != 0
                || libc::madvise(at.cast(), length, libc::MADV_DONTFORK) != 0;
            if failed {
                return Err(io::Error::last_os_error());
            }
            // Refused where there are no huge pages, which is as well.
            libc::madvise(at.cast(), length, libc::MADV_NOHUGEPAGE);
            Ok(memory)
        }
    }

    fn unmap(&mut self) {
        if std::mem::take(&mut self.mapped) {
            // SAFETY: our own mapping; whoever drops the region has no use for it any more.
            unsafe { libc::munmap(self.at.as_ptr().sub(PAGE_SIZE).cast(), self.length + 2 * PAGE_SIZE) };
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.unmap();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(options: Options) -> String {
        Region::new(options).map(drop).unwrap_err().to_string()
    }

    #[test]
    fn what_can_not_be_is_said_and_nothing_is_left_behind() {
        for length in [0, 4096, usize::MAX, 1 << 50] {
            let said = refusal(Options::of(length));
            assert!(said.contains("64 KiB at least and 2 TiB at most"), "{said}");
        }
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("annexd.sock");
        for _ in 0..2 {
            let said = refusal(Options { socket: socket.clone(), ..Options::of(1 << 20) });
            assert!(said.starts_with("annexd does not run, or not at /"), "{said}");
        }
    }
}
