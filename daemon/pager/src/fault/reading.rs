//! What a worker brings from the pool: pages that are asked for and come later, and those that are
//! there at once.
//!
//! A page that comes alone from a donor on this host is read and installed without letting go of
//! the space's lock: a copy of 4 KiB takes less time than a read under way is work. All else is
//! asked for, and whoever has the lock meanwhile finds that nothing has changed yet.

use crate::fault::fetch::{Fetch, Stretch};
use crate::fault::install::install;
use crate::fault::page_fault::Fault;
use crate::fault::worker::{Again, Pending, Worker};
use crate::space::{Space, SpaceGuard};
use annex_pool::{Buf, Busy, SlotRun};
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Worker {
    /// The page is on its way: nobody waited for it and now somebody does, or one more does.
    /// (Whoever waits for a page is woken with all who do.)
    pub(super) fn joins(&mut self, space: &Arc<Space>, fault: Fault) -> bool {
        let is_it = |p: &&mut Pending| {
            p.fault.is_none_or(|f| f.page == fault.page)
                && p.stretch.contains(fault.page)
                && Arc::ptr_eq(&p.space, space)
        };
        let ahead = self.pending.iter_mut().flatten().find(is_it);
        ahead.map(|pending| pending.fault.get_or_insert(fault)).is_some()
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
    pub(super) fn read(&mut self, space: &Arc<Space>, fault: Fault, mut stretch: Stretch) {
        let buf = self.lane.alloc(stretch.pages as usize).or_else(|| {
            stretch = stretch.only(fault.page);
            self.lane.alloc(1)
        });
        let posted = match buf {
            Some(buf) => self.post(Pending { space: space.clone(), stretch, fault: Some(fault) }, buf),
            None => {
                self.try_again(Again::Fault(space.clone(), fault));
                return;
            }
        };
        if let Err(Busy(buf)) = posted {
            self.lane.free(buf);
            self.try_again(Again::Fault(space.clone(), fault));
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
    pub(super) fn install_at_once(
        &mut self,
        space: &Space,
        core: &mut SpaceGuard<'_>,
        fault: Fault,
        fetch: &Fetch,
    ) -> bool {
        let Some(page) = fetch.alone() else { return false };
        let why = fault.why();
        let install = |bytes: &[u8]| install(space, core, page, bytes, why, &self.shared).then_some(());
        let is_installed = self.lane.read_page_now(page.slot, install).is_some();
        if is_installed {
            self.served(space, fault);
        }
        is_installed
    }

    /// A fault that had to be read for is served.
    pub(super) fn served(&self, space: &Space, fault: Fault) {
        space.app.counters.major.fetch_add(1, Ordering::Relaxed);
        space.app.latency.add(fault.since.elapsed());
        self.see_to_room(space);
    }

    pub(super) fn see_to_room(&self, space: &Space) {
        if space.app.is_above_watermark() {
            self.registry.wake_evictor();
        }
    }
}
