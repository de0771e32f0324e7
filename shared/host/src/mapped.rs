//! A memfd mapped shared: memory whose bytes outlive this process if its descriptor does.
//!
//! All access is by atomics of one width per byte range (each table's layout fixes which), so that
//! any number of threads may look while another changes things, and a kill leaves every field
//! either old or new. The mapping is sparse: only what was touched takes memory, and that is locked
//! in RAM.

use annex_shared::memfd;
use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, fallocate};
use nix::unistd::{Whence, lseek};
use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64};

/// A shared mapping of a whole memfd.
#[derive(Debug)]
pub struct Mapped {
    fd: OwnedFd,
    base: NonNull<u8>,
    len: usize,
}

/// A table's memory could not be had.
#[derive(Debug, thiserror::Error)]
#[error("failed to {what} the {name}: {source}")]
pub struct MapError {
    what: &'static str,
    name: &'static str,
    source: io::Error,
}

// SAFETY: plain memory without thread affinity, only ever reached through atomics.
unsafe impl Send for Mapped {}
// SAFETY: as above.
unsafe impl Sync for Mapped {}

impl Mapped {
    /// A fresh, zeroed, sparse table of `len` bytes.
    pub fn create(name: &'static str, len: usize) -> Result<Self, MapError> {
        let label = CString::new(name).unwrap_or_default();
        let fail = |what| move |e: Errno| MapError { what, name, source: e.into() };
        let fd = memfd::create(&label, len).map_err(fail("create"))?;
        Self::open(name, fd)
    }

    /// Maps an existing table.
    pub fn open(name: &'static str, fd: OwnedFd) -> Result<Self, MapError> {
        let fail = |what| MapError { what, name, source: io::Error::last_os_error() };
        let stat = nix::sys::stat::fstat(&fd).map_err(|e| MapError { what: "inspect", name, source: e.into() })?;
        let len = stat.st_size as usize;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_SHARED | libc::MAP_NORESERVE;
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, flags, fd.as_raw_fd(), 0) };
        if base == libc::MAP_FAILED {
            return Err(fail("map"));
        }
        // Locks each page when it is first touched: the sparse rest stays absent. Without the
        // privilege the table still works, it only might be paged out. SAFETY: the range was just
        // mapped; mlock2 changes no bytes.
        if unsafe { libc::mlock2(base, len, libc::MLOCK_ONFAULT as _) } != 0 {
            tracing::warn!("failed to lock the {name} in memory: {} (raise LimitMEMLOCK)", io::Error::last_os_error());
        }
        // SAFETY: a hint about a mapping of ours: no core dump of gigabytes of holes, no huge pages
        // for a few entries.
        unsafe { libc::madvise(base, len, libc::MADV_DONTDUMP) };
        let base = NonNull::new(base.cast()).expect("mmap never returns null without MAP_FIXED");
        Ok(Mapped { fd, base, len })
    }

    pub fn size(&self) -> usize {
        self.len
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    #[inline]
    pub fn u8(&self, at: usize) -> &AtomicU8 {
        // SAFETY: as in `u16`, for a byte.
        unsafe { AtomicU8::from_ptr(self.field(at, 1)) }
    }

    #[inline]
    pub fn u16(&self, at: usize) -> &AtomicU16 {
        // SAFETY: in bounds and aligned (checked by `field`), zero-initialised by the kernel, lives
        // as long as self; the owning table uses this range as u16 only.
        unsafe { AtomicU16::from_ptr(self.field(at, 2).cast()) }
    }

    #[inline]
    pub fn u32(&self, at: usize) -> &AtomicU32 {
        // SAFETY: as in `u16`, for 4 bytes.
        unsafe { AtomicU32::from_ptr(self.field(at, 4).cast()) }
    }

    #[inline]
    pub fn u64(&self, at: usize) -> &AtomicU64 {
        // SAFETY: as in `u16`, for 8 bytes.
        unsafe { AtomicU64::from_ptr(self.field(at, 8).cast()) }
    }

    /// Gives the memory of a range back; it reads as zeros from then on. Only whole pages inside
    /// the range are released.
    pub fn punch(&self, at: usize, len: usize) -> io::Result<()> {
        let page = annex_shared::page::PAGE_SIZE;
        let (from, to) = (at.next_multiple_of(page), (at + len) / page * page);
        if from >= to {
            return Ok(());
        }
        let mode = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
        Ok(fallocate(&self.fd, mode, from as i64, (to - from) as i64)?)
    }

    /// Where in a range memory is in use: the start of each page that was touched.
    pub fn touched(&self, at: usize, len: usize) -> Vec<usize> {
        let mut pages = Vec::new();
        let end = (at + len) as i64;
        let mut from = at as i64;
        while from < end
            && let Ok(data) = lseek(&self.fd, from, Whence::SeekData)
        {
            let hole = lseek(&self.fd, data, Whence::SeekHole).unwrap_or(end);
            pages.extend((data.max(from)..hole.min(end)).step_by(annex_shared::page::PAGE_SIZE).map(|at| at as usize));
            from = hole;
        }
        pages
    }

    /// Bytes of memory the table really takes.
    pub fn resident(&self) -> u64 {
        nix::sys::stat::fstat(&self.fd).map_or(0, |s| s.st_blocks as u64 * 512)
    }

    #[inline]
    fn field(&self, at: usize, width: usize) -> *mut u8 {
        assert!(
            at.is_multiple_of(width) && at < self.len && width <= self.len - at,
            "field {at}+{width} outside the table"
        );
        // SAFETY: the assert keeps the offset inside the mapping.
        unsafe { self.base.as_ptr().add(at) }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: references into the mapping borrow self, so none is left.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}
