//! Which slots are taken and given up, and how much room there is.

use super::Pool;
use crate::coordinator::book::Grade;
use crate::coordinator::news::News;
use crate::coordinator::placement::extents_possible;
use crate::core::{Allocatable, AllocatableExtents};
use crate::metadata::slots::SlotRun;
use annex_shared::api::DonorState;
use annex_shared::ids::SlotIdx;
use annex_shared::page::PAGE_SIZE;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::time::{Duration, Instant};

/// An extent is worth filling on while a quarter of it is free.
const ROOMY: u32 = 4;
/// How long `reserve` waits for an extent that is on its way.
const RESERVE_WAIT: Duration = Duration::from_secs(1);

impl Pool {
    /// Takes up to `pages` slots, as contiguous as can be, each with one reference, and appends
    /// their runs. Less than asked for means that the pool is full now. May wait up to about a
    /// second when extents are on their way.
    pub(crate) fn take_slots(&self, pages: usize, runs: &mut Vec<SlotRun>) -> usize {
        let until = Instant::now() + RESERVE_WAIT;
        let mut got = 0;
        let mut allocatable = self.core.allocatable.lock();
        let mut good_only = true;
        // What is known of extents may be from before the first donor was there: only a fresh word
        // counts.
        let looks = allocatable.looks;
        while got < pages {
            if let Some(run) = self.take_best(&allocatable, (pages - got).min(u32::MAX as usize) as u32, good_only) {
                got += run.count as usize;
                allocatable.taken += u64::from(run.count);
                runs.push(run);
                continue;
            }
            let left = until.saturating_duration_since(Instant::now());
            let dry = allocatable.dry && allocatable.looks > looks + 1;
            if good_only && (dry || left.is_zero()) {
                // Degraded extents take pages only when there is nothing better.
                good_only = false;
                continue;
            }
            if dry || left.is_zero() || self.core.stopping.load(Acquire) {
                break;
            }
            allocatable.wanted = (pages - got) as u64;
            self.core.tell(News::Wanted);
            self.core.allocatable_changed.wait_for(&mut allocatable, left);
        }
        if got < pages {
            allocatable.wanted = (pages - got) as u64;
        }
        // The coordinator takes the next extent before this one is used up.
        let slots = u64::from(self.core.extents.slots_per_extent().unwrap_or(0));
        if got < pages || allocatable.taken >= slots / 8 {
            self.core.tell(News::Taken);
        }
        drop(allocatable);
        got
    }

    /// Reserved slots that are not written soon: what is in them is worth nothing to anybody.
    pub fn put_aside(&self, run: SlotRun) {
        self.core.discarded.add(run);
    }

    /// Slots that were put aside are going to be written.
    pub fn will_write(&self, run: SlotRun) {
        self.core.discarded.remove(run);
    }

    /// Gives up a reference to each of the run's slots, whose bytes nobody needs, once no operation
    /// that was under way at the last annexd's end can reach them any more.
    pub fn rest(&self, run: SlotRun) {
        self.core.tell(News::Discard(run));
    }

    /// One more reference to a slot that has at least one.
    pub fn retain(&self, slot: SlotIdx) {
        if !self.core.retain(slot) {
            tracing::error!("{slot} was retained while free");
        }
    }

    /// How many references there are to a slot.
    pub fn references(&self, slot: SlotIdx) -> u32 {
        self.core.slots.references(slot)
    }

    /// One reference less; the last one frees the slot.
    pub fn release(&self, slot: SlotIdx) {
        if !self.core.release(slot) {
            tracing::error!("{slot} was released more often than retained");
        }
    }

    /// Slots are numbered extent after extent: this many to each (0 before the first donor has said
    /// how large its slabs are).
    pub fn slots_per_extent(&self) -> u32 {
        self.core.extents.slots_per_extent().unwrap_or(0)
    }

    /// Whether a page is what was last written to the slot.
    pub fn holds(&self, slot: SlotIdx, page: &[u8]) -> bool {
        self.core.slots.holds(slot, page)
    }

    /// Whether a slot that is freed now can be taken again: some extent has a replica that takes
    /// writes.
    pub fn takes_writes(&self) -> bool {
        self.core.allocatable.lock().extents.iter().any(|entry| self.core.is_writable(entry.extent))
    }

    /// More room is wanted than there is, and none is on its way, as far as is known. What donors
    /// have told of their room may be older: one that has begun to drain lends nothing.
    pub fn is_dry(&self) -> bool {
        self.core.allocatable.lock().dry
    }

    /// Grows whenever a replica is stale, back, lost, or made anew: what was said of the pool's
    /// room before may not hold.
    pub fn replica_changes(&self) -> u64 {
        self.core.changes()
    }

    /// Whether a replica of the slot takes writes now.
    pub fn takes_writes_to(&self, slot: SlotIdx) -> bool {
        self.core.extents.locate(slot).is_some_and(|(extent, _)| self.core.is_writable(extent))
    }

    /// How many more pages the pool could take: free in the extents held, and what donors say is
    /// free.
    pub fn available_pages(&self) -> u64 {
        let Some(slots) = self.core.extents.slots_per_extent() else { return 0 };
        let allocatable = self.core.allocatable.lock();
        let held = allocatable.extents.len() as u64;
        // Degraded ones are taken too, when there is nothing better.
        let usable =
            allocatable.extents.iter().filter(|s| s.grade != Grade::Degraded || self.core.is_writable(s.extent));
        let free: u64 = usable.map(|s| u64::from(self.core.slots.free_count(s.extent))).sum();
        let degrades = allocatable.degrades;
        drop(allocatable);
        let real = self.core.donors().filter(|d| self.is_real(d) && !d.silent.load(Relaxed));
        let views = real.map(|d| d.view.lock().clone());
        let donors: Vec<u64> = views.filter(|v| v.state == DonorState::Up).map(|v| u64::from(v.free)).collect();
        let replicas = usize::from(self.core.config.replicas);
        let on_donors = match degrades {
            // Each of them may be the only one that a new extent has.
            true => donors.into_iter().max().unwrap_or(0),
            false => extents_possible(&donors, replicas),
        };
        let more = match self.core.spill_room() {
            // The donors' extents will have their backups, or their second replicas, there.
            room if replicas == 1 || degrades => on_donors.max(room),
            room => on_donors + room,
        };
        let allowed = match self.core.config.max_bytes.0 {
            0 => more,
            max => more.min((max / (u64::from(slots) * PAGE_SIZE as u64)).saturating_sub(held)),
        };
        free + allowed * u64::from(slots)
    }

    /// All that the pool holds and could take.
    pub fn total_pages(&self) -> u64 {
        self.info().used / PAGE_SIZE as u64 + self.available_pages()
    }

    /// Where donors have it, else in the last tier if donors have no room, else wherever it can be.
    fn take_best(&self, allocatable: &AllocatableExtents, want: u32, good_only: bool) -> Option<SlotRun> {
        let spilled =
            || (allocatable.spills || !good_only).then(|| self.take(allocatable, want, Grade::LastTier)).flatten();
        let degraded =
            || (allocatable.degrades || !good_only).then(|| self.take(allocatable, want, Grade::Degraded)).flatten();
        self.take(allocatable, want, Grade::Whole).or_else(spilled).or_else(degraded)
    }

    /// A run of slots from the fullest extent that still has a good part free, else from the
    /// emptiest: extents stay dense, so that few are held, and yet a batch finds its slots near
    /// each other.
    fn take(&self, allocatable: &AllocatableExtents, want: u32, grade: Grade) -> Option<SlotRun> {
        let slots = self.core.extents.slots_per_extent()?;
        let free = |s: &&Allocatable| self.core.slots.free_count(s.extent);
        // Nothing can be written where no replica is left.
        let alive = |s: &&Allocatable| grade != Grade::Degraded || self.core.is_writable(s.extent);
        let candidates = || allocatable.extents.iter().filter(|s| s.grade == grade).filter(alive);
        let roomy = candidates().filter(|s| free(s) >= slots / ROOMY).min_by_key(free);
        let best = roomy.or_else(|| candidates().filter(|s| free(s) > 0).max_by_key(free))?;
        self.core.slots.take(best.extent, slots, want)
    }
}
