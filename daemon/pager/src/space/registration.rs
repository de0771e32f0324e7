//! Registering mappings with userfaultfd, when the first of their pages is to be evicted: from then
//! on every fault in them is ours to serve.

use crate::evict::{Clock, Outcome, Victims};
use crate::kernel::Lookup;
use crate::kernel::process::Mapping;
use crate::kernel::uffd::Probe;
use crate::page::PageIdx;
use crate::space::address_space::Space;
use crate::space::core::Core;
use crate::space::region::Region;
use annex_host::failpoint::failpoint;
use std::io;

/// Mappings beside one that is registered with it, to be looked at for what was there before.
const MOST_LOOKED_AT: usize = 16;
/// A mapping may grow by as much between two looks at it.
const MOST_GROWTH: u64 = 1 << 30;

/// To open the list of mappings costs as much as asking of so many spans.
const FEW_SPANS: usize = 4;

/// Registers what is not registered, asks the kernel whether every span is what we take it for, and
/// makes room for the records.
pub fn prepare(space: &Space, core: &mut Core, task: i32, clock: &mut Clock, victims: &Victims) -> Result<(), Outcome> {
    let lookup = (victims.spans.len() > FEW_SPANS).then(|| Lookup::open(task).ok()).flatten();
    let mut known = 0..0;
    for (first, len) in &victims.spans {
        let Some(region) = core.regions.containing(first.addr()).copied() else { return Err(Outcome::Again) };
        if !region.registered {
            register(space, core, task, clock, &region)?;
        }
        // Each of them: mappings are registered whole, and nearly all that replaces a part of one
        // from then on is announced, but not what `shmat` replaces with `SHM_REMAP`. What moved
        // from a mapping that is not registered would read as zeros. A span lies in one mapping, or
        // the kernel does not move it; what is known of one span holds for all in its mapping.
        if !known.contains(&first.addr()) {
            if !is_registered(space, space.uffd.probe_resident(first.addr()))? {
                // Not the mapping we knew: look again.
                core.regions.mark(region.mapping, |r| r.registered = false);
                clock.forget_regions();
                return Err(Outcome::Again);
            }
            known = lookup.as_ref().and_then(|lookup| lookup.bounds(first.addr())).map_or(0..0, |(from, to)| from..to);
        }
        ensure(core, *first, *len)?;
    }
    Ok(())
}

/// What the kernel has said of a mapping, if that can be told now.
fn is_registered(space: &Space, said: Probe) -> Result<bool, Outcome> {
    match said {
        Probe::Registered => Ok(true),
        Probe::NotRegistered => Ok(false),
        Probe::TryAgain => Err(Outcome::Again),
        Probe::Dead => {
            space.set_dead();
            Err(Outcome::Dead)
        }
    }
}

/// Room for the records of these pages.
fn ensure(core: &mut Core, first: PageIdx, pages: u64) -> Result<(), Outcome> {
    core.table.ensure(first, pages).map_err(|_| {
        core.frozen = true;
        Outcome::NothingCold
    })
}

/// Registers a mapping whole (a part would split it, and the app's own mremap across the split
/// would fail).
fn register(space: &Space, core: &mut Core, task: i32, clock: &mut Clock, region: &Region) -> Result<(), Outcome> {
    let mapping = region.mapping;
    let dead = |_| Outcome::Dead;
    let lookup = Lookup::open(task).map_err(dead)?;
    let is_it = |m: Mapping| (m.start, m.end) == mapping && m.is_private_anonymous();
    let is_whole = || Ok(lookup.at(mapping.0)?.is_some_and(is_it));
    if !is_whole().map_err(dead)? {
        core.regions.cut(mapping.0, mapping.1);
        clock.forget_regions();
        return Err(Outcome::Again);
    }
    let reach = reach(&lookup, region).map_err(dead)?;
    forget_what_vanished(space, core, mapping)?;
    let mut beside = Some(reach.0);
    for _ in 0..MOST_LOOKED_AT {
        let Some(at) = beside else { break };
        let next = lookup.at_or_above(at).map_err(dead)?.filter(|m| m.start < reach.1);
        if let Some(found) = &next {
            forget_what_vanished(space, core, (found.start.max(reach.0), found.end.min(reach.1)))?;
        }
        beside = next.map(|found| found.end);
    }
    failpoint("mapping-looked-up");
    let register = |(start, end)| space.uffd.register(start, end - start);
    // Something that can't be registered may have come to lie beside it.
    let done = register(reach).map(|()| reach).or_else(|_| register(mapping).map(|()| mapping));
    let registered = match done {
        Ok(done) => done,
        Err(errno) => {
            tracing::debug!(task, %errno, "mapping {:#x}-{:#x} is left alone", mapping.0, mapping.1);
            core.regions.mark(mapping, |r| r.refused = true);
            return Err(Outcome::Again);
        }
    };
    if mend(space, &lookup, registered).map_err(dead)? {
        clock.forget_regions();
    }
    // It may have had a hole just then: nothing has told of that, since it was not registered yet,
    // and what is mapped there now is not, whose pages would read as zeros once they had moved.
    // From here on everything is told.
    if !is_whole().map_err(dead)? {
        tracing::debug!(task, "mapping {:#x}-{:#x} fell apart while it was registered", mapping.0, mapping.1);
        clock.forget_regions();
        return Err(Outcome::Again);
    }
    core.regions.mark(mapping, |r| r.registered = true);
    Ok(())
}

/// What was mapped after we looked may be split where we ended, and the program's own mremap would
/// fail: the rest is registered too, so that it is one again. That may end within another in its
/// turn. True: there was such.
fn mend(space: &Space, lookup: &Lookup, registered: (u64, u64)) -> io::Result<bool> {
    // A region is the program's own choice: what lies beside it is not ours.
    if space.app.region().is_some() {
        return Ok(false);
    }
    let staging = space.staging.lock().0;
    let mut mended = false;
    for is_upper in [false, true] {
        let mut at = if is_upper { registered.1 } else { registered.0 };
        for _ in 0..MOST_LOOKED_AT {
            let Some((below, above)) = lookup.meet(at)? else { break };
            if [below.start, above.start].contains(&staging) {
                break;
            }
            let is_done = space.uffd.register(below.start, above.end - below.start).is_ok();
            // Two that stay two were no halves of one.
            if !is_done || lookup.at(at)?.is_none_or(|m| m.start == at) {
                break;
            }
            tracing::debug!(space = space.id.0, "a mapping was split at {at:#x} as it was registered");
            mended = true;
            at = if is_upper { above.end } else { below.start };
        }
    }
    Ok(mended)
}

/// Records in what is not registered are of memory that is no more: the kernel does not tell of all
/// that takes a mapping's place (`shmat` with `SHM_REMAP`). Once it is registered they would be
/// taken for those of what lies there now.
fn forget_what_vanished(space: &Space, core: &mut Core, (start, end): (u64, u64)) -> Result<(), Outcome> {
    let range = (PageIdx::of(start), PageIdx::of(end));
    let mut has_records = false;
    core.table.walk(range.0, range.1, |_, _| has_records = true);
    if !has_records {
        return Ok(());
    }
    if !is_registered(space, space.uffd.is_registered(start))? {
        tracing::debug!(space = space.id.0, "what lay at {start:#x} went without a word");
        core.clear(range);
        // What was chosen was chosen by these records.
        return Err(Outcome::Again);
    }
    Ok(())
}

/// Pages are there of which the records say that they are away: if those were of memory that is no
/// more, they are forgotten, and pages are to be chosen anew. All changes must have been applied.
pub fn forget_if_vanished(
    space: &Space,
    core: &mut Core,
    task: i32,
    clock: &mut Clock,
    region: &Region,
) -> Result<(), Outcome> {
    let (start, end) = region.mapping;
    let found = Lookup::open(task).and_then(|lookup| lookup.at(start)).map_err(|_| Outcome::Dead)?;
    if found.is_none_or(|m| (m.start, m.end) != (start, end)) {
        clock.forget_regions();
        return Ok(());
    }
    forget_what_vanished(space, core, region.mapping)
}

/// What is registered with a mapping: its run, if that is there still, and the gap above it, into
/// which it may be growing right now. (All of the gap: what grows beyond the end of what is
/// registered is split there.)
fn reach(lookup: &Lookup, region: &Region) -> io::Result<(u64, u64)> {
    let (start, end) = region.run;
    let is_there =
        lookup.at(start)?.is_some_and(|m| m.start == start) && lookup.at(end - 1)?.is_some_and(|m| m.end == end);
    let (start, end) = if is_there { region.run } else { region.mapping };
    let gap = lookup.at_or_above(end)?.map_or(0, |next| next.start.saturating_sub(end));
    Ok((start, end + gap.min(MOST_GROWTH)))
}
