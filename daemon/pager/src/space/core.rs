//! What is known of an address space, and what is under way in it: everything that its lock guards.

use crate::events::Window;
use crate::evict::MoveBatch;
use crate::fault::{Fault, Prefetcher};
use crate::inject::stub::Gate;
use crate::kernel::Pagemap;
use crate::page::{PageIdx, Range};
use crate::sched::CpuAffinity;
use crate::space::region::Regions;
use crate::space::table::{JOURNAL_MESSAGES, Record, Table};
use annex_shared::ids::SlotIdx;
use std::collections::BTreeSet;

pub struct Core {
    pub table: Table,
    pub regions: Regions,
    pub(crate) prefetcher: Prefetcher,
    pub affinity: CpuAffinity,
    /// The clock's lap, modulo `policy::LAPS`.
    pub lap: u8,
    /// Pages that the kernel touches where it can't wait for them (see `thread_exit`), never to be
    /// evicted; forgotten when they are unmapped.
    pub pins: BTreeSet<PageIdx>,
    /// Pages that are to stay resident, and were evicted before that was known.
    pub wanted: Vec<PageIdx>,
    /// Changes of which it is not known yet whether all that happened with them have been read.
    pub window: Window,
    /// The moves that are being made, see [`guard`](super::guard).
    pub(crate) moves: Option<Box<MoveBatch>>,
    /// To be rung for: staging is to be emptied.
    pub(crate) release: Option<Gate>,
    /// There was a fault since the last moves began.
    pub(crate) faulted: bool,
    /// Something went wrong that makes further eviction unsafe, but what is evicted can still be
    /// brought back.
    pub frozen: bool,
    /// Pages that are evicted by their records, and may be there all the same: their install was
    /// cut short by the end of an annexd.
    pub suspects: BTreeSet<PageIdx>,
    /// Once the program has put guards over evicted pages.
    pub(crate) guards: Option<GuardRegions>,
    /// Slots that the change under way lets go of.
    pub(crate) released: Vec<SlotIdx>,
    pub(crate) faults: Vec<Fault>,
}

/// What a space has for its guards, from the first on.
pub struct GuardRegions {
    pub(crate) pagemap: Pagemap,
    /// Evicted pages that are to come back.
    pub(crate) wanted: Vec<PageIdx>,
}

impl Core {
    pub fn new(table: Table) -> Core {
        let is_frozen = table.is_frozen();
        Core {
            table,
            regions: Regions::default(),
            prefetcher: Prefetcher::default(),
            affinity: CpuAffinity::default(),
            lap: 0,
            pins: BTreeSet::new(),
            wanted: Vec::new(),
            window: Window::default(),
            moves: None,
            release: None,
            faulted: false,
            frozen: is_frozen,
            suspects: BTreeSet::new(),
            guards: None,
            released: Vec::new(),
            faults: Vec::with_capacity(JOURNAL_MESSAGES),
        }
    }

    /// Writes down who is suspected; call it when that has changed.
    pub fn note_suspects(&self) {
        let mut ranges: Vec<(PageIdx, u32)> = Vec::new();
        for page in &self.suspects {
            match ranges.last_mut() {
                Some((first, n)) if first.plus(u64::from(*n)) == *page => *n += 1,
                _ => ranges.push((*page, 1)),
            }
        }
        if !self.table.note_suspects(&ranges) {
            tracing::error!("more pages are half installed than can be noted");
        }
    }

    /// Pages that were absent are about to be there: no span may take them along unseen.
    pub(crate) fn make_way(&mut self, first: PageIdx, pages: u64) {
        self.moves.iter_mut().for_each(|moves| moves.make_way((first, first.plus(pages))));
    }

    /// Evicted pages are about to be installed, or poisoned: noted until [`Table::installed`].
    pub(crate) fn installing(&mut self, first: PageIdx, pages: u64) {
        self.make_way(first, pages);
        self.table.installing(first, pages);
    }

    /// It is no suspect any more. True if it was.
    pub(crate) fn clear_suspect(&mut self, page: PageIdx) -> bool {
        let was = !self.suspects.is_empty() && self.suspects.remove(&page);
        if was {
            self.note_suspects();
        }
        was
    }

    pub fn has_copies(&self, (from, to): Range) -> bool {
        let mut has = false;
        self.table.walk(from, to, |_, record| has |= record.slot().is_some());
        has
    }

    /// These pages stay resident, and come back if they are evicted.
    pub fn keep(&mut self, pages: impl IntoIterator<Item = PageIdx>) {
        for page in pages {
            self.pins.insert(page);
            if matches!(self.table.record(page), Record::Evicted(_)) {
                self.wanted.push(page);
            }
        }
    }

    /// Evicted pages that are to come back: they stay, or guards come and go around them.
    pub fn take_wanted(&mut self) -> Vec<PageIdx> {
        let mut wanted = std::mem::take(&mut self.wanted);
        wanted.extend(self.guards.as_mut().map(|g| std::mem::take(&mut g.wanted)).unwrap_or_default());
        wanted
    }
}
