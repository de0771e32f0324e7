//! Keys: what the index knows of each, who uses and who watches them, and what becomes of their
//! records. No fabric is involved.
//!
//! Every method sees expired keys as not there. The caller holds a lock on the key.

use super::clock::{about_now, now};
use super::db::{DATABASES, Db};
use super::hash::KeyHash;
use super::index::{Entry, Index, Indexes, at};
use super::log_pages::RecordAddr;
use super::record::{Header, UNIT};
use super::records::Records;
use super::settings::Settings;
use super::statistics::Stats;
use super::usage;
use super::value::Known;
use super::watches::Watches;
use annex_host::repeated;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

/// Tells a record from those that its key had before, and has later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spot(RecordAddr, Option<u16>);

impl Spot {
    pub fn of(entry: &Entry) -> Spot {
        Spot(entry.addr(), entry.tag())
    }
}

/// See the module's header.
pub struct Keyspace {
    pub records: Records,
    pub indexes: RefCell<Indexes>,
    /// Indexes of databases that were cleared, whose records are given back bit by bit.
    pub cleared: RefCell<Vec<Index>>,
    watches: RefCell<Watches>,
    settings: Cell<Settings>,
    stats: RefCell<Stats>,
    version: Cell<u64>,
    random: Cell<u64>,
}

impl Keyspace {
    pub fn new(records: Records, settings: Settings) -> Keyspace {
        Keyspace {
            records,
            indexes: RefCell::new(std::array::from_fn(|_| Index::default())),
            cleared: RefCell::default(),
            watches: RefCell::default(),
            settings: Cell::new(settings),
            stats: RefCell::default(),
            version: Cell::new(0),
            random: Cell::new(rand::random::<u64>() | 1),
        }
    }

    /// The value's length, which the index knows. `None`: there is no such key. Counts as a use, as
    /// a read does.
    pub fn length(&self, db: Db, key: &[u8]) -> Option<u64> {
        let hash = self.hash(key);
        let found = self.find(db, hash);
        self.use_key(self.records.table.database(db), hash);
        self.count_answer(found.is_some());
        found.map(|entry| entry.value_bytes(key))
    }

    /// True if it was there.
    pub fn remove(&self, db: Db, key: &[u8]) -> bool {
        let hash = self.hash(key);
        let was_there = self.find(db, hash).is_some();
        self.forget(db, hash);
        was_there
    }

    /// Bytes of a key's record, 0 if there is none. Does not count as a use.
    pub fn bytes(&self, db: Db, key: &[u8]) -> usize {
        self.find(db, self.hash(key)).map_or(0, |entry| entry.bytes() as usize)
    }

    /// `None`: there is no such key. Does not count as a use.
    pub fn known(&self, db: Db, key: &[u8]) -> Option<Known> {
        let entry = self.find(db, self.hash(key))?;
        let (now, settings) = (now(), self.settings());
        let access = entry.access();
        Some(Known {
            expires: entry.expires(),
            idle: Duration::from_secs(if settings.policy.counts() { 0 } else { usage::idle_seconds(access, now) }),
            frequency: usage::counter(access, now, settings.decay) as u8,
            length: entry.value_bytes(key),
            size: u64::from(entry.units()) * UNIT as u64 + size_of::<Entry>() as u64,
        })
    }

    /// Counts as a use. False: there is no such key.
    pub fn touch(&self, db: Db, key: &[u8]) -> bool {
        let hash = self.hash(key);
        let is_there = self.find(db, hash).is_some();
        self.use_key(self.records.table.database(db), hash);
        is_there
    }

    /// Keys in a database: (all, those with an expiry). Expired keys that were not removed yet
    /// count.
    pub fn len(&self, db: Db) -> (u64, u64) {
        let index = &self.indexes.borrow()[at(self.records.table.database(db))];
        (index.len(), index.volatile())
    }

    /// Removes all keys of one database or of all. Their memory is given back in the background.
    pub fn clear(&self, db: Option<Db>) {
        for name in (0..DATABASES).map(Db).filter(|name| db.is_none_or(|db| db == *name)) {
            self.changed_all(name);
            let store_db = self.records.table.database(name);
            let index = std::mem::take(&mut self.indexes.borrow_mut()[at(store_db)]);
            if index.len() > 0 {
                self.records.table.set_mark(store_db, self.next_version());
                self.cleared.borrow_mut().push(index);
                self.records.work.notify_one();
            }
        }
    }

    /// Each of the two is the other from now on.
    pub fn swap(&self, a: Db, b: Db) {
        let watched = [a, b].map(|db| (db, self.watches.borrow().of(db)));
        // A key whose time is over is no key: who watches the other database's has not seen it come
        // or go.
        for hash in watched.iter().flat_map(|(_, hashes)| hashes) {
            self.find(a, *hash);
            self.find(b, *hash);
        }
        self.changed_all(a);
        self.changed_all(b);
        self.records.table.swap(a, b);
        for (db, hashes) in watched {
            // Those that are there now, and were not before.
            let there = hashes.into_iter().filter(|hash| self.find(db, *hash).is_some());
            there.for_each(|hash| self.watches.borrow_mut().changed(db, hash));
        }
    }

    #[inline]
    pub fn settings(&self) -> Settings {
        self.settings.get()
    }

    /// What is over a lower limit goes with the next write.
    pub fn set(&self, settings: Settings) {
        self.settings.set(settings);
    }

    /// Counts anew what keys were asked for, and what became of them: CONFIG RESETSTAT.
    pub fn reset_statistics(&self) {
        self.count(|s| (s.hits, s.misses, s.cache_hits, s.expired, s.evicted) = (0, 0, 0, 0, 0));
    }

    #[inline]
    pub fn hash(&self, key: &[u8]) -> KeyHash {
        self.records.table.secret().hash(key)
    }

    #[inline]
    pub fn next_version(&self) -> u64 {
        self.version.set(self.version.get() + 1);
        self.version.get()
    }

    #[inline]
    pub fn random(&self) -> u64 {
        // A xorshift generator: nothing here needs better.
        let mut x = self.random.get();
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        self.random.set(x);
        x.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    #[inline]
    pub fn count(&self, change: impl FnOnce(&mut Stats)) {
        change(&mut self.stats.borrow_mut());
    }

    #[inline]
    pub fn count_answer(&self, is_there: bool) {
        self.count(|s| *(if is_there { &mut s.hits } else { &mut s.misses }) += 1);
    }

    /// What is known of a key. One whose time is over goes.
    pub fn find(&self, db: Db, hash: KeyHash) -> Option<Entry> {
        let found = self.indexes.borrow()[at(self.records.table.database(db))].find(hash).copied()?;
        // The clock is asked only for keys that have an expiry.
        if found.expires().is_some_and(|at| at <= now()) {
            self.count(|s| s.expired += 1);
            self.forget(db, hash);
            return None;
        }
        Some(found)
    }

    /// Where a key's record lies; another one when it is written anew. `None`: there is no such
    /// key.
    pub fn spot(&self, db: Db, key: &[u8]) -> Option<Spot> {
        self.find(db, self.hash(key)).map(|entry| Spot::of(&entry))
    }

    pub fn expire_now(&self, db: Db, key: &[u8]) {
        self.find(db, self.hash(key));
    }

    pub fn used(&self, access: u32) -> u32 {
        let settings = self.settings();
        settings.policy.used(access, about_now(), self.random() as u32, settings.log_factor)
    }

    pub fn use_key(&self, store_db: Db, hash: KeyHash) {
        let mut indexes = self.indexes.borrow_mut();
        if let Some(entry) = indexes[at(store_db)].find_mut(hash) {
            let access = self.used(entry.access());
            entry.set_access(access);
        }
    }

    /// Rewritten is used.
    pub fn access_of_written(&self, db: Db, hash: KeyHash) -> u32 {
        let policy = self.settings().policy;
        let is_looked_up = policy.counts() || self.indexes.borrow()[at(self.records.table.database(db))].volatile() > 0;
        // Where nobody counts how often, and no key's time can be over, what is there makes no
        // difference.
        match is_looked_up.then(|| self.find(db, hash)).flatten() {
            Some(entry) => self.used(entry.access()),
            None => policy.fresh(about_now()),
        }
    }

    /// Removes a key, whatever it has.
    pub fn forget(&self, db: Db, hash: KeyHash) {
        let removed = self.indexes.borrow_mut()[at(self.records.table.database(db))].remove(hash);
        if let Some(entry) = removed {
            self.records.drop_record(&entry);
            self.changed(db, hash);
        }
    }

    /// A record that lies in the pool becomes the one that counts.
    pub fn apply(&self, db: Db, mut entry: Entry, from: Option<RecordAddr>) {
        let hash = entry.hash();
        let mut indexes = self.indexes.borrow_mut();
        let index = &mut indexes[at(db)];
        if let Some(from) = from {
            match index.find(hash) {
                Some(now) if now.addr() == from => entry.set_access(now.access()),
                _ => {
                    drop(indexes);
                    return self.records.give_back(entry.addr(), entry.units());
                }
            }
        }
        self.records.table.set_start(entry.addr());
        let old = index.insert(entry);
        drop(indexes);
        if let Some(old) = old {
            self.records.drop_record(&old);
        }
        if from.is_none() {
            self.changed(self.name_of(db), hash);
        }
    }

    /// Watches a key: the cell tells when it has changed.
    pub fn watch(&self, db: Db, key: &[u8]) -> Rc<Cell<bool>> {
        self.expire_now(db, key);
        self.watches.borrow_mut().add(db, self.hash(key))
    }

    /// The version that the next record's is above.
    pub fn set_version(&self, version: u64) {
        self.version.set(version);
    }

    /// What is counted here; the rest is zero.
    pub fn stats(&self) -> Stats {
        let (used, indexes) = (self.records.used_bytes(), self.indexes.borrow());
        let mut stats = *self.stats.borrow();
        stats.keys = indexes.iter().map(Index::len).sum();
        stats.peak = stats.peak.max(used);
        self.count(|s| s.peak = stats.peak);
        stats.used = used;
        stats.local = indexes.iter().map(Index::bytes).sum();
        stats
    }

    fn changed(&self, db: Db, hash: KeyHash) {
        let mut watches = self.watches.borrow_mut();
        if !watches.is_empty() {
            watches.changed(db, hash);
        }
    }

    /// Every key of a database that is there changes.
    fn changed_all(&self, db: Db) {
        let watched = self.watches.borrow().of(db);
        let there = watched.into_iter().filter(|hash| self.find(db, *hash).is_some());
        there.for_each(|hash| self.watches.borrow_mut().changed(db, hash));
    }

    /// The name under which clients know a database of the store.
    pub fn name_of(&self, store_db: Db) -> Db {
        (0..DATABASES).map(Db).find(|name| self.records.table.database(*name) == store_db).unwrap_or(store_db)
    }

    /// The headers of records that begin at these addresses of a log page.
    pub fn headers_in(&self, addrs: impl Iterator<Item = RecordAddr>, log_page: &[u8]) -> Vec<(RecordAddr, Header)> {
        let mut found = Vec::new();
        for addr in addrs {
            match Header::decode(addr.within(log_page)) {
                Ok(header) => found.push((addr, header)),
                Err(error) => {
                    repeated!(ERROR, "a record can't be used" of "", "a record of the annexd before can't be used: {error}");
                    self.count(|s| s.lost += 1);
                }
            }
        }
        found
    }
}
