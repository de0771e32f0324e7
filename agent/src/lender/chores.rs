//! Memory is made, emptied and moved, and kept in the store meanwhile.

use super::Lender;
use super::memory::{Chore, Memory, Slot};
use crate::hugepages::Hugepages;
use crate::lease::SavedLease;
use crate::slab::{Pages, Slab, SlabError};
use crate::store::SlabName;
use annex_fabric::ErrorKind;
use annex_fabric::shm::monotonic_ns;
use annex_host::failpoint::failpoint;
use annex_host::repeated;
use annex_shared::ids::{ClientId, Rkey, SlabId};
use parking_lot::RwLockWriteGuard;
use std::sync::atomic::{AtomicBool, Ordering};
use tracing::{error, warn};

impl Lender {
    /// True if the slab has memory afterwards, all of it zero.
    pub(super) fn clean(&self, chore: Chore) -> bool {
        // Waits for the operations that are still in the slab. Its key is dead: no new ones come.
        let memory = self.write(chore.slab).take();
        let Some(mut memory) = memory else { return false };
        if chore.keep && !memory.is_shared.load(Ordering::Relaxed) {
            memory.slab.zero();
            *self.write(chore.slab) = Some(memory);
            return true;
        }
        self.discard(memory);
        chore.keep && self.fill_or_log(chore.slab)
    }

    fn discard(&self, memory: Memory) {
        memory.slab.discard();
        failpoint("slab-emptied");
        self.store.forget(&memory.name.to_string());
        failpoint("slab-forgotten");
    }

    pub(super) fn fill_or_log(&self, slab: SlabId) -> bool {
        let say = |e: &SlabError| repeated!(ERROR, "a slab gets no memory" of "", "{slab} gets no memory: {e}");
        let filled = self.fill(slab).inspect_err(say);
        *self.making.shortcoming.lock() = filled.as_ref().err().map(ToString::to_string);
        filled.is_ok()
    }

    /// Why the slab that was to be made last could not be; `None`: it could.
    pub fn shortcoming(&self) -> Option<String> {
        self.making.shortcoming.lock().clone()
    }

    pub(super) fn fill(&self, id: SlabId) -> Result<(), SlabError> {
        let memory = self.make(id)?;
        self.install(id, memory);
        Ok(())
    }

    /// Fresh memory for a slab, kept in the store and not in its place yet.
    fn make(&self, id: SlabId) -> Result<Memory, SlabError> {
        // Fits: a slab is at most 1 GiB.
        let terms = self.terms();
        let slab = Slab::create(terms.slab_size as usize, terms.hugepages)?;
        if terms.hugepages == Hugepages::Auto
            && slab.pages() == Pages::Small
            && !self.making.warned_small.swap(true, Ordering::Relaxed)
        {
            warn!("no 2 MiB pages are free for {id}: it is made of 4 KiB pages (raise vm.nr_hugepages to change that)");
        }
        failpoint("slab-made");
        let is_second = self.slot(id).next_is_second.fetch_xor(true, Ordering::Relaxed);
        let name = SlabName { slab: id, is_second };
        self.store.keep(&name.to_string(), slab.fd());
        failpoint("slab-kept");
        Ok(Memory { slab, name, is_shared: AtomicBool::new(false), is_stale: false })
    }

    /// Puts memory in its place; what was there is returned.
    pub(super) fn install(&self, id: SlabId, memory: Memory) -> Option<Memory> {
        let slot = self.slot(id);
        slot.inode.store(memory.saved().inode, Ordering::Relaxed);
        slot.next_is_second.store(memory.name.other().is_second, Ordering::Relaxed);
        self.write(id).replace(memory)
    }

    /// Moves a slab that was mapped under an earlier agent's key to fresh memory, so that whoever
    /// still has the old mapping can't change it. Operations on the slab wait. Nothing to do if
    /// another operation has seen to it, or the lease is over.
    pub(super) fn freshen(&self, id: SlabId, rkey: Rkey) -> Result<(), ErrorKind> {
        let mut place = self.write(id);
        let Some(old) = place.as_ref().filter(|m| m.is_stale) else { return Ok(()) };
        let mut memory = self.make(id).map_err(|e| {
            error!("{id} can't be moved to fresh memory after a restart: {e}");
            ErrorKind::RemoteOperation
        })?;
        // The old board says dead since this agent started. So an operation under the old key that
        // was acknowledged is complete in there.
        memory.slab.copy_from(&old.slab);
        failpoint("copy-kept");
        {
            // Under the book's lock: were the lease to end at this moment, the entry would say lent
            // after all.
            let _books = self.books.lock();
            let slot = self.slot(id);
            if slot.rkey.load(Ordering::Acquire) == rkey.0 && slot.until.load(Ordering::Acquire) != 0 {
                let client = ClientId(slot.client.load(Ordering::Acquire));
                slot.inode.store(memory.saved().inode, Ordering::Relaxed);
                self.state.lend(SavedLease { slab: id, client, number: rkey.lease() }, memory.saved());
            }
        }
        failpoint("copy-saved");
        let old = place.replace(memory);
        drop(place);
        old.into_iter().for_each(|old| self.discard(old));
        Ok(())
    }

    /// Runs `f` on the memory of the slab that this client holds under this key.
    pub(super) fn with_memory<T>(
        &self,
        who: ClientId,
        rkey: Rkey,
        f: impl FnOnce(SlabId, &Memory) -> Option<T>,
    ) -> Result<T, ErrorKind> {
        let no = ErrorKind::RemoteAccess;
        let id = *self.keys.read().get(&rkey).ok_or(no)?;
        let slot = self.slot(id);
        loop {
            let memory = slot.memory.read();
            // Checked under the guard: from here on the janitor waits for us, so what holds now
            // holds until `f` is done. The slab may have changed hands since the key was looked up,
            // but keys never come back.
            let now = monotonic_ns();
            slot.used.store(now, Ordering::Relaxed);
            let holds = slot.until.load(Ordering::Acquire) > now
                && slot.rkey.load(Ordering::Acquire) == rkey.0
                && slot.client.load(Ordering::Acquire) == who.0;
            match memory.as_ref().filter(|_| holds) {
                None => return Err(no),
                Some(memory) if !memory.is_stale => return f(id, memory).ok_or(no),
                Some(_) => {}
            }
            drop(memory);
            self.freshen(id, rkey)?;
        }
    }

    pub(super) fn slot(&self, slab: SlabId) -> &Slot {
        &self.slots[slab.0 as usize]
    }

    fn write(&self, slab: SlabId) -> RwLockWriteGuard<'_, Option<Memory>> {
        self.slot(slab).memory.write()
    }
}
