//! What all threads of the pool share: the tables, what is known of each donor, and who to tell.

use super::config::PoolConfig;
use super::extents::ExtentTable;
use super::keeper::News;
use super::mailbox::Mailbox;
use super::slots::{SlotRun, SlotTable};
use annex_shared::api::DonorState;
use annex_shared::fabric::{Arena, Transport};
use annex_shared::ids::{DonorId, ExtentId, SlotIdx};
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Shared by the pool's handle, its lanes, the keeper and the donor threads.
pub(super) struct Core {
    pub config: PoolConfig,
    pub extents: ExtentTable,
    pub slots: SlotTable,
    /// By `DonorId`: every donor the extent table names.
    pub donors: Vec<Donor>,
    pub lanes: Mutex<Vec<LaneEntry>>,
    keeper: Sender<News>,
    /// Grows whenever a replica is lost, so that lanes look again at what they wait for.
    losses: AtomicU64,
    /// The extents that slots are taken from. Its lock makes `reserve` one at a time.
    pub shelf: Mutex<Shelf>,
    /// Signalled when the shelf got a new extent, or when it is clear that it gets none.
    pub shelf_changed: Condvar,
    pub stopping: AtomicBool,
}

/// What a control thread must know of a lane to open an endpoint for it.
pub(super) struct LaneEntry {
    pub id: u32,
    pub arena: Arc<Arena>,
    pub mailbox: Arc<Mailbox>,
}

/// Extents that `reserve` may use.
#[derive(Debug, Default)]
pub(super) struct Shelf {
    pub extents: Vec<Shelved>,
    /// Pages asked for and not had since the keeper last looked.
    pub wanted: u64,
    /// Pages taken since the keeper last looked.
    pub taken: u64,
    /// No extent is on its way: waiting is of no use.
    pub dry: bool,
    /// Nothing was to be had lately, and nothing is free.
    pub full: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shelved {
    pub extent: ExtentId,
    /// All replicas live.
    pub healthy: bool,
}

/// One donor, as the data plane and the listings see it.
pub(super) struct Donor {
    pub id: DonorId,
    pub address: String,
    pub stats: DonorStats,
    pub view: Mutex<DonorView>,
}

/// Counted by lanes.
#[derive(Debug, Default)]
pub(super) struct DonorStats {
    pub reads: AtomicU64,
    pub writes: AtomicU64,
    pub errors: AtomicU64,
    pub checksum_errors: AtomicU64,
    /// Smoothed time of an operation, in nanoseconds; 0 = not known.
    pub latency_ns: AtomicU64,
}

/// Written by the donor's control thread.
#[derive(Clone, Debug)]
pub(super) struct DonorView {
    pub name: String,
    pub state: DonorState,
    pub transport: Option<Transport>,
    /// Why this transport, or why there is no connection.
    pub why: String,
    pub held: u32,
    pub free: u32,
    pub capacity: u32,
}

impl Core {
    pub fn new(
        config: PoolConfig,
        extents: ExtentTable,
        slots: SlotTable,
        donors: Vec<Donor>,
        keeper: Sender<News>,
    ) -> Self {
        Core {
            config,
            extents,
            slots,
            donors,
            lanes: Mutex::default(),
            keeper,
            losses: AtomicU64::new(0),
            shelf: Mutex::default(),
            shelf_changed: Condvar::new(),
            stopping: AtomicBool::new(false),
        }
    }

    /// Tells the keeper. Dropped silently when the pool is shutting down and nobody listens.
    pub fn tell(&self, news: News) {
        let _ = self.keeper.send(news);
    }

    #[inline]
    pub fn losses(&self) -> u64 {
        self.losses.load(Acquire)
    }

    /// Marks a replica as lost; everybody who waits for it finds out. True if it was live until now.
    pub fn lose(&self, extent: ExtentId, replica: u8) -> bool {
        let was_live = self.extents.lose(extent, replica);
        if was_live {
            self.losses.fetch_add(1, AcqRel);
        }
        was_live
    }

    /// After losses: lanes look at what they wait for.
    pub fn wake_lanes(&self) {
        lock(&self.lanes).iter().for_each(|l| l.mailbox.wake());
    }

    pub fn retain(&self, slot: SlotIdx) -> bool {
        self.slots.retain(slot)
    }

    pub fn release(&self, slot: SlotIdx) -> bool {
        self.slots.release(&self.extents, slot)
    }

    pub fn release_run(&self, run: SlotRun) {
        for slot in run.slots() {
            if !self.release(slot) {
                tracing::error!("{slot} was released more often than retained");
            }
        }
    }

    pub fn donor(&self, id: DonorId) -> Option<&Donor> {
        self.donors.get(usize::from(id.0))
    }
}

impl DonorStats {
    /// Folds one operation's time into the smoothed one.
    pub fn observe(&self, ns: u64) {
        let old = self.latency_ns.load(Relaxed);
        self.latency_ns.store(if old == 0 { ns } else { old - old / 16 + ns / 16 }, Relaxed);
    }
}

/// A lock whose holder panicked is still a lock: what it guards here is valid after each statement.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
