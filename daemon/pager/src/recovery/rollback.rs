//! Evictions that were cut short: by the death of the stub, of annexd, or of all donors. The pages
//! go back into the app.
//!
//! Nothing of such a batch counts as written: a WRITE that was under way may still arrive, so its
//! slots rest before they are used again. Wherever a record names one of them (forked children and
//! remapped places included) the bytes are put, from staging or from the batch's buffer.

use crate::app::application::App;
use crate::fault::page_fault::Fault;
use crate::kernel::mm::Mm;
use crate::kernel::scan::Pagemap;
use crate::kernel::uffd::Uffd;
use crate::space::address_space::{Core, Shared, Space};
use crate::space::registry::Registry;
use crate::space::table::{Intent, Phase, Record, Table};
use annex_shared::ids::SlotIdx;
use annex_shared::page::PAGE_SIZE;
use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Turns of 200 us that an app which keeps changing its mappings is given.
const PATIENCE: u32 = 50_000;

/// Who takes faults that were read on the way.
pub type Serve<'a> = &'a dyn Fn(Vec<(Arc<Space>, Fault)>);

/// What is in staging did not get back.
#[derive(Debug, thiserror::Error)]
pub enum RollbackError {
    #[error("the address space of its pages is not known")]
    NoProcess,
    #[error("a child was forked meanwhile, whose pages have ended with its parent's memory")]
    Gone,
    #[error("its staging area could not be read: {0}")]
    Staging(#[source] io::Error),
}

/// Makes the records of an eviction that was cut short while it moved say what moved. Before any
/// message is read: until then the pages are where the intent says.
pub fn settle_records(space: &Space, core: &mut Core, shared: &Shared) {
    let mm = space.mm();
    match records_as_moved(&mut core.table, &space.uffd, mm.as_deref()) {
        Ok(changed) => {
            for (before, after) in changed {
                after.slot().into_iter().for_each(|slot| shared.pool.retain(slot));
                before.slot().into_iter().for_each(|slot| shared.pool.release(slot));
            }
        }
        Err(error) => {
            poison_unsettled(&mut core.table).into_iter().for_each(|slot| shared.pool.release(slot));
            space.app.stop(&format!("an eviction was cut short, and {error}"));
        }
    }
}

/// Which pages of an eviction have moved is not known: none may be taken for what its record says.
/// The slots that those named.
pub fn poison_unsettled(table: &mut Table) -> Vec<SlotIdx> {
    let victims = table.intent().map(|intent| intent.victims).unwrap_or_default();
    let pages = victims.into_iter().filter(|victim| !victim.settled).map(|victim| victim.page);
    pages.filter_map(|page| table.set(page, Record::Poisoned).ok()?.slot()).collect()
}

/// No record of the app names one of these slots any more, which hold nothing: its page raises
/// SIGBUS when it is touched.
pub fn condemn(registry: &Registry, shared: &Shared, app: &App, slots: &HashSet<SlotIdx>) {
    for space in registry.of_app(app.id) {
        let mut core = space.core();
        let mut named = Vec::new();
        let (start, end) = Table::everything();
        core.table.walk(start, end, |page, record| {
            if let Record::Evicted(slot) = record
                && slots.contains(&slot)
            {
                named.push((page, slot));
            }
        });
        for (page, slot) in named {
            let _ = core.table.set(page, Record::Poisoned);
            shared.pool.release(slot);
        }
    }
}

/// The records that had to change, before and after. The moves must be over.
pub fn records_as_moved(
    table: &mut Table,
    uffd: &Uffd,
    mm: Option<&Mm>,
) -> Result<Vec<(Record, Record)>, RollbackError> {
    let Some(Intent { phase: Phase::Moving, victims }) = table.intent() else { return Ok(Vec::new()) };
    let staged = match staged(table, uffd, mm) {
        // Its pages are nobody's any more, unless a child was forked meanwhile: that must not take
        // them for zeros.
        Err(RollbackError::Gone) => victims.iter().map(|v| v.place).collect(),
        staged => staged?,
    };
    let mut changed = Vec::new();
    for victim in victims.into_iter().filter(|victim| !victim.settled) {
        let now = table.record(victim.page);
        let named = now == Record::Evicted(victim.slot);
        let after = match staged.contains(&victim.place) {
            true if !named => Record::Evicted(victim.slot),
            // It had vanished before it could be moved: zeros, as ever.
            false if named => Record::None,
            _ => continue,
        };
        let before = table.set(victim.page, after).unwrap_or(Record::None);
        changed.push((before, after));
    }
    table.intent_moved();
    Ok(changed)
}

/// Brings the pages of the space's intent back and concludes it. Nothing to do without one.
pub fn bring_back(
    registry: &Registry,
    shared: &Shared,
    space: &Arc<Space>,
    serve: Serve<'_>,
) -> Result<(), RollbackError> {
    let (intent, staging) = {
        let core = space.core();
        let Some(intent) = core.table.intent() else { return Ok(()) };
        let staging = core.table.stub().ok_or(RollbackError::NoProcess)?.staging;
        (intent, staging)
    };
    let slots = intent.slots();
    let named = |space: &Arc<Space>| names_any(&space.core().table, &slots);
    if registry.of_app(space.app.id).iter().any(named) {
        let mm = space.mm();
        let staged = staged(&space.core().table, &space.uffd, mm.as_deref());
        let staged = match staged {
            Err(RollbackError::Gone) => {
                let mut faults = Vec::new();
                space.drain(&mut space.core(), shared, Instant::now(), &mut faults);
                let missed = registry.of_app(space.app.id).iter().any(|other| other.id != space.id && named(other));
                return if missed { Err(RollbackError::Gone) } else { Ok(()) };
            }
            staged => staged?,
        };
        let mm = mm.ok_or(RollbackError::NoProcess)?;
        let mut bytes = vec![0; intent.victims.len() * PAGE_SIZE];
        for (victim, page) in intent.victims.iter().zip(bytes.chunks_mut(PAGE_SIZE)) {
            if staged.contains(&victim.place) {
                let at = staging.0 + victim.place * PAGE_SIZE as u64;
                mm.read(at, page).map_err(RollbackError::Staging)?;
            }
        }
        put_back(registry, shared, &space.app, &slots, &bytes, serve);
    }
    space.core().table.conclude();
    Ok(())
}

/// Puts bytes back wherever a record of the app names their slot: `slots` says which page of
/// `bytes` belongs into each.
pub fn put_back(
    registry: &Registry,
    shared: &Shared,
    app: &App,
    slots: &HashMap<SlotIdx, usize>,
    bytes: &[u8],
    serve: Serve<'_>,
) {
    // A fork that is read on the way brings a child that needs them too.
    let mut done = HashSet::new();
    loop {
        let Some(space) = registry.of_app(app.id).into_iter().find(|space| !done.contains(&space.id)) else { return };
        done.insert(space.id);
        for turn in 0..=PATIENCE {
            space.grows_up(shared);
            let mut core = space.core();
            let mut faults = Vec::new();
            space.drain(&mut core, shared, Instant::now(), &mut faults);
            let mut mine = Vec::new();
            let (start, end) = Table::everything();
            core.table.walk(start, end, |page, record| {
                if let Record::Evicted(slot) = record
                    && let Some(i) = slots.get(&slot)
                {
                    mine.push((page, slot, *i));
                }
            });
            let settled = mine.is_empty() || space.settle_changes(&mut core, shared);
            let mut again = !settled;
            for (page, slot, i) in mine.into_iter().filter(|_| settled) {
                let bytes = &bytes[i * PAGE_SIZE..(i + 1) * PAGE_SIZE];
                again |= !space.put_back(&mut core, page, bytes, slot, shared);
            }
            drop(core);
            serve(faults.into_iter().map(|f| (space.clone(), f)).collect());
            if !again || space.is_dead() {
                break;
            }
            if turn == PATIENCE {
                app.stop("pages that no donor has could not be given back to it for seconds");
            }
            std::thread::sleep(Duration::from_micros(200));
        }
    }
}

fn names_any(table: &Table, slots: &HashMap<SlotIdx, usize>) -> bool {
    let mut named = false;
    let (start, end) = Table::everything();
    table.walk(start, end, |_, record| named |= matches!(record, Record::Evicted(slot) if slots.contains_key(&slot)));
    named
}

/// Which places of staging have a page, in pages.
fn staged(table: &Table, uffd: &Uffd, mm: Option<&Mm>) -> Result<HashSet<u64>, RollbackError> {
    let (mm, stub) = match mm.zip(table.stub()) {
        None if uffd.is_dead() => return Err(RollbackError::Gone),
        found => found.ok_or(RollbackError::NoProcess)?,
    };
    let staged = mm.pagemap().and_then(|mut pagemap| places(&mut pagemap, stub.staging));
    // Asked after the look: an address space that has ended looks as if nothing were there.
    if uffd.is_dead() {
        return Err(RollbackError::Gone);
    }
    staged.map_err(RollbackError::Staging)
}

/// Which places of a staging area (start and bytes) have a page, in pages.
pub fn places(pagemap: &mut Pagemap, (start, len): (u64, u64)) -> io::Result<HashSet<u64>> {
    let mut runs = Vec::new();
    let mut at = start;
    while at < start + len {
        let next = pagemap.in_memory(at, start + len, &mut runs)?;
        if next <= at {
            break;
        }
        at = next;
    }
    let first = start / PAGE_SIZE as u64;
    Ok(runs.iter().flat_map(|run| run.first.0..run.end().0).map(|page| page - first).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::uffd::feature;
    use crate::kernel::uffd::tests::context;
    use crate::page::PageIdx;
    use crate::space::table::{StubTraces, Victim};

    /// annexd dies in the middle of a batch: two pages of four had moved. Of those the first was
    /// settled, and then unmapped by the app; nothing was known of the second's.
    #[test]
    fn a_record_that_was_settled_stays_what_became_of_it_since() {
        let mut staging = memmap2::MmapMut::map_anon(4 * PAGE_SIZE).unwrap();
        let mut table = Table::new(1, 1).unwrap();
        let pid = std::process::id() as i32;
        let area = (staging.as_ptr().addr() as u64, staging.len() as u64);
        let traces = StubTraces {
            pid,
            pid_there: pid,
            staging: area,
            code_at: 0,
            comm_at: 0,
            staging_map_at: 0,
            fds: Default::default(),
            inode: 0,
            version: 2,
        };
        table.describe(pid, &traces);
        let victim = |n: u64| {
            let slot = SlotIdx(n as u32 + 7);
            Victim { page: PageIdx(100 + n), slot, before: slot, place: n, settled: false }
        };
        table.intend((0..4).map(victim));
        for moved in [0, 1] {
            staging[moved * PAGE_SIZE] = 1;
        }
        table.set(PageIdx(100), Record::Evicted(SlotIdx(7))).unwrap();
        table.intent_settled(0);
        table.set(PageIdx(100), Record::None).unwrap();
        table.set(PageIdx(102), Record::Clean(SlotIdx(90))).unwrap();

        let (uffd, mm) = (context(feature::MOVE), Mm::open(pid).unwrap());
        let changed = records_as_moved(&mut table, &uffd, Some(&mm)).unwrap();
        assert_eq!(changed, [(Record::None, Record::Evicted(SlotIdx(8)))]);
        let records: Vec<_> = (100..104).map(|page| table.record(PageIdx(page))).collect();
        let moved = Record::Evicted(SlotIdx(8));
        assert_eq!(records, [Record::None, moved, Record::Clean(SlotIdx(90)), Record::None]);
        assert_eq!(table.intent().unwrap().phase, Phase::Moved);
    }
}
