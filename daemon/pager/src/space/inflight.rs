//! Slots whose bytes are on their way to the donors, and the faults that wait for them.
//!
//! A page's record names its new slot from the moment it was moved, so that forks and remaps carry
//! it along; until the write is settled the slot must not be read. A fault that meets such a slot
//! is parked here and served when its batch is.

use crate::fault::Fault;
use crate::page::PageIdx;
use crate::space::address_space::Space;
use crate::space::identity::SpaceId;
use annex_pool::SlotRun;
use annex_shared::ids::SlotIdx;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

#[derive(Default)]
pub struct InFlight {
    /// Runs in `state`, so that the common case needs no lock.
    count: AtomicUsize,
    state: Mutex<State>,
}

/// The space, the page, the thread, and whether it writes.
type Whose = (SpaceId, PageIdx, i32, bool);

#[derive(Default)]
struct State {
    runs: Vec<SlotRun>,
    /// Each thread's fault once, however often it was taken back (a signal does that) and made
    /// anew.
    parked: HashMap<Whose, (Arc<Space>, Fault)>,
}

fn holds(runs: &[SlotRun], slot: SlotIdx) -> bool {
    runs.iter().any(|r| (r.first.0..r.first.0 + r.count).contains(&slot.0))
}

impl InFlight {
    /// Called before any record names the runs' slots.
    pub fn begin(&self, runs: &[SlotRun]) {
        let mut state = self.state.lock();
        state.runs.extend_from_slice(runs);
        self.count.store(state.runs.len(), Ordering::SeqCst);
    }

    /// Called when the slots can be read, or no record names them any more. The parked faults are
    /// the caller's to serve.
    pub fn settle(&self, runs: &[SlotRun]) -> Vec<(Arc<Space>, Fault)> {
        let mut state = self.state.lock();
        state.runs.retain(|r| !runs.contains(r));
        self.count.store(state.runs.len(), Ordering::SeqCst);
        std::mem::take(&mut state.parked).into_values().collect()
    }

    /// The faults that wait, for the caller to serve some other way; who can't be served so must be
    /// parked again.
    pub fn take_parked(&self) -> Vec<(Arc<Space>, Fault)> {
        std::mem::take(&mut self.state.lock().parked).into_values().collect()
    }

    pub fn contains(&self, slot: SlotIdx) -> bool {
        self.count.load(Ordering::SeqCst) != 0 && holds(&self.state.lock().runs, slot)
    }

    /// Parks the fault if its page's slot is in flight; false if it can be served now.
    pub fn park(&self, slot: SlotIdx, space: &Arc<Space>, fault: Fault) -> bool {
        if self.count.load(Ordering::SeqCst) == 0 {
            return false;
        }
        let mut state = self.state.lock();
        let waits = holds(&state.runs, slot);
        if waits {
            let whose = (space.id, fault.page, fault.thread, fault.write);
            state.parked.entry(whose).or_insert_with(|| (space.clone(), fault));
        }
        waits
    }
}
