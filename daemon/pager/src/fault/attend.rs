//! What a worker does for a space that has something to say: reads it, and serves the faults.

use crate::events::{drain, grows_up};
use crate::fault::next::Next;
use crate::fault::page_fault::Fault;
use crate::fault::serve::serve;
use crate::fault::worker::{Again, Worker};
use crate::sched::affinity;
use crate::space::{Core, Space, SpaceGuard, SpaceId};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// Times that faults were read after which a worker rings for the thread that looks where those
/// come from, if that sleeps.
const RING_EVERY: u32 = 16;
impl Worker {
    /// Reads what a space has to say and acts on it.
    pub(super) fn visit(&mut self, id: SpaceId, since: Instant) {
        let Some(space) = self.registry.space(id) else { return };
        if space.is_dead() {
            let _ = self.epoll.delete(space.uffd.as_fd());
        } else if !self.attend(&space, since, None) {
            self.try_again(Again::Drain(id, since));
        }
    }

    /// One fault, apart from its space's other messages.
    pub(super) fn face(&mut self, space: &Arc<Space>, fault: Fault) {
        if !space.is_dead() && !self.attend(space, Instant::now(), Some(fault)) {
            self.try_again(Again::Fault(space.clone(), fault));
        }
    }

    /// Applies every change that can be read, then serves the faults that came with them (they have
    /// waited since `since`), and `also`. False: the space is busy.
    pub(super) fn attend(&mut self, space: &Arc<Space>, since: Instant, also: Option<Fault>) -> bool {
        let shared = self.shared.clone();
        if !grows_up(space, &shared) {
            return false;
        }
        let Some(mut core) = self.core_of(space, |limit| space.core_for_messages(limit)) else { return false };
        let mut faults = std::mem::take(&mut self.faults);
        drain(space, &mut core, &shared, since, &mut faults);
        self.note_threads(space, &mut core, &faults);
        faults.extend(also);
        let any = !faults.is_empty();
        faults.drain(..).for_each(|fault| self.serve(space, &mut core, fault));
        self.faults = faults;
        if any && space.stub_shares_cpu.load(Ordering::Relaxed) {
            core.faulted = true;
            self.faulted = Some(space.clone());
        }
        true
    }

    pub(super) fn serve(&mut self, space: &Arc<Space>, core: &mut SpaceGuard<'_>, fault: Fault) {
        if self.joins(space, fault) {
            return;
        }
        match serve(space, core, fault, &self.shared) {
            Next::Served => {}
            Next::Delayed => self.delay(&space.app),
            Next::Again => self.try_again(Again::Fault(space.clone(), fault)),
            Next::Read(fetch) if self.install_at_once(space, core, fault, &fetch) => {}
            Next::Read(fetch) => self.fetch(space, fault, &fetch),
        }
    }

    /// Where faults come from is of interest to who watches what.
    pub(super) fn note_threads(&mut self, space: &Space, core: &mut Core, faults: &[Fault]) {
        let Some(last) = faults.last() else { return };
        space.faulted(last.thread);
        self.since_ring += 1;
        if self.since_ring >= RING_EVERY {
            self.since_ring = 0;
            self.looking.ring();
        }
        for fault in faults {
            if let Some(change) = core.affinity.fault(fault.thread) {
                affinity::rearrange(&self.epolls, space, change);
            }
        }
    }
}
