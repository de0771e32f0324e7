//! One address space: its userfaultfd, its page table, and the one order in which things happen to
//! it.
//!
//! Everything that decides where a page is happens under the space's lock: reading messages and
//! applying them, checking a record and installing its page, and between the moves of an eviction,
//! which are made without it ([`guard`](super::guard)). The lock is never held across a fabric
//! operation that has to be waited for. The rules that make this right (FORK, REMAP, REMOVE and
//! UNMAP are called *changes*):
//!
//! - All changes that were read are applied before any fault that was read is served: once a change
//!   is read the app goes on, and a fault served first would alter the records that, say, a fork's
//!   child must inherit.
//! - While a change is unread, COPY, WRITEPROTECT and MOVE answer EAGAIN. So an install or an
//!   eviction that succeeds under the lock has met the address space that the records describe.
//! - REMOVE comes *before* the kernel drops the pages. Until the app touches such a page anew it
//!   may be about to vanish, so its record is *removed* and it is not evicted: evicting it would
//!   bring back what the app threw away.
//!
//! Lock order: [`Space::evicting`] before [`Space::core`]; a parent's core before its new child's.

use crate::app::App;
use crate::evict::{Clock, ThreadExits};
use crate::inject::stub::Stub;
use crate::kernel::uffd::Uffd;
use crate::kernel::{Mark, Mm, Pagemap};
use crate::recovery::staged::SpaceRecords;
use crate::space::core::Core;
use crate::space::identity::{Identity, SpaceId};
use crate::space::table::Table;
use parking_lot::Mutex;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::time::Instant;

/// What the evictor keeps of a space. Held by whoever evicts, restores or detaches.
pub struct Evicting {
    pub stub: Option<Stub>,
    pub clock: Clock,
    pub exits: ThreadExits,
}

pub struct Space {
    pub id: SpaceId,
    pub identity: Arc<Identity>,
    pub app: Arc<App>,
    pub uffd: Uffd,
    pub evicting: Mutex<Evicting>,
    pub(crate) core: Mutex<Core>,
    /// The stub has the CPU that the faults come from.
    pub stub_shares_cpu: AtomicBool,
    /// What is evicted lies in short spans.
    pub is_scattered: AtomicBool,
    /// The staging area, whose REMOVE events are our own: the annexd before may have had it emptied
    /// while it was registered.
    pub(crate) staging: Mutex<(u64, u64)>,
    dead: AtomicBool,
    /// The parent that a young child (see `young`) waits for, and since when it does.
    pub(crate) elder: Mutex<Option<(Weak<Space>, Instant)>>,
    pub(super) last_evicted: AtomicU64,
    pub(super) last_overhead: AtomicU64,
    pub(super) last_slots: AtomicU64,
    /// The thread that faulted last, until somebody has looked.
    faulted: AtomicI32,
}

impl Space {
    pub fn new(id: SpaceId, app: Arc<App>, uffd: Uffd, table: Table) -> Space {
        uffd.keep_open();
        Space {
            id,
            identity: Arc::new(Identity::new(id)),
            app,
            uffd,
            evicting: Mutex::new(Evicting { stub: None, clock: Default::default(), exits: Default::default() }),
            core: Mutex::new(Core::new(table)),
            stub_shares_cpu: AtomicBool::new(false),
            is_scattered: AtomicBool::new(false),
            staging: Mutex::new((0, 0)),
            dead: AtomicBool::new(false),
            elder: Mutex::default(),
            last_evicted: AtomicU64::new(0),
            last_overhead: AtomicU64::new(0),
            last_slots: AtomicU64::new(0),
            faulted: AtomicI32::new(0),
        }
    }

    pub fn pid(&self) -> Option<i32> {
        self.identity.pid()
    }

    /// The stub's PID, without waiting for whoever is using it.
    pub fn stub_pid(&self) -> Option<i32> {
        self.identity.stub_pid()
    }

    /// The address space itself.
    pub fn mm(&self) -> Option<Arc<Mm>> {
        self.identity.mm()
    }

    /// What tells the address space from all others.
    pub fn mark(&self) -> Option<Mark> {
        self.identity.mark()
    }

    /// A task that lives in the address space, to look at its mappings.
    pub fn task(&self) -> Option<i32> {
        self.identity.task()
    }

    /// The page map of the address space.
    pub fn pagemap(&self) -> io::Result<Pagemap> {
        self.identity.pagemap()
    }

    /// Whether a process, which lives, has become another program and left this address space.
    pub fn was_left_by(&self, pid: i32) -> bool {
        self.identity.was_left_by(pid)
    }

    /// It was forked, and what of its parent's changes it has is not decided yet (see `young`).
    pub fn is_young(&self) -> bool {
        self.elder.lock().is_some()
    }

    /// A thread has faulted; its ID in its own PID namespace.
    pub fn faulted(&self, thread: i32) {
        self.faulted.store(thread, Relaxed);
    }

    /// The thread that faulted last, if there was a fault since the last call.
    pub fn last_faulted(&self) -> Option<i32> {
        Some(self.faulted.swap(0, Relaxed)).filter(|thread| *thread != 0)
    }

    pub fn is_dead(&self) -> bool {
        self.dead.load(Relaxed)
    }

    pub fn set_dead(&self) {
        self.dead.store(true, Relaxed);
    }

    /// The stub's staging area is no more.
    pub fn forget_staging(&self) {
        *self.staging.lock() = (0, 0);
    }

    /// The records, for whoever has the core.
    pub fn records<'a>(&'a self, core: &'a mut Core) -> SpaceRecords<'a> {
        let Core { table, regions, lap, .. } = core;
        SpaceRecords { table, regions, lap: *lap, uffd: &self.uffd, identity: &self.identity, app: &self.app }
    }
}
