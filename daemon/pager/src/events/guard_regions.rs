//! Guard regions (MADV_GUARD_INSTALL, Linux 6.13): pages whose touch raises SIGSEGV, without a
//! mapping of their own. What was there is dropped; after MADV_GUARD_REMOVE there are zeros.
//!
//! No message tells of either, and UFFDIO_COPY overwrites a guard as if nothing were there (Linux
//! 6.18). PAGEMAP_SCAN sees guards (since 6.15). So
//!
//! - each look at a space's mappings drops the records of guarded pages,
//! - a mapping in which that happened is not evicted from any more, and what is evicted there comes
//!   back: the program uses guards over memory that it has used, and a guard that comes and goes
//!   between two looks leaves no trace,
//! - from then on, and always when an app is let go, pages are installed only where no guard is.
//!
//! What is missed: the first guard of a space, if it is removed again before the next look (half a
//! second, while pages are evicted), or a page is prefetched to its place until then.

use crate::events::settle::settle_changes;
use crate::kernel::uffd::Probe;
use crate::kernel::{Pagemap, Run};
use crate::page::{PageIdx, Range};
use crate::space::{Core, GuardRegions, Record, Shared, Space};
use annex_shared::ids::SlotIdx;

/// Pages of guarded mappings that one look brings back.
const AT_ONCE: usize = 1024;

/// Looks for guards in all regions that pages were evicted from. That takes milliseconds per
/// GiB, so it is done without the core's lock; what is found is looked at again with it.
pub fn look_for_guards(space: &Space, pagemap: &mut Pagemap, shared: &Shared) {
    let registered: Vec<_> = {
        let core = space.core();
        let seen = core.regions.iter().filter(|r| r.registered && core.table.evicted() > 0);
        seen.map(|r| (r.start, r.end)).collect()
    };
    let mut runs = Vec::new();
    for (start, end) in registered {
        guards_within((PageIdx::of(start), PageIdx::of(end)), pagemap, &mut runs);
    }
    let mut core = space.core();
    // Most guards lie where nothing ever was.
    runs.retain(|run| core.has_copies((run.first, run.end())));
    for run in runs {
        if !settle_changes(space, &mut core, shared) {
            break;
        }
        let used = drop_guarded(space, &mut core, (run.first, run.end()), pagemap, shared);
        let region = core.regions.containing(run.first.addr()).copied();
        if let (Some(used @ 1..), Some(region)) = (used, region) {
            tracing::info!(
                pid = space.pid(),
                "{:#x}-{:#x} stays resident: the program puts guards over memory that it has used ({used} pages)",
                region.start,
                region.end
            );
            space.app.note("memory in which the program puts guards stays resident");
            core.regions.guarded(region.start);
        }
    }
    let guarded: Vec<_> = core.regions.iter().filter(|r| r.guarded).map(|r| (r.start, r.end)).collect();
    if guarded.is_empty() {
        return;
    }
    let mut wanted = Vec::new();
    for (start, end) in guarded {
        core.table.walk(PageIdx::of(start), PageIdx::of(end), |page, record| {
            if matches!(record, Record::Evicted(_)) && wanted.len() < AT_ONCE {
                wanted.push(page);
            }
        });
    }
    let known = core.guards.take().map(|g| g.pagemap);
    let pagemap = known.or_else(|| space.pagemap().ok());
    core.guards = pagemap.map(|pagemap| GuardRegions { pagemap, wanted });
}

/// Before pages are installed in the range, in a space that has had guards. False: the app is
/// changing its mappings, try again later.
pub fn heed_guards(space: &Space, core: &mut Core, range: Range, shared: &Shared) -> bool {
    let Some(mut guards) = core.guards.take() else { return true };
    let heeded = drop_guarded(space, core, range, &mut guards.pagemap, shared);
    core.guards = Some(guards);
    heeded.is_some()
}

/// Drops the records of guarded pages in the range; how many of them had been evicted at some
/// time. `None`: nothing is dropped, because the app is changing its mappings, and the guards
/// may lie in something that has come to the place of what the records are about.
pub fn drop_guarded(
    space: &Space,
    core: &mut Core,
    range: Range,
    pagemap: &mut Pagemap,
    shared: &Shared,
) -> Option<usize> {
    let mut runs = Vec::new();
    guards_within(range, pagemap, &mut runs);
    // After the look: a change that was made before it and not read since would be unread
    // still.
    if !runs.is_empty() && space.uffd.is_registered(range.0.addr()) == Probe::TryAgain {
        return None;
    }
    let (mut slots, suspects) = (Vec::<SlotIdx>::new(), core.suspects.len());
    for run in runs {
        core.table.clear(run.first, run.end(), |slot| slots.push(slot));
        core.suspects.retain(|page| !(run.first..run.end()).contains(page));
    }
    if core.suspects.len() < suspects {
        core.note_suspects();
    }
    let used = slots.len();
    slots.into_iter().for_each(|slot| shared.pool.release(slot));
    Some(used)
}

/// Appends the guards in a range.
fn guards_within((from, to): Range, pagemap: &mut Pagemap, runs: &mut Vec<Run>) {
    let mut at = from.addr();
    while at < to.addr() {
        // A kernel that knows no guards says so; one before 6.15 has them and does not show them.
        match pagemap.guarded(at, to.addr(), runs) {
            Ok(next) if next > at => at = next,
            _ => break,
        }
    }
}
