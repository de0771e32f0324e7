//! What all threads of the pool share: the tables, what is known of each donor, and who to tell.

use crate::config::{MAX_DONORS, PoolConfig};
use crate::coordinator::book::Grade;
use crate::coordinator::news::News;
use crate::donor::view::Donor;
use crate::io::mailbox::Mailbox;
use crate::metadata::extents::ExtentTable;
use crate::metadata::slots::{SlotRun, SlotTable};
use crate::repair::task::Task;
use annex_fabric::Arena;
use annex_shared::config::{TimeSpan, lease_to_outlast};
use annex_shared::ids::{DonorId, ExtentId, SlotIdx};
use parking_lot::{Condvar, Mutex};
use std::collections::HashSet;
use std::sync::atomic::Ordering::{AcqRel, Acquire};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::sync::mpsc::Sender;
use std::sync::{Arc, OnceLock};

/// Shared by the pool's handle, its lanes, the coordinator and the donor threads.
pub(crate) struct PoolCore {
    pub config: PoolConfig,
    pub extents: ExtentTable,
    pub slots: SlotTable,
    /// The donor that is the spill file.
    pub spill: Option<DonorId>,
    /// By `DonorId`: every donor the extent table names. It grows, and never shrinks.
    donors: Box<[OnceLock<Donor>]>,
    pub lanes: Mutex<Vec<LaneEntry>>,
    coordinator: Sender<News>,
    repair: Sender<Task>,
    /// Grows whenever a replica changes its state, so that lanes look again at what they wait for.
    changes: AtomicU64,
    pub counts: Counts,
    /// Held while donors are added or removed.
    pub membership: Mutex<()>,
    /// The extents that slots are taken from. Its lock makes `reserve` one at a time.
    pub allocatable: Mutex<AllocatableExtents>,
    /// Signalled when there is a new extent, or when it is clear that it gets none.
    pub allocatable_changed: Condvar,
    pub stopping: AtomicBool,
    pub discarded: Discarded,
}

/// Slots whose bytes are nobody's: they have references and no content that was ever reported done.
/// Those in quarantine, and those that were taken to be written later. To be asked while one holds
/// a reference of one's own: what is written from then on is written to every replica there is.
#[derive(Debug, Default)]
pub(crate) struct Discarded(Mutex<HashSet<SlotIdx>>);

impl Discarded {
    pub fn add(&self, run: SlotRun) {
        self.0.lock().extend(run.slots());
    }

    /// Before the quarantine's own reference goes.
    pub fn remove(&self, run: SlotRun) {
        let mut slots = self.0.lock();
        run.slots().for_each(|slot| {
            slots.remove(&slot);
        });
    }

    pub fn has(&self, slot: SlotIdx) -> bool {
        self.0.lock().contains(&slot)
    }
}

/// What the pool's repairs did and have to do.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    /// Pages copied to syncing replicas.
    pub copied: AtomicU64,
    /// Pages rewritten after wrong bytes.
    pub healed: AtomicU64,
    /// Pages the scrubber read, on all replicas together.
    pub scrubbed: AtomicU64,
    /// Reads that were sent to a second replica because the first one was slow.
    pub hedged: AtomicU64,
    /// Pages that no replica could give when they were to be copied.
    pub lost_pages: AtomicU64,
    /// Heals asked for and not done yet.
    pub heals: AtomicU32,
    /// Extents with two replicas in one failure domain.
    pub crowded: AtomicU32,
    /// Replicas on their way to another donor.
    pub moving: AtomicU32,
    /// Of those, the ones that no other donor has room for.
    pub stuck: AtomicU32,
}

/// What a control thread must know of a lane to open an endpoint for it.
pub(crate) struct LaneEntry {
    pub id: u32,
    pub arena: Arc<Arena>,
    pub mailbox: Arc<Mailbox>,
}

/// Extents that `reserve` may use.
#[derive(Debug, Default)]
pub(crate) struct AllocatableExtents {
    pub extents: Vec<Allocatable>,
    /// Pages asked for and not had since the coordinator last looked.
    pub wanted: u64,
    /// Pages taken since the coordinator last looked.
    pub taken: u64,
    /// How often the coordinator looked.
    pub looks: u64,
    /// No extent is on its way: waiting is of no use.
    pub dry: bool,
    /// Nothing was to be had lately, and nothing is free.
    pub full: bool,
    /// Donors have no room: what the last tier has is taken.
    pub spills: bool,
    /// Too few donors are there for a whole extent: what degraded ones have is taken.
    pub degrades: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Allocatable {
    pub extent: ExtentId,
    pub grade: Grade,
}

impl PoolCore {
    pub fn new(
        config: PoolConfig,
        extents: ExtentTable,
        slots: SlotTable,
        spill: Option<DonorId>,
        coordinator: Sender<News>,
        repair: Sender<Task>,
    ) -> Self {
        PoolCore {
            config,
            extents,
            slots,
            spill,
            donors: (0..MAX_DONORS).map(|_| OnceLock::new()).collect(),
            lanes: Mutex::default(),
            coordinator,
            repair,
            changes: AtomicU64::new(0),
            counts: Counts::default(),
            membership: Mutex::default(),
            allocatable: Mutex::default(),
            allocatable_changed: Condvar::new(),
            stopping: AtomicBool::new(false),
            discarded: Discarded::default(),
        }
    }

    /// Tells the coordinator. Dropped silently when the pool is shutting down and nobody listens.
    pub fn tell(&self, news: News) {
        let _ = self.coordinator.send(news);
    }

    /// Tells the repair thread, likewise.
    pub fn mend(&self, task: Task) {
        let _ = self.repair.send(task);
    }

    /// A replica takes writes: where none is left nothing can be written.
    pub fn is_writable(&self, extent: ExtentId) -> bool {
        self.extents.replicas(extent).is_some_and(|replicas| replicas.live() > 0)
    }

    #[inline]
    pub fn changes(&self) -> u64 {
        self.changes.load(Acquire)
    }

    /// A replica changed its state: who waits for it looks again, soon.
    pub fn changed(&self) {
        self.changes.fetch_add(1, AcqRel);
    }

    /// Marks a replica as lost. True if it counted for something until now.
    pub fn mark_lost(&self, extent: ExtentId, index: u8, generation: u16) -> bool {
        let was_kept = self.extents.mark_lost(extent, index, generation);
        if was_kept {
            self.changed();
        }
        was_kept
    }

    /// Marks a replica as stale. True if it was written until now.
    pub fn mark_stale(&self, extent: ExtentId, index: u8, generation: u16) -> bool {
        let was_written = self.extents.mark_stale(extent, index, generation);
        if was_written {
            self.changed();
        }
        was_written
    }

    /// After changes: lanes look at what they wait for.
    pub fn wake_lanes(&self) {
        self.lanes.lock().iter().for_each(|l| l.mailbox.wake());
    }

    #[inline]
    /// Nothing is free, and nothing more could be had of donors at the last try.
    pub fn is_full(&self) -> bool {
        let allocatable = self.allocatable.lock();
        (allocatable.dry || allocatable.full)
            && allocatable.extents.iter().all(|entry| self.slots.free_count(entry.extent) == 0)
    }

    pub fn is_spill(&self, donor: DonorId) -> bool {
        self.spill == Some(donor)
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

    #[inline]
    pub fn donor(&self, id: DonorId) -> Option<&Donor> {
        self.donors.get(usize::from(id.0))?.get()
    }

    /// What people know it by.
    pub fn donor_name(&self, id: DonorId) -> String {
        self.donor(id).map_or_else(|| id.to_string(), |d| format!("donor {}", d.view.lock().name))
    }

    /// The same without the word before it: what events are about.
    pub fn plain_name(&self, id: DonorId) -> String {
        self.donor(id).map_or_else(|| id.to_string(), |d| d.view.lock().name.clone())
    }

    /// What a donor's terms mean for those who rely on annexd being away for a while.
    pub fn lease_warning(&self, donor: &Donor) -> Option<String> {
        let (view, wait) = (donor.view.lock(), self.config.takeover_wait);
        let enough = lease_to_outlast(wait.0);
        let lease = view.lease.filter(|lease| *lease < enough && !self.is_spill(donor.id)).map(TimeSpan)?;
        Some(format!(
            "donor {} ends leases after {lease}, a third of which may be over when annexd is killed, and annexd's takeover_wait \
             is {wait}: should the leases end before the next annexd is there, the KV API's keys and programs' pages there are \
             lost. Give annex-agent a lease_ttl of {} or more",
            view.name,
            TimeSpan(enough)
        ))
    }

    pub fn donors(&self) -> impl Iterator<Item = &Donor> {
        self.donors.iter().filter_map(OnceLock::get)
    }

    /// Makes a donor known. False if its number is taken.
    pub fn add_donor(&self, donor: Donor) -> bool {
        self.donors.get(usize::from(donor.id.0)).is_some_and(|entry| entry.set(donor).is_ok())
    }
}
