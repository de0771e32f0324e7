//! Evictions that were cut short: by the death of the stub, of annexd, or of all donors. The pages
//! go back into the app.
//!
//! Nothing of such a batch counts as written: a WRITE that was under way may still arrive, so its
//! slots rest before they are used again. Wherever a record names one of them (forked children and
//! remapped places included) the bytes are put, from staging or from the batch's buffer.

use crate::app::App;
use crate::events::{drain, grows_up, settle_changes};
use crate::fault::{Fault, put_back};
use crate::recovery::staged::{RollbackError, staged};
use crate::space::{Record, Registry, Shared, Space, Table};
use annex_shared::ids::SlotIdx;
use annex_shared::page::PAGE_SIZE;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Turns of 200 us that an app which keeps changing its mappings is given.
const PATIENCE: u32 = 50_000;

/// Who takes faults that were read on the way.
pub type Serve<'a> = &'a dyn Fn(Vec<(Arc<Space>, Fault)>);

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
            Err(RollbackError::Ended) => {
                let mut faults = Vec::new();
                drain(space, &mut space.core(), shared, Instant::now(), &mut faults);
                let missed = registry.of_app(space.app.id).iter().any(|other| other.id != space.id && named(other));
                return if missed { Err(RollbackError::Ended) } else { Ok(()) };
            }
            staged => staged?,
        };
        let mm = mm.ok_or(RollbackError::NoProcess)?;
        let mut bytes = vec![0; intent.victims.len() * PAGE_SIZE];
        for (victim, page) in intent.victims.iter().zip(bytes.chunks_mut(PAGE_SIZE)) {
            if staged.contains(&victim.staged_at) {
                let at = staging.0 + victim.staged_at * PAGE_SIZE as u64;
                mm.read(at, page).map_err(RollbackError::Staging)?;
            }
        }
        give_back(registry, shared, &space.app, &slots, &bytes, serve);
    }
    space.core().table.conclude();
    Ok(())
}

/// Puts bytes back wherever a record of the app names their slot: `slots` says which page of
/// `bytes` belongs into each.
pub fn give_back(
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

fn names_any(table: &Table, slots: &HashMap<SlotIdx, usize>) -> bool {
    let mut named = false;
    let (start, end) = Table::everything();
    table.walk(start, end, |_, record| named |= matches!(record, Record::Evicted(slot) if slots.contains_key(&slot)));
    named
}
