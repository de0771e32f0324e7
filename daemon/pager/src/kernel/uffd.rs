//! One userfaultfd context: the kernel's calls turned into decisions.
//!
//! The `userfaultfd` crate registers, unregisters and wakes. COPY with write-protection,
//! WRITEPROTECT without a wake, POISON and the message layout are newer than the crate; they are
//! issued here, from the kernel's `include/uapi/linux/userfaultfd.h`. Every outcome the pager acts
//! on is a variant, never an errno.

use crate::kernel::ring::Waiters;
use crate::page::PageIdx;
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use std::ffi::c_void;
use std::fs::File;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::os::unix::fs::FileExt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use userfaultfd::{RegisterMode, Uffd as Context};

/// Features every context of ours is opened with.
pub mod feature {
    pub const PAGEFAULT_FLAG_WP: u64 = 1 << 0;
    pub const EVENT_FORK: u64 = 1 << 1;
    pub const EVENT_REMAP: u64 = 1 << 2;
    pub const EVENT_REMOVE: u64 = 1 << 3;
    pub const EVENT_UNMAP: u64 = 1 << 6;
    /// Not among [`ALL`]: faults are SIGBUS for the thread, and no message.
    pub const SIGBUS: u64 = 1 << 7;
    pub const THREAD_ID: u64 = 1 << 8;
    pub const WP_UNPOPULATED: u64 = 1 << 13;
    pub const POISON: u64 = 1 << 14;
    pub const WP_ASYNC: u64 = 1 << 15;
    pub const MOVE: u64 = 1 << 16;

    pub const ALL: u64 = PAGEFAULT_FLAG_WP
        | EVENT_FORK
        | EVENT_REMAP
        | EVENT_REMOVE
        | EVENT_UNMAP
        | THREAD_ID
        | WP_UNPOPULATED
        | POISON
        | WP_ASYNC
        | MOVE;

    /// What a missing bit means to a user.
    pub const NAMES: &[(u64, &str, &str)] = &[
        (MOVE, "UFFDIO_MOVE", "6.8"),
        (WP_ASYNC, "asynchronous write-protect tracking", "6.7"),
        (POISON, "UFFDIO_POISON", "6.6"),
        (WP_UNPOPULATED, "write-protection of unpopulated pages", "6.4"),
        (PAGEFAULT_FLAG_WP, "write-protect faults", "5.7"),
        (EVENT_FORK, "fork events", "4.11"),
    ];
}

const API: u64 = 0xAA;

#[repr(C)]
struct ApiArg {
    api: u64,
    features: u64,
    ioctls: u64,
}

#[repr(C)]
struct CopyArg {
    dst: u64,
    src: u64,
    len: u64,
    mode: u64,
    copied: i64,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct RangeArg {
    start: u64,
    len: u64,
}

#[repr(C)]
struct ModeArg {
    range: RangeArg,
    mode: u64,
}

#[repr(C)]
struct ModeCountArg {
    range: RangeArg,
    mode: u64,
    count: i64,
}

/// `struct uffdio_move`; the stub issues the call.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct MoveArg {
    pub dst: u64,
    pub src: u64,
    pub len: u64,
    pub mode: u64,
    pub moved: i64,
}

/// `struct uffdio_register`, which begins with the `struct uffdio_range` of an UNREGISTER; the stub
/// issues the calls.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RegisterArg {
    range: RangeArg,
    mode: u64,
    ioctls: u64,
}

// The stub has them where it has those of its moves.
const _: () = assert!(size_of::<RegisterArg>() <= size_of::<MoveArg>());

impl RegisterArg {
    /// For missing-page faults.
    pub fn missing(start: u64, len: u64) -> RegisterArg {
        RegisterArg { range: RangeArg { start, len }, mode: RegisterMode::MISSING.bits(), ioctls: 0 }
    }
}

/// `UFFDIO_MOVE_MODE_DONTWAKE`.
pub const MOVE_DONTWAKE: u64 = 1;
/// `UFFDIO_MOVE_MODE_ALLOW_SRC_HOLES`.
pub const MOVE_SOURCE_HOLES: u64 = 2;
/// `UFFDIO_MOVE`, the request number.
pub const UFFDIO_MOVE: u64 = 0xC028_AA05;
/// `UFFDIO_REGISTER` and `UFFDIO_UNREGISTER`.
pub const UFFDIO_REGISTER: u64 = 0xC020_AA00;
pub const UFFDIO_UNREGISTER: u64 = 0x8010_AA01;
/// `USERFAULTFD_IOC_NEW` on `/dev/userfaultfd`.
pub const USERFAULTFD_IOC_NEW: u64 = 0xAA00;

const COPY_MODE_WP: u64 = 1 << 1;
const COPY_MODE_DONTWAKE: u64 = 1;
const WP_MODE_WP: u64 = 1;
const ZEROPAGE_MODE_DONTWAKE: u64 = 1;

nix::ioctl_readwrite!(uffdio_api, 0xAA, 0x3F, ApiArg);
nix::ioctl_readwrite!(uffdio_copy, 0xAA, 0x03, CopyArg);
nix::ioctl_readwrite!(uffdio_zeropage, 0xAA, 0x04, ModeCountArg);
nix::ioctl_readwrite!(uffdio_writeprotect, 0xAA, 0x06, ModeArg);
nix::ioctl_readwrite!(uffdio_poison, 0xAA, 0x08, ModeCountArg);

/// `struct uffd_msg`, 32 bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Message {
    pub event: u8,
    pub reserved: [u8; 7],
    pub args: [u64; 3],
}

/// A message, read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A thread waits for the page at `addr` (page-aligned). `thread` is its ID in its own PID
    /// namespace.
    Fault { addr: u64, write: bool, thread: i32 },
    /// The process forked; `uffd` is the child's context, in our descriptor table.
    Fork { uffd: RawFd },
    /// mremap moved `len` bytes.
    Remap { from: u64, to: u64, len: u64 },
    /// madvise is about to drop the range (it has not yet).
    Remove { start: u64, end: u64 },
    /// The range is no longer mapped.
    Unmap { start: u64, end: u64 },
    /// Not a message (a journal entry that was never filled), or one of a newer kernel.
    Unknown(u8),
}

impl Message {
    const FAULT: u8 = 0x12;
    const FORK: u8 = 0x13;
    const REMAP: u8 = 0x14;
    const REMOVE: u8 = 0x15;
    const UNMAP: u8 = 0x16;
    /// `UFFD_PAGEFAULT_FLAG_WRITE`.
    const WRITE: u64 = 1;

    pub fn event(&self) -> Event {
        let [a, b, c] = self.args;
        match self.event {
            Self::FAULT => Event::Fault { addr: b & !0xfff, write: a & Self::WRITE != 0, thread: c as i32 },
            Self::FORK => Event::Fork { uffd: a as u32 as RawFd },
            Self::REMAP => Event::Remap { from: a, to: b, len: c },
            Self::REMOVE => Event::Remove { start: a, end: b },
            Self::UNMAP => Event::Unmap { start: a, end: b },
            other => Event::Unknown(other),
        }
    }
}

/// What became of a COPY, ZEROPAGE or POISON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Installed {
    /// All of it; waiters are awake.
    Done,
    /// This many bytes from the start, then something stood in the way: ask again for the rest.
    Partly(u64),
    /// A page is there already.
    Exists,
    /// The address is not mapped (or not registered) any more.
    NotMapped,
    /// The app is changing its mappings: read its events, then try again.
    TryAgain,
    /// The address space is dead.
    Dead,
}

/// What became of a write-protect probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Probe {
    Registered,
    /// Some of the range is not ours.
    NotRegistered,
    TryAgain,
    Dead,
}

/// That nobody will miss a userfaultfd: its address space has ended, or nothing is evicted from it.
/// Without one it is never closed, for whoever touched an evicted page then would find zeros.
#[derive(Debug)]
pub struct Proof(());

impl Proof {
    /// The kernel says that the address space has no users any more.
    pub fn of_end(uffd: &Uffd) -> Option<Proof> {
        uffd.is_dead().then_some(Proof(()))
    }

    /// No record says that a page is anywhere but in memory. Nothing may be evicted any more.
    pub fn all_back(is_sure: bool) -> Option<Proof> {
        is_sure.then_some(Proof(()))
    }

    /// Every evicted page has been poisoned.
    pub fn all_poisoned(is_sure: bool) -> Option<Proof> {
        is_sure.then_some(Proof(()))
    }
}

/// An owned userfaultfd whose API handshake is done. It is closed with a [`Proof`] only.
#[derive(Debug)]
pub struct Uffd {
    context: ManuallyDrop<Context>,
    /// Something may be evicted that only this descriptor stands for.
    is_needed: AtomicBool,
    /// Nothing but its flag keeps a read from waiting.
    needs_flag: AtomicBool,
    /// What the kernel tells of the descriptor, where /proc can be read.
    info: Option<File>,
    /// Where the threads of a region wait, whom the kernel can't wake.
    ring: Option<Waiters>,
}

impl Uffd {
    /// Takes a fresh descriptor through the handshake. Fails with the missing features' bits if the
    /// kernel lacks any.
    pub fn handshake(fd: OwnedFd, features: u64) -> io::Result<Uffd> {
        let mut arg = ApiArg { api: API, features, ioctls: 0 };
        // SAFETY: `arg` is the struct this ioctl takes and outlives the call.
        unsafe { uffdio_api(fd.as_raw_fd(), &mut arg) }?;
        let uffd = Uffd::adopt(fd);
        // Nothing has been evicted yet.
        uffd.is_needed.store(false, Relaxed);
        Ok(uffd)
    }

    /// The features this kernel's userfaultfd has, asked with a descriptor that is spent by it.
    pub fn kernel_features(fd: OwnedFd) -> io::Result<u64> {
        let mut arg = ApiArg { api: API, features: 0, ioctls: 0 };
        // SAFETY: `arg` is the struct this ioctl takes and outlives the call.
        unsafe { uffdio_api(fd.as_raw_fd(), &mut arg) }?;
        Ok(arg.features)
    }

    /// Takes a descriptor that inherited its features (a fork child's), and makes it non-blocking.
    pub fn adopt(fd: OwnedFd) -> Uffd {
        // Without the flag it can't be polled. F_SETFL on an owned userfaultfd can't fail.
        let _ = fcntl(&fd, FcntlArg::F_SETFL(OFlag::O_NONBLOCK));
        let info = File::open(format!("/proc/self/fdinfo/{}", fd.as_raw_fd())).ok();
        // SAFETY: the descriptor is a userfaultfd and ownership passes on.
        let context = ManuallyDrop::new(unsafe { Context::from_raw_fd(fd.into_raw_fd()) });
        Uffd { context, is_needed: AtomicBool::new(true), needs_flag: AtomicBool::new(false), info, ring: None }
    }

    /// From now on pages may be evicted.
    pub fn keep_open(&self) {
        self.is_needed.store(true, Relaxed);
    }

    /// It may be closed with its last owner.
    pub fn let_go(&self, _: Proof) {
        self.is_needed.store(false, Relaxed);
    }

    /// The threads that fault here wait at this ring: whatever wakes them in the kernel wakes them
    /// there too.
    pub fn with_ring(mut self, ring: Waiters) -> Uffd {
        self.ring = Some(ring);
        self
    }

    pub fn ring(&self) -> Option<&Waiters> {
        self.ring.as_ref()
    }

    fn wake_at_ring(&self, start: u64, len: u64) {
        self.ring.iter().for_each(|ring| ring.wake(PageIdx::of(start), PageIdx::of(start.saturating_add(len))));
    }

    /// Registers a range for missing-page and write-protect faults.
    pub fn register(&self, start: u64, len: u64) -> Result<(), Errno> {
        let mode = RegisterMode::MISSING | RegisterMode::WRITE_PROTECT;
        sys(self.context.register_with_mode(start as *mut c_void, len as usize, mode).map(drop))
    }

    /// Registers the staging range: missing mode only.
    pub fn register_missing(&self, start: u64, len: u64) -> Result<(), Errno> {
        sys(self.context.register_with_mode(start as *mut c_void, len as usize, RegisterMode::MISSING).map(drop))
    }

    pub fn unregister(&self, start: u64, len: u64) -> Result<(), Errno> {
        sys(self.context.unregister(start as *mut c_void, len as usize))
    }

    /// Wakes threads that wait for pages in the range; they fault again if the page is still
    /// missing.
    pub fn wake(&self, start: u64, len: u64) {
        // Fails only for a range that is no range; there is nobody to wake then.
        let _ = self.context.wake(start as *mut c_void, len as usize);
        self.wake_at_ring(start, len);
    }

    /// Installs pages from our memory and wakes their waiters. `protect` makes the pages
    /// write-protected, so that a later scan tells whether they were written.
    ///
    /// # Safety
    /// `src..src + len` must be readable memory of this process.
    pub unsafe fn copy(&self, dst: u64, src: *const u8, len: u64, protect: bool, wake: bool) -> Installed {
        let mode = if protect { COPY_MODE_WP } else { 0 } | if wake { 0 } else { COPY_MODE_DONTWAKE };
        let mut arg = CopyArg { dst, src: src as u64, len, mode, copied: 0 };
        // SAFETY: `arg` is the struct this ioctl takes; the caller vouches for `src`.
        let result = unsafe { uffdio_copy(self.as_raw_fd(), &mut arg) };
        let installed = outcome(result, arg.copied, len);
        match installed {
            Installed::Done if wake => self.wake_at_ring(dst, len),
            Installed::Partly(bytes) if wake => self.wake_at_ring(dst, bytes),
            _ => {}
        }
        installed
    }

    /// Asks whether the address space is alive, by an operation that can't succeed on an address
    /// nobody maps.
    pub fn is_dead(&self) -> bool {
        let range = RangeArg { start: 1 << 16, len: 4096 };
        let mut arg = ModeCountArg { range, mode: ZEROPAGE_MODE_DONTWAKE, count: 0 };
        // SAFETY: `arg` is the struct this ioctl takes and outlives the call.
        matches!(unsafe { uffdio_zeropage(self.as_raw_fd(), &mut arg) }, Err(Errno::ESRCH))
    }

    /// Makes the page one whose touch raises SIGBUS.
    pub fn poison(&self, addr: u64) -> Installed {
        let mut arg = ModeCountArg { range: RangeArg { start: addr, len: 4096 }, mode: 0, count: 0 };
        // SAFETY: `arg` is the struct this ioctl takes and outlives the call.
        let result = unsafe { uffdio_poison(self.as_raw_fd(), &mut arg) };
        let installed = outcome(result, arg.count, 4096);
        if installed == Installed::Done {
            self.ring.iter().for_each(|ring| ring.lose(PageIdx::of(addr)));
        }
        installed
    }

    /// Installs zeros where no page is.
    pub fn zero(&self, addr: u64) -> Installed {
        let range = RangeArg { start: addr, len: 4096 };
        let mut arg = ModeCountArg { range, mode: ZEROPAGE_MODE_DONTWAKE, count: 0 };
        // SAFETY: `arg` is the struct this ioctl takes and outlives the call.
        let result = unsafe { uffdio_zeropage(self.as_raw_fd(), &mut arg) };
        outcome(result, arg.count, 4096)
    }

    /// Asks whether a resident page is registered, by an operation that can't succeed on a page
    /// that is there. Does not disturb the CPUs the app runs on, as write-protecting would. (On an
    /// absent page it would install zeros: ask only for pages that are resident, or whose content
    /// is zeros if they are not.)
    pub fn probe_resident(&self, addr: u64) -> Probe {
        match self.zero(addr) {
            Installed::Done | Installed::Partly(_) | Installed::Exists => Probe::Registered,
            Installed::TryAgain => Probe::TryAgain,
            Installed::Dead => Probe::Dead,
            Installed::NotMapped => Probe::NotRegistered,
        }
    }

    /// Asks whether a page lies in a mapping registered with any context. Changes nothing, whether
    /// the page is there or not.
    ///
    /// The kernel looks first whether a change is unread, and then for the mapping. One that moves
    /// away in between is not found, although nobody has been told yet: so it is asked once more.
    /// Whoever reads the messages, or keeps others from it, has an answer to rely on.
    pub fn is_registered(&self, addr: u64) -> Probe {
        final_word(self.copy_of_nothing(addr), || self.changes())
    }

    /// Asks whether a change is unread: [`Probe::TryAgain`] until all are read, [`Probe::Dead`]
    /// where nothing changes any more.
    pub fn changes(&self) -> Probe {
        /// Nobody maps that address, as a rule: the answer is about no mapping.
        const NOWHERE: u64 = 1 << 16;
        self.copy_of_nothing(NOWHERE)
    }

    /// A COPY whose source can't be read.
    fn copy_of_nothing(&self, addr: u64) -> Probe {
        let mut arg = CopyArg { dst: addr, src: unreadable(), len: 4096, mode: COPY_MODE_DONTWAKE, copied: 0 };
        // SAFETY: `arg` is the struct this ioctl takes; its source is mapped without access, which
        // the kernel reports and does not follow.
        match unsafe { uffdio_copy(self.as_raw_fd(), &mut arg) } {
            Ok(_) | Err(Errno::EFAULT | Errno::EEXIST) => Probe::Registered,
            Err(Errno::ESRCH) => Probe::Dead,
            Err(Errno::ENOENT | Errno::EINVAL) => Probe::NotRegistered,
            // A change is unread; or the kernel has no memory, which says nothing of the mapping.
            Err(_) => Probe::TryAgain,
        }
    }

    /// Write-protects a range without waking anybody: tells whether all of it is registered with
    /// this context, and keeps what the kernel tracks about writes (lifting the protection would
    /// erase that).
    pub fn probe(&self, start: u64, len: u64) -> Probe {
        let mut arg = ModeArg { range: RangeArg { start, len }, mode: WP_MODE_WP };
        // SAFETY: `arg` is the struct this ioctl takes and outlives the call.
        match unsafe { uffdio_writeprotect(self.as_raw_fd(), &mut arg) } {
            Ok(_) => Probe::Registered,
            Err(Errno::EAGAIN) => Probe::TryAgain,
            Err(Errno::ESRCH) => Probe::Dead,
            Err(_) => Probe::NotRegistered,
        }
    }

    /// Lifts the write protection of a page, so that it counts as written. Whether that could be
    /// done.
    pub fn count_as_written(&self, addr: u64) -> bool {
        const DONTWAKE: u64 = 1 << 1;
        let mut arg = ModeArg { range: RangeArg { start: addr, len: 4096 }, mode: DONTWAKE };
        // SAFETY: `arg` is the struct this ioctl takes and outlives the call.
        unsafe { uffdio_writeprotect(self.as_raw_fd(), &mut arg) }.is_ok()
    }

    /// Reads messages into `into`; the number read, 0 if there is none. `Err` means the context is
    /// of no use any more.
    ///
    /// # Safety
    /// `into` must be valid for writes of `max` messages.
    pub unsafe fn read(&self, into: *mut Message, max: usize) -> Result<usize, Errno> {
        // SAFETY: the caller vouches for the buffer.
        match unsafe { self.read_at_once(into.cast(), max * size_of::<Message>()) } {
            Ok(n) => Ok(n / size_of::<Message>()),
            Err(Errno::EAGAIN) => {
                // Seldom: whoever waits is told that there is something. Or the program has made it
                // a descriptor that is not polled.
                let _ = fcntl(self.as_fd(), FcntlArg::F_SETFL(OFlag::O_NONBLOCK));
                Ok(0)
            }
            Err(Errno::EINTR) => Ok(0),
            Err(e) => Err(e),
        }
    }

    /// Reads what is there, and does not wait. Whether reading a descriptor waits (`O_NONBLOCK`)
    /// can be changed by whoever has a copy, and the program has one. So the call itself says that
    /// it must not. Where the kernel has no such call, the flag is set before each read: before
    /// Linux 6.10, and for the context of a fork's child.
    ///
    /// # Safety
    /// `into` must be valid for writes of `max` bytes.
    unsafe fn read_at_once(&self, into: *mut c_void, max: usize) -> Result<usize, Errno> {
        if !self.needs_flag.load(Relaxed) {
            let buffer = libc::iovec { iov_base: into, iov_len: max };
            // SAFETY: the caller vouches for the buffer; from where on is of no meaning here.
            match Errno::result(unsafe { libc::preadv2(self.as_raw_fd(), &buffer, 1, -1, libc::RWF_NOWAIT) }) {
                Err(Errno::EOPNOTSUPP | Errno::ENOSYS) => self.needs_flag.store(true, Relaxed),
                read => return read.map(|n| n as usize),
            }
        }
        fcntl(self.as_fd(), FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        // SAFETY: as above.
        Errno::result(unsafe { libc::read(self.as_raw_fd(), into, max) }).map(|n| n as usize)
    }

    /// Faults that can be read, which the kernel hands out before anything else; 0 if that is not
    /// known.
    pub fn pending_faults(&self) -> usize {
        let mut bytes = [0; 512];
        let Some(Ok(read)) = self.info.as_ref().map(|info| info.read_at(&mut bytes, 0)) else { return 0 };
        let text = str::from_utf8(&bytes[..read]).unwrap_or_default();
        let pending = text.lines().find_map(|line| line.strip_prefix("pending:")?.trim().parse().ok());
        pending.unwrap_or(0)
    }

    pub fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the context owns the descriptor for as long as the borrow lasts.
        unsafe { BorrowedFd::borrow_raw(self.as_raw_fd()) }
    }
}

impl Drop for Uffd {
    fn drop(&mut self) {
        if *self.is_needed.get_mut() && !self.is_dead() {
            tracing::error!(
                "a userfaultfd was given up though its program may have pages in the pool: it stays open, and the program waits rather than \
                 read zeros; this is a bug, please report it"
            );
            return;
        }
        // SAFETY: dropped once, here, and not used afterwards.
        unsafe { ManuallyDrop::drop(&mut self.context) };
    }
}

impl AsRawFd for Uffd {
    fn as_raw_fd(&self) -> RawFd {
        self.context.as_raw_fd()
    }
}

/// The address of a page of ours that nobody can read.
fn unreadable() -> u64 {
    static PAGE: OnceLock<u64> = OnceLock::new();
    *PAGE.get_or_init(|| {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a fresh mapping at an address of the kernel's choice touches nothing that exists.
        let page = unsafe { libc::mmap(std::ptr::null_mut(), 4096, libc::PROT_NONE, flags, -1, 0) };
        // The kernel's half of the address space can't be read either, if there is no mapping to be
        // had.
        if page == libc::MAP_FAILED { 1 << 46 } else { page as u64 }
    })
}

/// What holds, when the kernel has said this of an address and that of changes.
fn final_word(said: Probe, of_changes: impl FnOnce() -> Probe) -> Probe {
    match said {
        Probe::NotRegistered => match of_changes() {
            nothing @ (Probe::TryAgain | Probe::Dead) => nothing,
            Probe::Registered | Probe::NotRegistered => Probe::NotRegistered,
        },
        said => said,
    }
}

fn sys(result: userfaultfd::Result<()>) -> Result<(), Errno> {
    use userfaultfd::Error;
    result.map_err(|e| match e {
        Error::SystemError(e) => Errno::from_raw(e as i32),
        _ => Errno::EINVAL,
    })
}

fn outcome(result: nix::Result<i32>, bytes: i64, len: u64) -> Installed {
    match result {
        Ok(_) => Installed::Done,
        // The count is negative (an errno) when nothing was done.
        Err(_) if bytes > 0 && (bytes as u64) < len => Installed::Partly(bytes as u64),
        Err(Errno::EEXIST) => Installed::Exists,
        Err(Errno::EAGAIN | Errno::EINTR) => Installed::TryAgain,
        Err(Errno::ESRCH) => Installed::Dead,
        Err(_) => Installed::NotMapped,
    }
}

#[cfg(test)]
pub mod tests;
