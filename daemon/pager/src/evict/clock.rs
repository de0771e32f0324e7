//! The clock: which pages of a space go next.
//!
//! The hand goes over the space's regions in address order. PAGEMAP_SCAN says what is resident, the
//! records say what may go, the heat ([`policy`]) what is cold. Cold pages are gathered into
//! *spans*: consecutive pages, across pages that are evicted already. A span moves in one call, and
//! on every call the kernel interrupts each CPU that runs the app, so long spans are worth having.

use crate::evict::outcome::Outcome;
use crate::evict::policy;
use crate::inject::stub::{STAGING_PART, Stub};
use crate::kernel::process;
use crate::kernel::scan::{Pagemap, Run};
use crate::page::PageIdx;
use crate::space::address_space::{Core, Shared, Space};
use crate::space::region;
use crate::space::table::{INTENT_RANGES, Record};
use annex_host::failpoint::failpoint;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A mapping list older than this is read anew when it is needed; reading may take a twentieth of
/// the time.
const REGIONS_FRESH: Duration = Duration::from_millis(500);
/// How often reading it may be disturbed by changes.
const MOST_DISTURBED: u32 = 3;
/// A span does not go on over more evicted pages than this.
const WIDEST_GAP: u64 = 512;
/// Bytes of arguments, or of environment, that are kept resident at most.
const MOST_TITLE: u64 = 1 << 20;
/// Pages of a huge page.
const HUGE: u64 = 512;
/// How long the app may take to get its own copies of pages that a fork left shared.
const UNSHARING: Duration = Duration::from_millis(100);
/// Spans of one batch at most. Each is a call, and after each time that the app has run the kernel
/// interrupts its CPUs for the next one: 12 us a call in a virtual machine. Faults are served
/// meanwhile, but not those on pages of the batch. 96 spans in place of 40: random reads of a set
/// of which a quarter is resident 47 thousand a second for 46, p99.9 330 us for 297; zipf 151 for
/// 161, 204 us for 204.
const MOST_SPANS: usize = 40;
const _: () = assert!(MOST_SPANS <= INTENT_RANGES);

/// Where the hand is and what it goes by.
#[derive(Default)]
pub struct Clock {
    hand: u64,
    pagemap: Option<Pagemap>,
    scanned: Option<(Instant, Duration)>,
    runs: Vec<Run>,
    /// Where the hand went back to, for pages that should not be shared any more.
    unshared: Option<PageIdx>,
    /// When the stub answered last.
    pub last_answer: Option<Instant>,
}

/// Pages to move.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Victims {
    /// In address order; whether each seems unwritten since its pool copy was made.
    pub pages: Vec<(PageIdx, bool)>,
    /// First page and length of each span; what is not a victim in it is evicted already.
    pub spans: Vec<(PageIdx, u64)>,
    /// Sum of the spans' lengths.
    pub covered: u64,
}

impl Victims {
    fn is_full(&self, want: usize) -> bool {
        self.pages.len() >= want || self.spans.len() >= MOST_SPANS || self.covered >= STAGING_PART
    }

    /// Adds a page behind all others: in the last span, if `bridge` lets that go on from its end to
    /// the page, else in one of its own. False: there is no room for it.
    fn push(&mut self, page: PageIdx, unwritten: bool, bridge: impl FnOnce(PageIdx, PageIdx) -> bool) -> bool {
        let extended = match self.spans.last_mut() {
            Some((first, len)) if first.0 + *len <= page.0 => {
                let end = first.plus(*len);
                let grown = page.0 + 1 - end.0;
                let fits = self.covered + grown <= STAGING_PART && grown <= WIDEST_GAP;
                (fits && bridge(end, page)).then(|| {
                    *len += grown;
                    grown
                })
            }
            _ => None,
        };
        match extended {
            Some(grown) => self.covered += grown,
            None if self.spans.len() < MOST_SPANS && self.covered < STAGING_PART => {
                self.spans.push((page, 1));
                self.covered += 1;
            }
            None => return false,
        }
        self.pages.push((page, unwritten));
        true
    }
}

fn may_go(core: &Core, page: PageIdx) -> bool {
    matches!(core.table.record(page), Record::None | Record::Clean(_))
}

fn all_evicted(core: &Core, from: PageIdx, to: PageIdx) -> bool {
    (from.0..to.0).all(|page| matches!(core.table.record(PageIdx(page)), Record::Evicted(_)))
}

impl Clock {
    /// Lets the hand go on until there are `want` cold pages or it has been everywhere.
    pub fn choose(
        &mut self,
        space: &Arc<Space>,
        task: i32,
        stub: &Stub,
        want: usize,
        shared: &Shared,
    ) -> Result<Victims, Outcome> {
        self.refresh_regions(space, task, stub, shared)?;
        let mut pagemap = self.take_pagemap(space).map_err(|_| Outcome::Dead)?;
        let mut victims = Victims::default();
        let mut wraps = 0;
        // Warm pages take up to HOTTEST laps to cool; more laps than that find nothing new. Victims
        // are in address order, so a batch ends where the address space does.
        while wraps <= u32::from(policy::HOTTEST) + 1 && !victims.is_full(want) {
            let Some(region) = space.core().regions.from(self.hand).copied() else {
                let mut core = space.core();
                core.lap = (core.lap + 1) % policy::LAPS;
                self.hand = 0;
                wraps += 1;
                if core.regions.len() == 0 || !victims.pages.is_empty() {
                    break;
                }
                continue;
            };
            let end = region.end - region.spared_top.min(region.end - region.start);
            let start = region.start.max(self.hand);
            if region.refused || start >= end {
                self.hand = region.end;
                continue;
            }
            self.runs.clear();
            let wanted = (want - victims.pages.len()).max(64) as u64 * 2;
            let Ok(next) = pagemap.resident(start, end, wanted, &mut self.runs) else {
                self.hand = region.end;
                continue;
            };
            let stopped_at = take_cold(&mut space.core(), PageIdx::of(region.start), &self.runs, want, &mut victims);
            self.hand = stopped_at.map_or(if next >= end { region.end } else { next }, PageIdx::addr);
            if stopped_at.is_some() {
                break;
            }
        }
        self.pagemap = Some(pagemap);
        if victims.pages.is_empty() { Err(Outcome::NothingCold) } else { Ok(victims) }
    }

    /// The moves are over, and this page's never began: the hand goes back to it.
    pub fn resume(&mut self, pagemap: Pagemap, rest: Option<PageIdx>) {
        self.pagemap = Some(pagemap);
        rest.into_iter().for_each(|page| self.hand = page.addr());
    }

    /// Pages that the kernel did not move because a fork left them shared: the stub has it give the
    /// app its own copies, and the hand goes back for those. Pages that are pinned for I/O look the
    /// same and stay so: what the hand comes back to in vain is passed. False: no use trying again
    /// now.
    pub fn unshare(&mut self, stub: &mut Stub, busy: &[PageIdx]) -> bool {
        let Some(first) = busy.first() else { return false };
        if self.unshared == Some(*first) {
            self.unshared = None;
            self.hand = first.plus(1).addr();
            return false;
        }
        failpoint("pages-shared");
        self.unshared = Some(*first);
        self.hand = first.addr();
        stub.populate(busy, UNSHARING).is_ok()
    }

    /// The mappings are not what they were: look at them before the next choice.
    pub fn forget_regions(&mut self) {
        self.scanned = None;
    }

    /// Open already, as a rule; whoever is done with it gives it back.
    pub fn take_pagemap(&mut self, space: &Space) -> io::Result<Pagemap> {
        self.pagemap.take().map_or_else(|| space.pagemap(), Ok)
    }

    fn refresh_regions(&mut self, space: &Space, task: i32, stub: &Stub, shared: &Shared) -> Result<(), Outcome> {
        let fresh = self.scanned.is_some_and(|(at, cost)| at.elapsed() <= REGIONS_FRESH.max(cost * 20));
        if fresh {
            return Ok(());
        }
        let start = Instant::now();
        let mut pagemap = self.take_pagemap(space).map_err(|_| Outcome::Dead)?;
        list_regions(space, task, stub).map_err(|_| Outcome::Dead)?;
        space.look_for_guards(&mut pagemap, shared);
        self.pagemap = Some(pagemap);
        self.scanned = Some((Instant::now(), start.elapsed()));
        Ok(())
    }
}

/// Reads what mappings there are. It takes 25 ms per resident GiB, for which no fault should wait;
/// but no change may be applied to the old list while the new one is being read, so it is read
/// again if one was, and at last with the core's lock.
fn list_regions(space: &Space, task: i32, stub: &Stub) -> io::Result<()> {
    for disturbed in 0.. {
        let before = space.core().table.changes();
        let held = (disturbed == MOST_DISTURBED).then(|| space.core());
        let mut found = region::scan(task, &stub.mappings())?;
        if let Some((start, end)) = space.app.region() {
            found.retain(|region| start <= region.start && region.end <= end);
            // Between inaccessible pages it looks like a thread's stack.
            found.iter_mut().for_each(|region| (region.spared_top, region.run) = (0, region.mapping));
        }
        let is_last = held.is_some();
        let mut core = held.unwrap_or_else(|| space.core());
        if is_last || core.table.changes() == before {
            core.regions.refresh(found);
            core.keep_title(process::title(task).unwrap_or_default());
            break;
        }
    }
    Ok(())
}

impl Core {
    /// What the kernel shows others of the program (ps, top) stays: it reads that where it can't
    /// wait for a page.
    fn keep_title(&mut self, ranges: [(u64, u64); 2]) {
        for (start, end) in ranges.into_iter().filter(|(start, end)| start < end && end - start <= MOST_TITLE) {
            self.keep((PageIdx::of(start).0..=PageIdx::of(end - 1).0).map(PageIdx));
        }
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
}

/// The hand passes these runs. Where it stopped, if it has enough. A whole huge page is a batch of
/// its own: it moves in one piece.
fn take_cold(core: &mut Core, region: PageIdx, runs: &[Run], want: usize, victims: &mut Victims) -> Option<PageIdx> {
    for run in runs {
        let mut page = run.first;
        while page < run.end() {
            let huge_starts = run.huge && page.0.is_multiple_of(HUGE) && run.end().0 - page.0 >= HUGE;
            if victims.is_full(want) || (huge_starts && !victims.pages.is_empty()) {
                return Some(page);
            }
            if huge_starts && (0..HUGE).all(|i| may_go(core, page.plus(i)) && core.table.policy(page.plus(i)) == 0) {
                for i in 0..HUGE {
                    victims.push(page.plus(i), !run.written, |_, _| true);
                }
                return Some(page.plus(HUGE));
            }
            if may_go(core, page) && !core.pins.contains(&page) {
                let heat = core.table.policy(page);
                let (go, cooled) = policy::pass(heat);
                if go {
                    if !victims.push(page, !run.written, |from, to| from > region && all_evicted(core, from, to)) {
                        return Some(page);
                    }
                } else {
                    core.table.set_policy(page, cooled);
                }
            }
            page = page.plus(1);
        }
    }
    None
}

/// What of the victims still stands, now that the core is the caller's: at most `most` pages.
pub fn recheck(core: &Core, victims: &Victims, most: usize) -> Victims {
    let mut kept = Victims::default();
    for (page, unwritten) in &victims.pages {
        let fit = may_go(core, *page)
            && core.regions.containing(page.addr()).is_some_and(|r| !r.refused)
            && !core.pins.contains(page)
            && kept.pages.len() < most;
        if fit {
            let one_region = |from: PageIdx| {
                let region = |p: PageIdx| core.regions.containing(p.addr()).map(|r| r.start);
                region(from) == region(*page)
            };
            let _ =
                kept.push(*page, *unwritten, |from, to| one_region(PageIdx(from.0 - 1)) && all_evicted(core, from, to));
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_bridges_what_is_evicted_and_nothing_else() {
        let mut victims = Victims::default();
        let evicted = |from: PageIdx, to: PageIdx| from == to || (from.0 >= 10 && to.0 <= 14);
        for page in [8, 9, 14, 20] {
            assert!(victims.push(PageIdx(page), false, evicted));
        }
        assert_eq!(victims.spans, [(PageIdx(8), 7), (PageIdx(20), 1)]);
        assert_eq!(victims.pages.len(), 4);
    }

    #[test]
    fn a_batch_of_scattered_pages_has_few_spans() {
        let mut victims = Victims::default();
        let taken = (0..).take_while(|i| victims.push(PageIdx(i * 2), false, |_, _| false)).count();
        assert_eq!((taken, victims.spans.len()), (MOST_SPANS, MOST_SPANS));
        assert!(victims.is_full(usize::MAX));
    }

    #[test]
    fn spans_never_cover_more_than_staging_holds() {
        let mut victims = Victims::default();
        let mut page = 0;
        while !victims.is_full(usize::MAX) && victims.push(PageIdx(page), false, |_, _| true) {
            page += 300;
        }
        assert!(victims.covered <= STAGING_PART);
        assert_eq!(victims.covered, victims.spans.iter().map(|(_, len)| len).sum::<u64>());
    }
}
