//! The slabs that a connector has mapped, and how its endpoints see them without waiting for each other.
//!
//! The table of mappings is never changed, only replaced. An endpoint keeps a reference to the one it saw last, and looks at a version
//! number to learn that there is a newer one. A replaced table goes away when no endpoint holds it any more, and always on the connector's
//! side ([`Slabs::sweep`]): unmapping 64 MiB is no work for a thread that serves faults.

use super::board::{BoardView, sealed_len};
use crate::ids::{Incarnation, RemoteAddr, Rkey};
use crate::page::PAGE_SIZE;
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::protocol::Region;

/// The mappings at one point in time.
pub(super) type Table = HashMap<Rkey, Arc<Slab>>;

/// What a connector shares with its endpoints.
#[derive(Debug)]
pub(super) struct Slabs {
    pub(super) board: BoardView,
    pub(super) incarnation: Incarnation,
    /// False once the agent is gone.
    pub(super) is_alive: AtomicBool,
    version: AtomicU64,
    tables: Mutex<Tables>,
}

#[derive(Debug, Default)]
struct Tables {
    current: Arc<Table>,
    replaced: Vec<Arc<Table>>,
}

/// A slab's memory, shared with the agent.
#[derive(Debug)]
pub(super) struct Slab {
    base: NonNull<u8>,
    len: usize,
    pub(super) board_slot: u32,
}

// SAFETY: the mapping is plain shared memory without thread affinity; it is accessed through raw pointers and atomics only.
unsafe impl Send for Slab {}
// SAFETY: as above.
unsafe impl Sync for Slab {}

impl Slabs {
    pub(super) fn new(board: BoardView, incarnation: Incarnation) -> Self {
        let (version, tables) = (AtomicU64::new(1), Mutex::default());
        Slabs { board, incarnation, is_alive: AtomicBool::new(true), version, tables }
    }

    /// Changes with every new table.
    #[inline]
    pub(super) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// The newest table and its version. The lock behind it is only ever held for a few pointer moves.
    pub(super) fn table(&self) -> (Arc<Table>, u64) {
        let tables = self.lock();
        (tables.current.clone(), self.version())
    }

    pub(super) fn contains(&self, rkey: Rkey) -> bool {
        self.lock().current.contains_key(&rkey)
    }

    pub(super) fn insert(&self, rkey: Rkey, slab: Slab) {
        let slab = Arc::new(slab);
        self.replace(|table| {
            table.insert(rkey, slab);
        });
    }

    pub(super) fn remove(&self, rkey: Rkey) {
        self.replace(|table| {
            table.remove(&rkey);
        });
    }

    /// Unmaps what no endpoint can reach any more.
    pub(super) fn sweep(&self) {
        let unused: Vec<_> = {
            // A replaced table that only this list holds can't gain holders: endpoints take the current one only.
            self.lock().replaced.extract_if(.., |table| Arc::strong_count(table) == 1).collect()
        };
        drop(unused);
    }

    /// Control threads only, one at a time (the connector sees to it).
    fn replace(&self, change: impl FnOnce(&mut Table)) {
        let (old, _) = self.table();
        let mut table = Table::clone(&old);
        drop(old);
        change(&mut table);
        let table = Arc::new(table);
        {
            let mut tables = self.lock();
            let old = std::mem::replace(&mut tables.current, table);
            tables.replaced.push(old);
            self.version.fetch_add(1, Ordering::Release);
        }
        self.sweep();
    }

    fn lock(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Slab {
    /// Maps a slab, every page present, so that no operation takes a first-touch fault.
    pub(super) fn map(fd: &OwnedFd, region: Region) -> io::Result<Slab> {
        let refuse = |what| io::Error::new(io::ErrorKind::InvalidData, what);
        let end = region.offset.checked_add(region.len).ok_or_else(|| refuse("the slab's range overflows"))?;
        if sealed_len(fd)? < end || region.len == 0 || !region.offset.is_multiple_of(PAGE_SIZE as u64) {
            return Err(refuse("the slab does not lie in the memfd that came with it"));
        }
        let len = region.len as usize;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_SHARED | libc::MAP_POPULATE;
        let offset = region.offset as libc::off_t;
        // SAFETY: a fresh mapping at an address of the kernel's choice touches nothing that exists.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, flags, fd.as_raw_fd(), offset) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the range was just mapped. A child of annexd has no use for it; that the advice fails is no harm.
        unsafe { libc::madvise(base, len, libc::MADV_DONTFORK) };
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
        // SAFETY: mapped in `map` with this length; whoever could have a pointer into it would hold the table, and so this slab.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}
