//! What programs and the KV API may take of the pool; see `shares`.

use super::Pool;
use super::shares::{Divided, Terms};
use crate::metadata::slots::SlotRun;
use annex_shared::ids::SlotIdx;
use annex_shared::page::PAGE_SIZE;

impl Pool {
    /// Divides the pool between programs and the KV API, which holds so many pages already.
    pub fn divide(&self, terms: Terms, kv: u64) {
        *self.shares.0.lock() = Some(Divided::new(terms, kv));
    }

    /// Takes up to `pages` slots for programs; see `take_slots`.
    pub fn reserve(&self, pages: usize, runs: &mut Vec<SlotRun>) -> usize {
        let may = self.share_of(pages, Divided::for_apps);
        let got = self.take_slots(may, runs);
        if let Some(divided) = &mut *self.shares.0.lock() {
            divided.free = divided.free.saturating_sub(got as u64);
        }
        got
    }

    /// The same for the KV API.
    pub fn reserve_for_kv(&self, pages: usize, runs: &mut Vec<SlotRun>) -> usize {
        let may = self.share_of(pages, Divided::for_kv);
        let got = self.take_slots(may, runs);
        if let Some(divided) = &mut *self.shares.0.lock() {
            divided.free = divided.free.saturating_sub(got as u64);
            divided.kv += got as u64;
        }
        got
    }

    /// [`Pool::release`] of a reference that [`Pool::reserve_for_kv`] gave.
    pub fn release_of_kv(&self, slot: SlotIdx) {
        self.release(slot);
        if let Some(divided) = &mut *self.shares.0.lock() {
            divided.kv = divided.kv.saturating_sub(1);
        }
    }

    /// What the KV API is sure of, and what it may have at most, in bytes.
    pub fn share_of_kv(&self) -> Option<(u64, u64)> {
        let mut shares = self.shares.0.lock();
        let divided = shares.as_mut()?;
        self.refresh(divided);
        let bytes = |limit| divided.pages(limit) * PAGE_SIZE as u64;
        Some((bytes(divided.terms.min), bytes(divided.terms.max)))
    }

    /// How many pages more the KV API could have now, as far as is known.
    pub fn room_for_kv(&self) -> u64 {
        let mut shares = self.shares.0.lock();
        let Some(divided) = &mut *shares else { return self.available_pages() };
        self.refresh(divided);
        divided.for_kv().min(divided.free)
    }

    /// There are free pages, and none of them for programs.
    pub(crate) fn is_kept_for_kv(&self) -> bool {
        let mut shares = self.shares.0.lock();
        let Some(divided) = &mut *shares else { return false };
        self.refresh(divided);
        divided.free > 0 && divided.for_apps() == 0
    }

    fn share_of(&self, pages: usize, share: impl Fn(&Divided) -> u64) -> usize {
        let mut shares = self.shares.0.lock();
        let Some(divided) = &mut *shares else { return pages };
        self.refresh(divided);
        pages.min(usize::try_from(share(divided)).unwrap_or(usize::MAX))
    }

    fn refresh(&self, divided: &mut Divided) {
        divided.refresh(self.replica_changes(), || {
            let free = self.available_pages();
            let used: u64 = self.core.extents.live().map(|(extent, _)| self.used_bytes(extent)).sum();
            (used / PAGE_SIZE as u64 + free, free)
        });
    }
}
