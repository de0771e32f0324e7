//! The slabs that a connector has mapped.

use super::board::{BoardView, sealed_len};
use super::protocol::Region;
use crate::prepared::Prepared;
use annex_shared::ids::{Incarnation, RemoteAddr};
use annex_shared::page::PAGE_SIZE;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// What a connector shares with its endpoints.
#[derive(Debug)]
pub(super) struct Slabs {
    pub(super) board: BoardView,
    pub(super) incarnation: Incarnation,
    /// False once the agent is gone.
    pub(super) is_alive: AtomicBool,
    /// Unmapped when no endpoint sees them any more: 64 MiB are no work for a thread that serves
    /// faults.
    pub(super) mapped: Prepared<Arc<Slab>>,
}

/// A slab's memory, shared with the agent.
#[derive(Debug)]
pub(super) struct Slab {
    base: NonNull<u8>,
    len: usize,
    pub(super) board_slot: u32,
}

// SAFETY: the mapping is plain shared memory without thread affinity; it is accessed through raw
// pointers and atomics only.
unsafe impl Send for Slab {}
// SAFETY: as above.
unsafe impl Sync for Slab {}

impl Slabs {
    pub(super) fn new(board: BoardView, incarnation: Incarnation) -> Self {
        Slabs { board, incarnation, is_alive: AtomicBool::new(true), mapped: Prepared::default() }
    }
}

impl Slab {
    /// Maps a slab, every page present and writable, so that no operation takes a first-touch
    /// fault. (MAP_POPULATE touches shared memory for reading only: each page's first WRITE would
    /// fault.)
    pub(super) fn map(fd: &OwnedFd, region: Region) -> io::Result<Slab> {
        let refuse = |what| io::Error::new(io::ErrorKind::InvalidData, what);
        let end = region.offset.checked_add(region.len).ok_or_else(|| refuse("the slab's range overflows"))?;
        if sealed_len(fd)? < end || region.len == 0 || !region.offset.is_multiple_of(PAGE_SIZE as u64) {
            return Err(refuse("the slab does not lie in the memfd that came with it"));
        }
        let len = region.len as usize;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let offset = region.offset as libc::off_t;
        // SAFETY: a fresh mapping at an address of the kernel's choice touches nothing that exists.
        let base =
            unsafe { libc::mmap(std::ptr::null_mut(), len, protection, libc::MAP_SHARED, fd.as_raw_fd(), offset) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the range was just mapped. A child of annexd has no use for it; that an advice
        // fails is no harm.
        unsafe {
            libc::madvise(base, len, libc::MADV_DONTFORK);
            libc::madvise(base, len, libc::MADV_POPULATE_WRITE);
        }
        let base = NonNull::new(base.cast()).ok_or_else(|| refuse("the slab was mapped at address 0"))?;
        Ok(Slab { base, len, board_slot: region.board_slot })
    }

    /// Where `addr..addr + len` is mapped; `None` if it does not lie in the slab.
    #[inline]
    pub(super) fn at(&self, addr: RemoteAddr, len: usize) -> Option<*mut u8> {
        let at = usize::try_from(addr.0).ok()?;
        if at > self.len || len > self.len - at {
            return None;
        }
        // SAFETY: just checked to be inside the mapping.
        Some(unsafe { self.base.as_ptr().add(at) })
    }
}

impl Drop for Slab {
    fn drop(&mut self) {
        // SAFETY: mapped in `map` with this length; whoever could have a pointer into it would hold
        // the table, and so this slab.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}
