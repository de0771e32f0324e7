//! The memory behind the slabs, and what is to be done to it.

use crate::slab::Slab;
use crate::store::saved::SavedMemory;
use crate::store::{SlabName, inode};
use annex_shared::ids::SlabId;
use parking_lot::{Mutex, RwLock};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// One place for a slab, for the agent's life.
#[derive(Debug, Default)]
pub(super) struct Slot {
    /// Read-held for each operation, write-held to bring in and take out memory. Whoever holds it
    /// may lock the book, never the reverse.
    pub(super) memory: RwLock<Option<Memory>>,
    /// The lease: written under the book's lock, `until` last for a new one and first for an ended
    /// one. 0 = none.
    pub(super) until: AtomicU64,
    pub(super) client: AtomicU64,
    pub(super) rkey: AtomicU64,
    /// When it was lent, and when an operation was last done in it: for recalls.
    pub(super) leased: AtomicU64,
    pub(super) used: AtomicU64,
    /// The memory's inode, for the lease state.
    pub(super) inode: AtomicU64,
    /// The next memory is kept under the slab's second name.
    pub(super) next_is_second: AtomicBool,
}

#[derive(Debug)]
pub(super) struct Memory {
    pub(super) slab: Slab,
    pub(super) name: SlabName,
    /// A client has had the descriptor: it may keep the memory mapped for ever.
    pub(super) is_shared: AtomicBool,
    /// That was under another agent's key. It is moved before it is used under ours.
    pub(super) is_stale: bool,
}

impl Memory {
    pub(super) fn saved(&self) -> SavedMemory {
        let is_shared = self.is_shared.load(Ordering::Relaxed);
        SavedMemory { inode: inode(self.slab.fd()).unwrap_or(0), is_shared }
    }
}

/// What came of making slabs.
#[derive(Debug, Default)]
pub(super) struct Making {
    /// It was said that one is of small pages.
    pub(super) warned_small: AtomicBool,
    /// Why the last one could not be made.
    pub(super) shortcoming: Mutex<Option<String>>,
}

/// A slab to clean, off every hot path.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chore {
    pub(super) slab: SlabId,
    /// Zero the memory and keep it, or give it back to the host.
    pub(super) keep: bool,
}
