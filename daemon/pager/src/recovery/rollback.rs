//! Evictions that were cut short: by the death of the stub, of annexd, or of all donors. The pages
//! go back into the app.
//!
//! - [`rollback`] takes a batch of this annexd's, whatever stage it had come to.
//! - [`bring_back`] goes by what the intent in the space's table says, and is all that there is to
//!   go by after a take-over.
//!
//! Nothing of such a batch counts as written: a WRITE that was under way may still arrive, so its
//! slots rest before they are used again. Wherever a record names one of them (forked children and
//! remapped places included) the bytes are put, from staging or from the batch's buffer. Where they
//! can't be had, the pages raise SIGBUS, and the app is stopped.

use crate::app::App;
use crate::events::{drain, grows_up, is_told_all, settle_changes};
use crate::evict::{Batch, CutShort, Done, Moved, Outcome, ReadError};
use crate::fault::{Fault, put_back};
use crate::recovery::staged::{RollbackError, staged};
use crate::space::{Intent, Record, Registry, Shared, Space, Table};
use annex_shared::ids::SlotIdx;
use annex_shared::page::PAGE_SIZE;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Turns of 200 us that an app which keeps changing its mappings is given.
const PATIENCE: u32 = 50_000;

/// Who takes faults that were read on the way.
pub type Serve<'a> = &'a dyn Fn(Vec<(Arc<Space>, Fault)>);

/// Gives back what the stage owns that the batch had come to, and its pages to the app.
pub fn rollback(cut: CutShort, batch: &mut Batch<'_>) -> Done {
    match cut {
        CutShort::Reserved(slots, outcome) => {
            bring_back_or_condemn(batch);
            Done { slots, busy: Vec::new(), outcome }
        }
        CutShort::Planned(planned) => {
            planned.copies.into_iter().for_each(|copy| batch.shared.pool.release(copy));
            bring_back_or_condemn(batch);
            Done { slots: planned.slots, busy: Vec::new(), outcome: Outcome::Dead }
        }
        CutShort::Unmoved(Moved { slots, busy, .. }) => Done { slots, busy, outcome: Outcome::Again },
        CutShort::Moved(moved, error) => {
            condemn_unread(batch, &moved, &error);
            Done { slots: moved.slots, busy: moved.busy, outcome: Outcome::Dead }
        }
        CutShort::Read(read) => {
            let Batch { space, lane, shared, registry, workers, .. } = batch;
            let slots = read.pages.iter().enumerate().map(|(i, page)| (page.slot, i)).collect();
            let bytes = lane.bytes(&read.buf);
            give_back(registry, shared, &space.app, &slots, bytes, &|faults| workers.serve(faults));
            lane.free(read.buf);
            Done { slots: read.slots, busy: read.busy, outcome: Outcome::WriteFailed }
        }
    }
}

/// What is in staging goes back into the app, as the intent says. Nothing to do without one.
fn bring_back_or_condemn(batch: &Batch<'_>) {
    let Batch { space, shared, registry, workers, .. } = batch;
    if let Err(error) = bring_back(registry, shared, space, &|faults| workers.serve(faults)) {
        let slots = space.core().table.intent().map(|intent| intent.slots()).unwrap_or_default();
        condemn(registry, shared, &space.app, &slots.into_keys().collect());
        space.app.stop(&format!("an eviction was cut short, and {error}"));
    }
}

/// Pages have moved that can't be written: no record may name a slot that holds nothing. Whoever
/// touches one of them gets SIGBUS, and the app is stopped.
fn condemn_unread(batch: &Batch<'_>, moved: &Moved, error: &ReadError) {
    let Batch { space, shared, registry, workers, .. } = batch;
    moved.pages.iter().filter_map(|page| page.copy).for_each(|copy| shared.pool.release(copy));
    let slots = moved.pages.iter().map(|page| page.slot).collect();
    if is_missed(registry, shared, &space.app, &slots, &|faults| workers.serve(faults)) {
        condemn(registry, shared, &space.app, &slots);
        space.app.stop(&error.to_string());
    }
}

/// Whether somebody of the app still has a page in one of these slots, once all is known that has
/// happened before. A program that ends, or that unmaps all that it has, unmaps staging as well.
fn is_missed(registry: &Registry, shared: &Shared, app: &App, slots: &HashSet<SlotIdx>, serve: Serve<'_>) -> bool {
    // A fork that is read on the way brings a child that may have them too.
    let mut done = HashSet::new();
    while let Some(space) = registry.of_app(app.id).into_iter().find(|space| !done.contains(&space.id)) {
        done.insert(space.id);
        for turn in 0..=PATIENCE {
            grows_up(&space, shared);
            let mut core = space.core();
            let mut faults = Vec::new();
            drain(&space, &mut core, shared, Instant::now(), &mut faults);
            let has_some = !space.uffd.is_dead() && names_any(&core.table, |slot| slots.contains(&slot));
            let is_settled = has_some && settle_changes(&space, &mut core, shared) && is_told_all(&space);
            let has_some = has_some && names_any(&core.table, |slot| slots.contains(&slot));
            drop(core);
            serve(faults.into_iter().map(|f| (space.clone(), f)).collect());
            if !has_some {
                break;
            }
            if is_settled || turn == PATIENCE {
                return true;
            }
            std::thread::sleep(Duration::from_micros(200));
        }
    }
    false
}

/// No record of the app names one of these slots any more, which hold nothing: its page raises
/// SIGBUS when it is touched.
fn condemn(registry: &Registry, shared: &Shared, app: &App, slots: &HashSet<SlotIdx>) {
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

/// Brings the pages of the space's intent back and concludes it. Nothing to do without one. Bytes
/// that can't be had are a failure only if somebody misses them.
pub fn bring_back(
    registry: &Registry,
    shared: &Shared,
    space: &Arc<Space>,
    serve: Serve<'_>,
) -> Result<(), RollbackError> {
    let Some(intent) = space.core().table.intent() else { return Ok(()) };
    let slots = intent.slots();
    let named = |space: &Arc<Space>| names_any(&space.core().table, |slot| slots.contains_key(&slot));
    if registry.of_app(space.app.id).iter().any(named) {
        match bytes_of(space, &intent) {
            Ok(bytes) => give_back(registry, shared, &space.app, &slots, &bytes, serve),
            Err(error) => {
                let slots = slots.into_keys().collect();
                if is_missed(registry, shared, &space.app, &slots, serve) {
                    return Err(error);
                }
            }
        }
    }
    space.core().table.conclude();
    Ok(())
}

/// What staging holds of the intent's pages, zeros for those that have not moved.
fn bytes_of(space: &Space, intent: &Intent) -> Result<Vec<u8>, RollbackError> {
    let staging = space.core().table.stub().ok_or(RollbackError::NoProcess)?.staging;
    let mm = space.mm();
    let staged = staged(&space.core().table, &space.uffd, mm.as_deref())?;
    let mm = mm.ok_or(RollbackError::NoProcess)?;
    let mut bytes = vec![0; intent.victims.len() * PAGE_SIZE];
    for (victim, page) in intent.victims.iter().zip(bytes.chunks_mut(PAGE_SIZE)) {
        if staged.contains(&victim.staged_at) {
            let at = staging.0 + victim.staged_at * PAGE_SIZE as u64;
            mm.read(at, page).map_err(RollbackError::Staging)?;
        }
    }
    Ok(bytes)
}

/// Puts bytes back wherever a record of the app names their slot: `slots` says which page of
/// `bytes` belongs into each.
fn give_back(
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
            grows_up(&space, shared);
            let mut core = space.core();
            let mut faults = Vec::new();
            drain(&space, &mut core, shared, Instant::now(), &mut faults);
            let mut mine = Vec::new();
            let (start, end) = Table::everything();
            core.table.walk(start, end, |page, record| {
                if let Record::Evicted(slot) = record
                    && let Some(i) = slots.get(&slot)
                {
                    mine.push((page, slot, *i));
                }
            });
            let settled = mine.is_empty() || settle_changes(&space, &mut core, shared);
            let mut again = !settled;
            for (page, slot, i) in mine.into_iter().filter(|_| settled) {
                let bytes = &bytes[i * PAGE_SIZE..(i + 1) * PAGE_SIZE];
                again |= !put_back(&space, &mut core, page, bytes, slot, shared);
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

fn names_any(table: &Table, is_one: impl Fn(SlotIdx) -> bool) -> bool {
    let mut named = false;
    let (start, end) = Table::everything();
    table.walk(start, end, |_, record| named |= matches!(record, Record::Evicted(slot) if is_one(slot)));
    named
}
