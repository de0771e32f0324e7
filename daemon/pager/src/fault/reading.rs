//! What a worker brings from the pool: pages that are asked for and come later, and those that are
//! there at once.
//!
//! A page that comes alone from a donor on this host is read and installed without letting go of
//! the space's lock: a copy of 4 KiB takes less time than a read under way is work. All else is
//! asked for, and whoever has the lock meanwhile finds that nothing has changed yet.

use super::worker::{Again, PATIENCE, Worker};
use crate::fault::fetch::{Fetch, Stretch};
use crate::fault::install::install;
use crate::fault::install::lose;
use crate::fault::page_fault::{Fault, Why};
use crate::page::PageIdx;
use crate::space::address_space::Space;
use crate::space::guard::Hold;
use annex_host::repeated;
use annex_pool::{Buf, Busy, IoError, SlotRun};
use annex_shared::ids::SlotIdx;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// A read under way.
pub(super) struct Pending {
    space: Arc<Space>,
    stretch: Stretch,
    /// `None`: nobody waits for it.
    fault: Option<Fault>,
}

impl Worker {
    /// A page that nobody waited for is on its way, and now somebody does.
    pub(super) fn joins(&mut self, space: &Arc<Space>, fault: Fault) -> bool {
        let is_it =
            |p: &&mut Pending| p.fault.is_none() && p.stretch.contains(fault.page) && Arc::ptr_eq(&p.space, space);
        let ahead = self.pending.iter_mut().flatten().find(is_it);
        ahead.map(|pending| pending.fault = Some(fault)).is_some()
    }

    /// Asks the pool for what a fault brings: what is waited for first, the rest if there is room.
    /// Called under the space's lock: from here on the lane holds references to the slots.
    pub(super) fn fetch(&mut self, space: &Arc<Space>, fault: Fault, fetch: &Fetch) {
        self.read(space, fault, fetch.asked);
        for stretch in fetch.apart() {
            let Some(buf) = self.lane.alloc(stretch.pages as usize) else { return };
            let pending = Pending { space: space.clone(), stretch, fault: None };
            if let Err(Busy(buf)) = self.post(pending, buf) {
                self.lane.free(buf);
                return;
            }
        }
    }

    /// Asks the pool for a page that is waited for and its neighbours.
    fn read(&mut self, space: &Arc<Space>, fault: Fault, mut stretch: Stretch) {
        let buf = self.lane.alloc(stretch.pages as usize).or_else(|| {
            stretch = stretch.only(fault.page);
            self.lane.alloc(1)
        });
        let posted = match buf {
            Some(buf) => self.post(Pending { space: space.clone(), stretch, fault: Some(fault) }, buf),
            None => {
                self.again.push(Again::Fault(space.clone(), fault));
                return;
            }
        };
        if let Err(Busy(buf)) = posted {
            self.lane.free(buf);
            self.again.push(Again::Fault(space.clone(), fault));
        }
    }

    fn post(&mut self, pending: Pending, buf: Buf) -> Result<(), Busy> {
        let token = self.free.pop().unwrap_or_else(|| {
            self.pending.push(None);
            self.pending.len() - 1
        });
        let Stretch { slot: first, pages: count, .. } = pending.stretch;
        let posted = self.lane.read(SlotRun { first, count }, buf, token as u64);
        match posted {
            Ok(()) => {
                self.pending[token] = Some(pending);
                self.busy_poll.restart();
            }
            Err(_) => self.free.push(token),
        }
        posted
    }

    /// Installs a page that is to come alone from memory of this host: that takes less time than to
    /// ask for it and to come back. False: it is to be asked for.
    pub(super) fn install_at_once(&mut self, space: &Space, core: &mut Hold<'_>, fault: Fault, fetch: &Fetch) -> bool {
        let Some(page) = fetch.alone() else { return false };
        let why = fault.why();
        let install = |bytes: &[u8]| install(space, core, page, bytes, why, &self.shared).then_some(());
        let is_installed = self.lane.read_page_now(page.slot, install).is_some();
        if is_installed {
            self.served(space, fault);
        }
        is_installed
    }

    /// A fault that had to be read for is over.
    fn served(&self, space: &Space, fault: Fault) {
        space.app.counters.major.fetch_add(1, Ordering::Relaxed);
        space.app.latency.add(fault.since.elapsed());
        self.see_to_room(space);
    }

    fn see_to_room(&self, space: &Space) {
        if space.app.is_over() {
            self.registry.wake_evictor();
        }
    }

    /// The pool could not give what was asked for.
    pub(super) fn fail(&mut self, pending: Pending, error: IoError) {
        let Pending { space, stretch, fault } = pending;
        let name = &space.app.name;
        repeated!(WARN, "failed to read a page" of name, app = name, slot = stretch.slot.0, "failed to read a page: {error}");
        match fault {
            // Whoever touches it will ask again.
            None => {}
            Some(fault) if stretch.pages == 1 => self.lose(space, fault.page, stretch.slot),
            // One of the neighbours may be the trouble: the page that is waited for, alone.
            Some(fault) => self.read(&space, fault, stretch.only(fault.page)),
        }
    }

    pub(super) fn install(&mut self, pending: Pending, buf: Buf) {
        let Pending { space, stretch, fault } = &pending;
        // What nobody waits for is dropped rather than that somebody waits for it, or the app is
        // above its limit.
        if space.is_dead() || (fault.is_none() && space.app.room() == 0) {
            self.lane.free(buf);
            return;
        }
        let shared = self.shared.clone();
        let why = fault.map_or(Why::Ahead, Fault::why);
        let beside = |limit| {
            let mut core = space.core_beside(limit)?;
            core.has_to_itself(stretch.range()).then_some(core)
        };
        let core = if fault.is_some() { self.core_of(space, beside) } else { beside(PATIENCE) };
        let installed = core.map(|mut core| install(space, &mut core, *stretch, self.lane.bytes(&buf), why, &shared));
        match (fault, installed) {
            (Some(_), None) => self.again.push(Again::Install(pending, buf)),
            (Some(_), Some(false)) => {
                let id = space.id;
                self.again.push(Again::Install(pending, buf));
                // Its message must be read before the install can succeed.
                self.visit(id, Instant::now());
            }
            (Some(fault), Some(true)) => {
                self.served(space, *fault);
                self.lane.free(buf);
            }
            (None, _) => {
                self.see_to_room(space);
                self.lane.free(buf);
            }
        }
    }

    pub(super) fn lose(&mut self, space: Arc<Space>, page: PageIdx, slot: SlotIdx) {
        let shared = self.shared.clone();
        let is_over = space.is_dead()
            || self
                .core_of(&space, |limit| space.core_within(limit))
                .is_some_and(|mut core| lose(&space, &mut core, page, slot, &shared));
        if !is_over {
            self.again.push(Again::Lose(space, page, slot));
        }
    }
}
