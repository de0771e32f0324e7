//! Programs and the KV API beside each other: how much of the pool each may take, so that neither
//! starves the other.
//!
//! The KV API has a *minimum*, which programs leave to it, and a *maximum*, above which it takes
//! nothing though there is room. What lies between belongs to who comes first. How much the pool
//! has changes with its donors, so it is looked at anew every so often; what is taken in between
//! counts at once.

use annex_shared::api::Limit;
use annex_shared::page::PAGE_SIZE;
use parking_lot::Mutex;
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
pub(crate) struct Shares(pub Mutex<Option<Divided>>);

/// All in pages.
pub(crate) struct Divided {
    pub terms: Terms,
    /// The KV API's.
    pub kv: u64,
    total: u64,
    /// Free, as far as is known.
    pub free: u64,
    /// When, and at which state of the replicas.
    looked: Option<(Instant, u64)>,
}

impl Divided {
    pub fn pages(&self, limit: Limit) -> u64 {
        match limit {
            Limit::Bytes(bytes) => bytes / PAGE_SIZE as u64,
            Limit::Percent(percent) => (u128::from(self.total) * u128::from(percent) / 100) as u64,
        }
    }

    pub fn new(terms: Terms, kv: u64) -> Divided {
        Divided { terms, kv, total: 0, free: 0, looked: None }
    }

    /// `look` tells how many pages there are in all, and how many are free.
    pub fn refresh(&mut self, changes: u64, look: impl FnOnce() -> (u64, u64)) {
        let now = Instant::now();
        let holds = |(at, seen)| seen == changes && now.saturating_duration_since(at) < LOOK_EVERY;
        if !self.looked.is_some_and(holds) {
            (self.total, self.free) = look();
            self.looked = Some((now, changes));
        }
    }

    pub fn for_apps(&self) -> u64 {
        self.free.saturating_sub(self.pages(self.terms.min).saturating_sub(self.kv))
    }

    pub fn for_kv(&self) -> u64 {
        self.pages(self.terms.max).saturating_sub(self.kv)
    }
}
