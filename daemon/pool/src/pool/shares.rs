//! Programs and the KV API beside each other: how much of the pool each may take, so that neither
//! starves the other.
//!
//! The KV API has a *minimum*, which programs leave to it, and a *maximum*, above which it takes
//! nothing though there is room. What lies between belongs to who comes first. How much the pool
//! has changes with its donors, so it is looked at anew every so often; what is taken in between
//! counts at once.

use super::Pool;
use crate::core::lock;
use crate::metadata::slots::SlotRun;
use annex_shared::api::Limit;
use annex_shared::ids::SlotIdx;
use annex_shared::page::PAGE_SIZE;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// A look at the whole pool holds for so long, unless replicas come or go.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// What the KV API is sure to have, and what it may have at most: sizes, or parts of what the pool
/// can take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    pub min: Limit,
    pub max: Limit,
}

/// Not divided: whoever comes first has it all.
#[derive(Default)]
pub(crate) struct Shares(Mutex<Option<Divided>>);

/// All in pages.
struct Divided {
    terms: Terms,
    /// The KV API's.
    kv: u64,
    total: u64,
    /// Free, as far as is known.
    free: u64,
    /// When, and at which state of the replicas.
    looked: Option<(Instant, u64)>,
}

impl Divided {
    fn pages(&self, limit: Limit) -> u64 {
        match limit {
            Limit::Bytes(bytes) => bytes / PAGE_SIZE as u64,
            Limit::Percent(percent) => (u128::from(self.total) * u128::from(percent) / 100) as u64,
        }
    }

    fn refresh(&mut self, pool: &Pool) {
        let (now, changes) = (Instant::now(), pool.replica_changes());
        let holds = |(at, seen)| seen == changes && now.saturating_duration_since(at) < LOOK_EVERY;
        if !self.looked.is_some_and(holds) {
            (self.total, self.free) = pool.extent();
            self.looked = Some((now, changes));
        }
    }

    fn for_apps(&self) -> u64 {
        self.free.saturating_sub(self.pages(self.terms.min).saturating_sub(self.kv))
    }

    fn for_kv(&self) -> u64 {
        self.pages(self.terms.max).saturating_sub(self.kv)
    }
}

impl Pool {
    /// Divides the pool between programs and the KV API, which holds so many pages already.
    pub fn divide(&self, terms: Terms, kv: u64) {
        *lock(&self.shares.0) = Some(Divided { terms, kv, total: 0, free: 0, looked: None });
    }

    /// Takes up to `pages` slots for programs; see `take_slots`.
    pub fn reserve(&self, pages: usize, runs: &mut Vec<SlotRun>) -> usize {
        let may = self.share_of(pages, Divided::for_apps);
        let got = self.take_slots(may, runs);
        if let Some(divided) = &mut *lock(&self.shares.0) {
            divided.free = divided.free.saturating_sub(got as u64);
        }
        got
    }

    /// The same for the KV API.
    pub fn reserve_for_kv(&self, pages: usize, runs: &mut Vec<SlotRun>) -> usize {
        let may = self.share_of(pages, Divided::for_kv);
        let got = self.take_slots(may, runs);
        if let Some(divided) = &mut *lock(&self.shares.0) {
            divided.free = divided.free.saturating_sub(got as u64);
            divided.kv += got as u64;
        }
        got
    }

    /// [`Pool::release`] of a reference that [`Pool::reserve_for_kv`] gave.
    pub fn release_of_kv(&self, slot: SlotIdx) {
        self.release(slot);
        if let Some(divided) = &mut *lock(&self.shares.0) {
            divided.kv = divided.kv.saturating_sub(1);
        }
    }

    /// What the KV API is sure of, and what it may have at most, in bytes.
    pub fn share_of_kv(&self) -> Option<(u64, u64)> {
        let mut shares = lock(&self.shares.0);
        let divided = shares.as_mut()?;
        divided.refresh(self);
        let bytes = |limit| divided.pages(limit) * PAGE_SIZE as u64;
        Some((bytes(divided.terms.min), bytes(divided.terms.max)))
    }

    /// How many pages more the KV API could have now, as far as is known.
    pub fn room_for_kv(&self) -> u64 {
        let mut shares = lock(&self.shares.0);
        let Some(divided) = &mut *shares else { return self.available_pages() };
        divided.refresh(self);
        divided.for_kv().min(divided.free)
    }

    /// There are free pages, and none of them for programs.
    pub(crate) fn is_kept_for_kv(&self) -> bool {
        let mut shares = lock(&self.shares.0);
        let Some(divided) = &mut *shares else { return false };
        divided.refresh(self);
        divided.free > 0 && divided.for_apps() == 0
    }

    fn share_of(&self, pages: usize, share: impl Fn(&Divided) -> u64) -> usize {
        let mut shares = lock(&self.shares.0);
        let Some(divided) = &mut *shares else { return pages };
        divided.refresh(self);
        pages.min(usize::try_from(share(divided)).unwrap_or(usize::MAX))
    }

    /// How many pages there are in all, and how many are free.
    fn extent(&self) -> (u64, u64) {
        let free = self.available_pages();
        (self.info().used / PAGE_SIZE as u64 + free, free)
    }
}
