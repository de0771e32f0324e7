//! What is read for one fault: the page, and those that its stream makes likely.
//!
//! Pages in a row, forwards or backwards, that lie in consecutive slots are one stretch: one read,
//! one COPY. Pages that a stride sets apart are a read and a COPY each, and so are the stretches of
//! a scan between which something is resident; all are one batch of the lane. What is resident is
//! left out; what is on its way to the donors ends it. What lies a stride apart is not brought if
//! it would put the app over its limit.

use crate::app::App;
use crate::fault::prefetch::{Plan, WIDEST_APART};
use crate::page::{PageIdx, Range};
use crate::space::{Core, Record, Shared};
use annex_shared::ids::SlotIdx;
use std::sync::atomic::Ordering::Relaxed;

/// Consecutive pages in consecutive slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stretch {
    pub first: PageIdx,
    pub slot: SlotIdx,
    pub pages: u32,
}

impl Stretch {
    /// One page.
    pub fn one(page: PageIdx, slot: SlotIdx) -> Stretch {
        Stretch { first: page, slot, pages: 1 }
    }

    /// Takes in a page next to it, if its slot is next to its slots as well and in the same extent.
    fn grow(&mut self, page: PageIdx, slot: SlotIdx, extent: u32) -> bool {
        let follows = page == self.first.plus(self.pages.into()) && slot.0 == self.slot.0 + self.pages;
        let precedes = page.plus(1) == self.first && slot.0 + 1 == self.slot.0;
        let grows = (follows || precedes) && slot.0 / extent == self.slot.0 / extent;
        if grows && precedes {
            (self.first, self.slot) = (page, slot);
        }
        self.pages += u32::from(grows);
        grows
    }

    /// From its first page up to that behind its last.
    pub fn range(&self) -> Range {
        (self.first, self.first.plus(self.pages.into()))
    }

    pub fn contains(&self, page: PageIdx) -> bool {
        let (first, end) = self.range();
        (first..end).contains(&page)
    }

    /// One page of it.
    pub fn only(&self, page: PageIdx) -> Stretch {
        Stretch::one(page, SlotIdx(self.slot.0 + (page.0 - self.first.0) as u32))
    }
}

/// What a fault brings.
#[derive(Debug)]
pub struct Fetch {
    /// With the page that is waited for.
    pub asked: Stretch,
    /// Others that nobody waits for.
    apart: [Option<Stretch>; WIDEST_APART as usize - 1],
}

impl Fetch {
    /// The page that is waited for, if nothing else comes with it.
    pub fn alone(&self) -> Option<Stretch> {
        Some(self.asked).filter(|asked| asked.pages == 1 && self.apart.iter().all(Option::is_none))
    }

    pub fn apart(&self) -> impl Iterator<Item = Stretch> {
        self.apart.iter().flatten().copied()
    }
}

/// What to read for a fault on `page`, which is evicted to `slot`.
pub fn fetch(core: &mut Core, page: PageIdx, slot: SlotIdx, app: &App, shared: &Shared) -> Fetch {
    let is_out = |page| matches!(core.table.record(page), Record::Evicted(_));
    let plan = core.prefetcher.plan(page, is_out);
    // A scan may go over the limit by its window: were it to shrink just when the evictor is
    // behind, each page would be a fault of its own.
    let most = if plan.is_scan() { plan.pages } else { plan.pages.min(app.room().max(1)) };
    let (fetch, ahead, covered) = stretches(core, &plan, page, slot, most, shared);
    let next = plan.nth(page, covered);
    let sampled = next.is_some_and(is_out);
    let samples = core.prefetcher.brought(ahead, next.unwrap_or(page), sampled);
    app.counters.prefetch_samples.fetch_add(samples.into(), Relaxed);
    app.counters.prefetch_hits.fetch_add(plan.proved.into(), Relaxed);
    fetch
}

/// Those of the first `most` pages of a plan that can be read, which ones (bit n: the nth), and
/// how many pages of the plan were gone through: it ends where there is no place for another
/// stretch.
fn stretches(core: &Core, plan: &Plan, page: PageIdx, slot: SlotIdx, most: u32, shared: &Shared) -> (Fetch, u32, u32) {
    let extent = shared.pool.slots_per_extent().max(1);
    let mut fetch = Fetch { asked: Stretch::one(page, slot), apart: Default::default() };
    let (mut last, mut rest) = (&mut fetch.asked, fetch.apart.iter_mut());
    let mut ahead = 0;
    for nth in 1..most {
        let Some(page) = plan.nth(page, nth) else { return (fetch, ahead, nth) };
        let Record::Evicted(slot) = core.table.record(page) else { continue };
        if shared.in_flight.contains(slot) {
            return (fetch, ahead, nth);
        }
        if !(plan.is_scan() && last.grow(page, slot, extent)) {
            let Some(place) = rest.next() else { return (fetch, ahead, nth) };
            last = place.insert(Stretch::one(page, slot));
        }
        ahead |= 1 << nth;
    }
    (fetch, ahead, most)
}
