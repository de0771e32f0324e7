//! Which pages go next: the clock's hand goes over a space's regions, and gathers cold pages into
//! spans.
//!
//! What mappings there are is read anew now and then, and with it where guards are and what must
//! stay.

use crate::events::{look_for_guards, settle_changes};
use crate::evict::clock::{Clock, Victims};
use crate::evict::outcome::Outcome;
use crate::evict::policy;
use crate::inject::stub::Stub;
use crate::kernel::{Run, process};
use crate::page::PageIdx;
use crate::space::{Core, Record, Shared, Space, forget_if_vanished, region};
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A mapping list older than this is read anew when it is needed; reading may take a twentieth of
/// the time.
const REGIONS_FRESH: Duration = Duration::from_millis(500);
/// How often reading it may be disturbed by changes.
const MOST_DISTURBED: u32 = 3;
/// Bytes of arguments, or of environment, that are kept resident at most.
const MOST_TITLE: u64 = 1 << 20;
/// Pages of a huge page.
const HUGE: u64 = 512;

/// Lets the hand go on until there are `want` cold pages or it has been everywhere.
pub fn choose(
    clock: &mut Clock,
    space: &Arc<Space>,
    task: i32,
    stub: &Stub,
    want: usize,
    shared: &Shared,
) -> Result<Victims, Outcome> {
    refresh_regions(clock, space, task, stub, shared)?;
    let mut pagemap = clock.take_pagemap(&space.identity).map_err(|_| Outcome::Dead)?;
    let mut victims = Victims::default();
    let mut wraps = 0;
    // Warm pages take up to HOTTEST laps to cool; more laps than that find nothing new. Victims
    // are in address order, so a batch ends where the address space does.
    while wraps <= u32::from(policy::HOTTEST) + 1 && !victims.is_full(want) {
        let Some(region) = space.core().regions.from(clock.hand).copied() else {
            let mut core = space.core();
            core.lap = (core.lap + 1) % policy::LAPS;
            clock.hand = 0;
            wraps += 1;
            if core.regions.len() == 0 || !victims.pages.is_empty() {
                break;
            }
            continue;
        };
        let end = region.end - region.spared_top.min(region.end - region.start);
        let start = region.start.max(clock.hand);
        if region.refused || start >= end {
            clock.hand = region.end;
            continue;
        }
        clock.runs.clear();
        let wanted = (want - victims.pages.len()).max(64) as u64 * 2;
        let Ok(next) = pagemap.resident(start, end, wanted, &mut clock.runs) else {
            clock.hand = region.end;
            continue;
        };
        let (core, at, mut stale) = (&mut space.core(), PageIdx::of(region.start), false);
        let stopped_at = take_cold(core, at, &clock.runs, want, &mut victims, &mut stale);
        if stale && settle_changes(space, core, shared) {
            // Nobody else would look: where all records are of memory that is no more, no page is
            // ever chosen, and so the mapping is never registered.
            forget_if_vanished(space, core, task, clock, &region)?;
        }
        clock.hand = stopped_at.map_or(if next >= end { region.end } else { next }, PageIdx::addr);
        if stopped_at.is_some() {
            break;
        }
    }
    clock.pagemap = Some(pagemap);
    if victims.pages.is_empty() { Err(Outcome::NothingCold) } else { Ok(victims) }
}

fn refresh_regions(clock: &mut Clock, space: &Space, task: i32, stub: &Stub, shared: &Shared) -> Result<(), Outcome> {
    let fresh = clock.scanned.is_some_and(|(at, cost)| at.elapsed() <= REGIONS_FRESH.max(cost * 20));
    if fresh {
        return Ok(());
    }
    let start = Instant::now();
    let mut pagemap = clock.take_pagemap(&space.identity).map_err(|_| Outcome::Dead)?;
    list_regions(space, task, stub).map_err(|_| Outcome::Dead)?;
    look_for_guards(space, &mut pagemap, shared);
    clock.pagemap = Some(pagemap);
    clock.scanned = Some((Instant::now(), start.elapsed()));
    Ok(())
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
            keep_title(&mut core, process::title(task).unwrap_or_default());
            break;
        }
    }
    Ok(())
}

/// The hand passes these runs. Where it stopped, if it has enough. A whole huge page is a batch of
/// its own: it moves in one piece. `stale`: a page was there of which the records say that it is
/// away.
fn take_cold(
    core: &mut Core,
    region: PageIdx,
    runs: &[Run],
    want: usize,
    victims: &mut Victims,
    stale: &mut bool,
) -> Option<PageIdx> {
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
            *stale |= matches!(core.table.record(page), Record::Evicted(_));
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

/// What the kernel shows others of the program (ps, top) stays: it reads that where it can't
/// wait for a page.
fn keep_title(core: &mut Core, ranges: [(u64, u64); 2]) {
    for (start, end) in ranges.into_iter().filter(|(start, end)| start < end && end - start <= MOST_TITLE) {
        core.keep((PageIdx::of(start).0..=PageIdx::of(end - 1).0).map(PageIdx));
    }
}

fn may_go(core: &Core, page: PageIdx) -> bool {
    matches!(core.table.record(page), Record::None | Record::Clean(_))
}

fn all_evicted(core: &Core, from: PageIdx, to: PageIdx) -> bool {
    (from.0..to.0).all(|page| matches!(core.table.record(PageIdx(page)), Record::Evicted(_)))
}
