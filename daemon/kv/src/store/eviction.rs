//! Room for what is to be written: within the limit, and in the pool. If there is none, keys go
//! that the policy allows to go.
//!
//! Over the limit single keys go, the least useful ones of a sample. When the pool itself has no
//! more room that would free nothing: slots come back only by whole log pages. So then all keys go
//! that lie in one log page with such a key.

use super::clock::now;
use super::db::Db;
use super::engine::Engine;
use super::error::StoreError;
use super::hash::KeyHash;
use super::index::{Entry, Index, SHARDS, at};
use super::record::UNIT;
use super::settings::Settings;
use super::usage::Policy;
use crate::turn;
use std::rc::Rc;
use std::time::Duration;

/// Keys looked at before one is chosen, if there are as many. Whole shards are looked at.
const SAMPLE: usize = 16;
/// Keys that go before the turn is asked for again.
const IN_A_ROW: usize = 32;
/// Log pages that are emptied at a time when the pool is full: one in so many, and at least and at
/// most these; and how often for one write.
const LOG_PAGES_PART: u64 = 64;
const LOG_PAGES_LEAST: u64 = 16;
const LOG_PAGES_MOST: u64 = 512;
const TRIES: usize = 20;
/// How long a log page may take to be read: its donors may go meanwhile.
const PATIENCE: Duration = Duration::from_millis(500);
/// How long a slot takes from one who frees it to one who waits, at most.
const WAIT: Duration = Duration::from_millis(100);

/// See the module's header.
pub struct Eviction<'a>(pub &'a Rc<Engine>);

impl Eviction<'_> {
    /// Makes room for so many bytes of records.
    pub async fn make_room(&self, bytes: u64) -> Result<(), StoreError> {
        let Settings { limit, policy, .. } = self.0.keys.settings();
        // With all other keys gone it would not fit either.
        if limit > 0 && bytes > limit {
            return Err(StoreError::NoRoom);
        }
        while !self.evict_some(bytes, IN_A_ROW).ok_or(StoreError::NoRoom)? {
            turn::pause().await;
        }
        let mut tries = 0;
        while self.0.records().slot_reserve.is_out() {
            // With no donor within reach, what a key leaves free can't be taken.
            if policy == Policy::NoEviction || tries == TRIES || !self.0.pool.takes_writes() {
                return Err(StoreError::NoRoom);
            }
            let log_pages =
                (self.0.records().space.borrow().log_pages() / LOG_PAGES_PART).clamp(LOG_PAGES_LEAST, LOG_PAGES_MOST);
            for _ in 0..log_pages {
                self.evict_log_page(policy).await;
            }
            tries += 1;
            // Nothing may have come: the next look tells.
            let _ = tokio::time::timeout(WAIT, self.0.records().slot_reserve.changed.notified()).await;
        }
        Ok(())
    }

    /// Whether anything at all can be written, with as many keys gone as it takes. Some go at once,
    /// if the policy lets them.
    pub fn has_room(&self) -> bool {
        let is_full = self.0.records().slot_reserve.is_out() && self.0.keys.settings().policy == Policy::NoEviction;
        !is_full && self.evict_some(UNIT as u64, IN_A_ROW).is_some()
    }

    /// Whether so many bytes can be written at once, with a few keys gone.
    #[inline]
    pub fn has_room_for(&self, bytes: u64) -> bool {
        self.evict_some(bytes, IN_A_ROW) == Some(true)
    }

    /// Has at most so many keys go until so many bytes more are within the limit. False: more have
    /// to go. `None`: the policy allows none.
    fn evict_some(&self, bytes: u64, most: usize) -> Option<bool> {
        let Settings { limit, policy, .. } = self.0.keys.settings();
        let fits = || limit == 0 || self.0.records().used_bytes() + bytes <= limit;
        for _ in 0..most {
            if fits() {
                return Some(true);
            }
            if !self.evict_one(policy) {
                return None;
            }
        }
        Some(fits())
    }

    /// Removes one key by the policy. False: it allows none to go.
    fn evict_one(&self, policy: Policy) -> bool {
        let Some((db, entry)) = self.victim(policy) else { return false };
        self.evict(db, entry.hash());
        true
    }

    fn evict(&self, db: Db, hash: KeyHash) {
        self.0.keys.count(|s| s.evicted += 1);
        self.0.keys.forget(self.0.keys.name_of(db), hash);
    }

    /// Removes the keys whose records begin in one log page, as far as the policy allows.
    async fn evict_log_page(&self, policy: Policy) {
        let Some((_, victim)) = self.victim(policy) else { return };
        let log_page = victim.addr().log_page;
        // What lies out of reach would free nothing that can be taken.
        if !self.0.is_within_reach(log_page) {
            return;
        }
        // A record that is added while the log page is on its way is not in what comes.
        let (slot, addrs) = (|| self.0.records().table.slot(log_page), self.0.records().table.addrs(log_page));
        let look = |bytes: &[u8]| self.0.keys.headers_in(addrs, bytes);
        let read = tokio::time::timeout(PATIENCE, self.0.pool_io.read_slot(slot, look));
        let Ok(Ok(Some(headers))) = read.await else { return };
        for (addr, header) in headers {
            let found = self.0.keys.indexes.borrow()[at(header.db)].find(header.hash).copied();
            let goes = |entry: &Entry| entry.addr() == addr && !(policy.is_volatile() && entry.expires().is_none());
            if found.is_some_and(|entry| goes(&entry)) {
                self.evict(header.db, header.hash);
            }
        }
    }

    /// The least useful of some keys.
    fn victim(&self, policy: Policy) -> Option<(Db, Entry)> {
        if policy == Policy::NoEviction {
            return None;
        }
        let now = now();
        let indexes = self.0.keys.indexes.borrow();
        let eligible = |index: &Index| if policy.is_volatile() { index.volatile() } else { index.len() };
        let all: u64 = indexes.iter().map(eligible).sum();
        // A database is drawn by how many of its keys may go.
        let mut drawn = self.0.keys.random().checked_rem(all)?;
        let nth = indexes.iter().position(|index| {
            let is_it = drawn < eligible(index);
            drawn = drawn.saturating_sub(eligible(index));
            is_it
        })?;
        let first = self.0.keys.random() as usize;
        let mut seen = 0;
        let mut best: Option<(u64, Entry)> = None;
        for shard in 0..SHARDS {
            for entry in indexes[nth].shard(first.wrapping_add(shard)) {
                if policy.is_volatile() && entry.expires().is_none() {
                    continue;
                }
                seen += 1;
                let rank = policy.rank(entry, now, self.0.keys.random() as u32);
                if best.is_none_or(|(of_best, _)| rank > of_best) {
                    best = Some((rank, *entry));
                }
            }
            if seen >= SAMPLE {
                break;
            }
        }
        best.map(|(_, entry)| (Db(nth as u8), entry))
    }
}
