//! What the lane brings back: pages are installed, or lost. And second tries of what could not be
//! done at once.

use crate::fault::install::{install, lose};
use crate::fault::page_fault::{Fault, Why};
use crate::fault::worker::{Again, PATIENCE, Pending, Worker};
use crate::page::PageIdx;
use crate::space::Space;
use annex_host::repeated;
use annex_pool::{Buf, Done, IoError};
use annex_shared::ids::SlotIdx;
use std::sync::Arc;
use std::time::Instant;

impl Worker {
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
        let concurrent = |limit| {
            let mut core = space.core_concurrent(limit)?;
            core.has_to_itself(stretch.range()).then_some(core)
        };
        let core = if fault.is_some() { self.core_of(space, concurrent) } else { concurrent(PATIENCE) };
        let installed = core.map(|mut core| install(space, &mut core, *stretch, self.lane.bytes(&buf), why, &shared));
        match (fault, installed) {
            (Some(_), None) => self.try_again(Again::Install(pending, buf)),
            (Some(_), Some(false)) => {
                let id = space.id;
                self.try_again(Again::Install(pending, buf));
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
        let is_settled = space.is_dead()
            || self
                .core_of(&space, |limit| space.core_within(limit))
                .is_some_and(|mut core| lose(&space, &mut core, page, slot, &shared));
        if !is_settled {
            self.try_again(Again::Lose(space, page, slot));
        }
    }

    /// What has waited long enough is served, whatever the evictor is at.
    pub(super) fn end_delays(&mut self) {
        let now = Instant::now();
        for i in (0..self.delaying.len()).rev() {
            if self.delaying[i].1 <= now {
                let (app, _) = self.delaying.swap_remove(i);
                self.registry.take_delayed(&app).into_iter().for_each(|(space, fault)| self.face(&space, fault));
            }
        }
    }

    /// Does everything that can be done now: doorbells, completions, second tries.
    pub(super) fn turn(&mut self) {
        self.end_delays();
        let (before, tried) = (self.again.len(), self.again.take());
        for again in tried {
            match again {
                Again::Ring(space) => {
                    self.serve_ring(&space);
                }
                Again::Drain(id, since) => self.visit(id, since),
                Again::Fault(space, fault) => self.face(&space, fault),
                Again::Install(pending, buf) => self.install(pending, buf),
                Again::Lose(space, page, slot) => self.lose(space, page, slot),
            }
        }
        self.goes_on = self.again.len() < before;
        self.lane.submit();
        let mut done = std::mem::take(&mut self.done);
        self.lane.poll(&mut done);
        if !done.is_empty() {
            self.busy_poll.restart();
        }
        for Done { token, buf, result } in done.drain(..) {
            let Some(pending) = self.pending.get_mut(token as usize).and_then(Option::take) else { continue };
            self.free.push(token as usize);
            match result {
                Ok(()) => self.install(pending, buf),
                Err(error) => {
                    self.lane.free(buf);
                    self.fail(pending, error);
                }
            }
        }
        self.done = done;
        self.lane.submit();
        if let Some(space) = self.faulted.take() {
            space.move_some();
        }
    }
}
