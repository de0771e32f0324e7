//! The window closes: no change is unread any more, and what was ambiguous is asked of the kernel.
//!
//! Nothing is served, installed or evicted before.

use crate::events::ambiguous_unmap::{AmbiguousUnmap, Evidence, Origin, Verdict, judge};
use crate::events::changes::pages;
use crate::events::messages::{read_and_wake, read_messages};
use crate::events::young::{Read, release_children, release_orphans, release_patient_children};
use crate::fault::Fault;
use crate::kernel::process;
use crate::kernel::uffd::Probe;
use crate::page::{PageIdx, Range};
use crate::space::{Core, Shared, Space, SpaceGuard};
use std::sync::Arc;
use std::time::Instant;

/// Reads all messages (while a stub moves pages: only faults), applies the changes among
/// them, and appends the faults to `faults`; they have waited at least since `since`. A young
/// child's messages wait.
pub fn drain(space: &Arc<Space>, core: &mut SpaceGuard<'_>, shared: &Shared, since: Instant, faults: &mut Vec<Fault>) {
    if !space.is_young() {
        read_messages(space, core, shared, since, faults);
        settle_changes(space, core, shared);
    }
}

/// Closes the window of a young child's parent if no change of that is unread any more. False:
/// the child is young still. The caller has no core.
pub fn grows_up(space: &Space, shared: &Shared) -> bool {
    let elder = space.elder.lock().clone();
    let Some((elder, _)) = elder else { return true };
    if let Some(elder) = elder.upgrade()
        && grows_up(&elder, shared)
        && let Some(mut core) = elder.core_at_once()
    {
        settle_changes(&elder, &mut core, shared);
        if space.is_young() {
            // At a take-over nobody else reads what the parent has to say.
            read_and_wake(&elder, &mut core, shared);
            settle_changes(&elder, &mut core, shared);
        }
    }
    !space.is_young()
}

/// Whether annexd has read all that has changed in the address space until now. (Who holds the
/// core's lock and has applied what it read then knows that the records are right.)
pub fn is_told_all(space: &Space) -> bool {
    matches!(space.uffd.changes(), Probe::Registered | Probe::NotRegistered)
}

/// Closes the window if no change is unread any more, and settles what is ambiguous. False:
/// something stays so, and nothing may be served, installed or evicted yet.
pub fn settle_changes(space: &Space, core: &mut Core, shared: &Shared) -> bool {
    if space.is_young() {
        return false;
    }
    if !core.window.is_open() {
        return true;
    }
    // What counts is that the answer is not EAGAIN.
    match space.uffd.changes() {
        Probe::TryAgain => {
            release_patient_children(space, core, shared);
            return core.window.ambiguous.is_empty();
        }
        Probe::Dead => {
            space.set_dead();
            release_orphans(space, core, shared);
            return false;
        }
        Probe::Registered | Probe::NotRegistered => {}
    }
    let window = std::mem::take(&mut core.window);
    release_children(space, &window.past, Read::All, shared);
    core.table.begin();
    core.let_go(window.displaced.into_iter().flat_map(|d| d.records).collect());
    let settled = settle_ambiguous_unmaps(space, core, window.ambiguous);
    let applied = core.table.applied();
    core.commit(applied, shared);
    settled
}

/// Asks the kernel what lies at the ambiguous pages. False: it can't say now; what is left
/// stays ambiguous.
fn settle_ambiguous_unmaps(space: &Space, core: &mut Core, ambiguous: Vec<AmbiguousUnmap>) -> bool {
    for (nth, unmap) in ambiguous.iter().enumerate() {
        match settle_ambiguous_unmap(space, core, unmap) {
            Probe::TryAgain => {
                core.window.ambiguous = ambiguous[nth..].to_vec();
                return false;
            }
            Probe::Dead => {
                space.set_dead();
                return false;
            }
            Probe::Registered | Probe::NotRegistered => {}
        }
    }
    true
}

fn settle_ambiguous_unmap(space: &Space, core: &mut Core, unmap: &AmbiguousUnmap) -> Probe {
    let (mut pages, mut records) = (Vec::new(), Vec::new());
    core.table.walk(unmap.range.0, unmap.range.1, |page, record| {
        pages.push(page);
        records.push(record);
    });
    let mut mapped = Vec::new();
    for page in &pages {
        match space.uffd.is_registered(page.addr()) {
            Probe::Registered => mapped.push(*page),
            Probe::NotRegistered => core.clear((*page, page.plus(1))),
            other => return other,
        }
    }
    let Some(first) = mapped.first().copied() else { return Probe::NotRegistered };
    let verdict = match evidence(space, unmap) {
        Ok(None) => Verdict::Stays,
        Ok(Some((mappings, any_present))) => {
            judge(unmap, &records, &Evidence { page: first, mappings: &mappings, any_present })
        }
        Err(probe) => return probe,
    };
    match verdict {
        Verdict::Stays => {}
        Verdict::Removed => mapped.iter().for_each(|page| core.clear((*page, page.plus(1)))),
        Verdict::Unknown => space.app.stop(&format!(
            "whether the mapping at {:#x} was unmapped and another one grew over it can't be told",
            first.addr()
        )),
    }
    Probe::Registered
}

/// The mappings, and whether an ambiguous page is in memory. `None`: there is no need to
/// look, or nowhere to.
fn evidence(space: &Space, unmap: &AmbiguousUnmap) -> Result<Option<(Vec<Range>, bool)>, Probe> {
    if space.mark().is_none() {
        return Ok(None);
    }
    let unseen = || if space.uffd.is_dead() { Probe::Dead } else { Probe::TryAgain };
    let task = space.task().ok_or_else(unseen)?;
    match unmap.origin {
        Origin::Parent => return Ok(None),
        Origin::Below => {}
        Origin::Here(origin) => match space.uffd.is_registered(PageIdx(origin.0.saturating_sub(1)).addr()) {
            // Nothing could have grown from there.
            Probe::NotRegistered => return Ok(None),
            Probe::Registered => {}
            other => return Err(other),
        },
    }
    let mut present = Vec::new();
    let (start, end) = (unmap.range.0.addr(), unmap.range.1.addr());
    let seen = space.pagemap().and_then(|mut pagemap| pagemap.in_memory(start, end, &mut present));
    let mappings = seen.and_then(|_| process::maps(task)).map_err(|_| unseen())?;
    // Of what is not ours nothing follows.
    let mut pages_there = present.iter().flat_map(|run| run.first.0..run.end().0).map(PageIdx);
    let any_present = pages_there.any(|page| space.uffd.is_registered(page.addr()) == Probe::Registered);
    // What was seen holds only if nothing has changed meanwhile.
    match space.uffd.changes() {
        other @ (Probe::TryAgain | Probe::Dead) => Err(other),
        _ => Ok(Some((mappings.iter().map(|m| pages(m.start, m.end)).collect(), any_present))),
    }
}
