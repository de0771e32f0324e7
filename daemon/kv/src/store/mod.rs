//! The key-value store: keys to values, whose bytes lie in the pool.
//!
//! # The way of a value
//! - *Write*: a [`record`] is appended to the [`log`], written to all replicas with whatever else
//!   is on its way, and then the [`index`] flips to it. Nothing is written in place. The caller
//!   hears of it when all of that is done.
//! - *Read*: the index tells the sheet, one READ brings it, the record's checksum and key are
//!   compared. What is still in the log's tail, or in the [`cache`], is not asked for.
//! - *Remove*: a bit in the [`sheets`] table, and the index forgets. No fabric is involved.
//!
//! # Who is who
//! `write` is a record's way into the log and from there into the index, `fetch`, `part` and
//! `pieces` its way out, `foresee` makes that shorter for several together; [`space`] says which
//! sheets are in use and where the next record goes; `stock` has slots of the pool ahead of need;
//! `way` is the lane that all tasks share; [`compact`] empties sheets that are mostly holes;
//! [`recover`] makes the index anew after annexd was killed; [`usage`] knows who goes first when
//! memory is short.
//!
//! # Threads
//! All of it belongs to one thread with an event loop. Tasks wait for their own reads and writes
//! only.
//!
//! # What holds
//! - A write that was reported done is on all live replicas and in the sheet table: it survives
//!   annexd, and all donors but one that have it.
//! - The caller holds a lock on the key from before it reads until after it has written (see the
//!   server's locks). Compaction holds none: what it moves counts only if the key's record is where
//!   it was.
//! - A value is given out only if its record has the checksum it was written with and names the key
//!   that was asked for. Of a part of a value, and of one that is given out in pieces, the pool's
//!   checksums of the record's sheets say the same.

mod background;
mod cache;
mod compact;
mod fetch;
pub mod hash;
mod index;
mod large;
mod log;
mod part;
mod pieces;
mod pool_io;
mod prefetch_hint;
pub mod record;
mod recover;
mod room;
mod scan;
mod sheets;
mod slot_reserve;
mod space;
#[cfg(test)]
pub(crate) mod testbed;
#[cfg(test)]
mod tests;
mod usage;
mod watch;
mod write;

pub use pieces::{LARGE, Pieces};
pub use prefetch_hint::{Soon, TOGETHER};
pub use record::Encoding;
pub use sheets::{SheetTable, SheetsError};
pub use usage::Policy;
pub use watch::Watch;
pub use write::WriteListener;

use annex_pool::{IoError, Pool};
use annex_shared::page::PAGE_SIZE;
use bytes::Bytes;
use cache::Cache;
use hash::KeyHash;
use index::{Entry, Index, Indexes, at};
use log::Log;
use nix::time::{ClockId, clock_gettime};
use pool_io::PoolIo;
use record::{HEADER, Header, UNIT};
use sheets::{Place, SheetIdx};
use slot_reserve::SlotReserve;
use space::Space;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::Notify;
use watch::Watches;

pub const DATABASES: u8 = 16;
/// Pages of the lane's arena.
const ARENA: usize = 4096;
/// Sheets of a record that are given back as soon as it goes; those of a larger one are given back
/// bit by bit.
const FREED_AT_ONCE: usize = 4096;
/// Sheets that wait to be written before writers wait too.
const MAX_DIRTY: usize = 1024;

/// A database's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Db(pub u8);

/// A moment: milliseconds since 1970.
pub type UnixMs = u64;

#[derive(Clone, Debug)]
pub struct Value {
    pub bytes: Bytes,
    pub expires: Option<UnixMs>,
    pub encoding: Encoding,
}

/// What the index knows of a key, without reading its record.
#[derive(Clone, Copy, Debug)]
pub struct Known {
    pub expires: Option<UnixMs>,
    pub idle: Duration,
    /// Logarithmic access counter, as Redis' LFU has it.
    pub frequency: u8,
    /// Bytes of the value.
    pub length: u64,
    /// Bytes in the pool and in annexd for it, one replica counted.
    pub size: u64,
}

/// Why the store could not do it. Display is the RESP error, with its code.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    #[error("OOM command not allowed when used memory > 'maxmemory'.")]
    NoRoom,
    #[error("IOERR the value can't be read: {0}")]
    Lost(String),
    #[error("IOERR the value was not written: {0}")]
    Unwritten(IoError),
    #[error("LOADING Redis is loading the dataset in memory")]
    Loading,
}

/// The store can't be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error(transparent)]
    Sheets(#[from] SheetsError),
    #[error("failed to start the key-value store's way to the pool: {0}")]
    Lane(#[from] annex_pool::LaneError),
    #[error("failed to start the key-value store: {0}")]
    Io(#[from] std::io::Error),
}

/// Tells a record from those that its key had before, and has later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spot(Place, Option<u16>);

/// What may be changed while the store runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Bytes that records may take in the pool, one replica counted; 0: as much as the pool has.
    pub limit: u64,
    pub policy: Policy,
    /// Of the counter of LFU policies: the higher, the more slowly it grows.
    pub log_factor: u32,
    /// Minutes without use that cost one of its counts.
    pub decay: u32,
    /// Keys whose time is over are looked for, not only noticed.
    pub expires_actively: bool,
}

/// How it stands and what has happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Stats {
    pub keys: u64,
    /// Bytes of records, in units of 64.
    pub used: u64,
    /// Bytes of pool that records lie in, one replica counted.
    pub held: u64,
    /// The most that records have taken.
    pub peak: u64,
    /// annexd's own memory for it.
    pub local: u64,
    pub cached: u64,
    /// Sheets that wait to be written, and writes under way.
    pub waiting: u64,
    pub flights: u64,
    /// Slots taken from the pool and not used yet.
    pub slot_reserve: u64,
    pub hits: u64,
    pub misses: u64,
    pub cache_hits: u64,
    pub reads: u64,
    pub writes: u64,
    pub expired: u64,
    pub evicted: u64,
    pub moved: u64,
    /// Records that could not be taken over.
    pub lost: u64,
    /// Thousandths of what there is to load; 1000: all.
    pub loaded: u64,
}

/// See the module's header.
#[derive(Clone)]
pub struct Store(Rc<Inner>);

struct Inner {
    pool: Arc<Pool>,
    table: Arc<SheetTable>,
    indexes: RefCell<Indexes>,
    /// Indexes of databases that were cleared, whose records are given back bit by bit.
    cleared: RefCell<Vec<Index>>,
    /// Sheets of which nothing is in use, and which nobody has given back.
    empty: RefCell<Vec<SheetIdx>>,
    space: RefCell<Space>,
    log: RefCell<Log>,
    pool_io: PoolIo,
    announced: prefetch_hint::Announced,
    slot_reserve: SlotReserve,
    cache: RefCell<Cache>,
    watches: RefCell<Watches>,
    settings: Cell<Settings>,
    stats: RefCell<Stats>,
    version: Cell<u64>,
    random: Cell<u64>,
    loading: Cell<bool>,
    /// Keys are being evicted so that what waits can be written.
    making_room: Cell<bool>,
    /// Units of records that are there twice while they are moved.
    moving: Rc<Cell<u64>>,
    /// Fewer sheets wait to be written, or compaction has made room.
    drained: Notify,
    /// There may be something to compact or to give back.
    work: Notify,
    /// Sheets held when it was last looked whether there is something to compact.
    looked: Cell<u64>,
    /// Compaction needs what room is left: writers wait.
    held_up: Cell<bool>,
}

/// The store's clock.
pub fn now() -> UnixMs {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64
}

/// The same, some milliseconds behind and cheaper: for what is counted in seconds.
fn about_now() -> UnixMs {
    let time = clock_gettime(ClockId::CLOCK_REALTIME_COARSE).map(Duration::from);
    time.map_or_else(|_| now(), |since| since.as_millis() as u64)
}

/// Bytes of the value of a key whose entry this is.
fn length(entry: &Entry, key: &[u8]) -> u64 {
    u64::from(entry.bytes()).saturating_sub((HEADER + key.len()) as u64)
}

/// Every method sees expired keys as not there. The caller holds a lock on the key.
impl Store {
    /// Reads the value. `None`: there is no such key. Counts as a use.
    pub async fn read(&self, db: Db, key: &[u8]) -> Result<Option<Value>, StoreError> {
        let value = self.fetch(db, key).await?;
        self.count_answer(value.is_some());
        Ok(value)
    }

    /// The value's length, which the index knows. `None`: there is no such key. Counts as a use, as
    /// a read does.
    pub fn length(&self, db: Db, key: &[u8]) -> Option<u64> {
        let hash = self.hash(key);
        let found = self.find(db, hash);
        self.use_key(self.0.table.database(db), hash);
        self.count_answer(found.is_some());
        found.map(|entry| length(&entry, key))
    }

    /// Sets or removes a key's expiry; false if there is no such key.
    pub async fn expire_at(&self, db: Db, key: &[u8], expires: Option<UnixMs>) -> Result<bool, StoreError> {
        match self.fetch(db, key).await? {
            None => Ok(false),
            Some(value) if value.expires == expires => Ok(true),
            Some(value) => self.write_as(db, key, Value { expires, ..value }).await.map(|()| true),
        }
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
            length: length(&entry, key),
            size: u64::from(entry.units()) * UNIT as u64 + size_of::<Entry>() as u64,
        })
    }

    /// Counts as a use. False: there is no such key.
    pub fn touch(&self, db: Db, key: &[u8]) -> bool {
        let hash = self.hash(key);
        let is_there = self.find(db, hash).is_some();
        self.use_key(self.0.table.database(db), hash);
        is_there
    }

    /// Keys in a database: (all, those with an expiry). Expired keys that were not removed yet
    /// count.
    pub fn len(&self, db: Db) -> (u64, u64) {
        let index = &self.0.indexes.borrow()[at(self.0.table.database(db))];
        (index.len(), index.volatile())
    }

    /// Removes all keys of one database or of all. Their memory is given back in the background.
    pub fn clear(&self, db: Option<Db>) {
        for name in (0..DATABASES).map(Db).filter(|name| db.is_none_or(|db| db == *name)) {
            self.changed_all(name);
            let store_db = self.0.table.database(name);
            let index = std::mem::take(&mut self.0.indexes.borrow_mut()[at(store_db)]);
            if index.len() > 0 {
                self.0.table.set_mark(store_db, self.next_version());
                self.0.cleared.borrow_mut().push(index);
                self.0.work.notify_one();
            }
        }
    }

    /// Each of the two is the other from now on.
    pub fn swap(&self, a: Db, b: Db) {
        let watched = [a, b].map(|db| (db, self.0.watches.borrow().of(db)));
        // A key whose time is over is no key: who watches the other database's has not seen it come
        // or go.
        for hash in watched.iter().flat_map(|(_, hashes)| hashes) {
            self.find(a, *hash);
            self.find(b, *hash);
        }
        self.changed_all(a);
        self.changed_all(b);
        self.0.table.swap(a, b);
        for (db, hashes) in watched {
            // Those that are there now, and were not before.
            let there = hashes.into_iter().filter(|hash| self.find(db, *hash).is_some());
            there.for_each(|hash| self.0.watches.borrow_mut().changed(db, hash));
        }
    }

    /// Watches a key.
    pub fn watch(&self, db: Db, key: &[u8]) -> Watch {
        self.expire_now(db, key);
        let changed = self.0.watches.borrow_mut().add(db, self.hash(key));
        Watch { store: self.clone(), db, key: Bytes::copy_from_slice(key), changed }
    }

    pub fn settings(&self) -> Settings {
        self.0.settings.get()
    }

    /// What is over a lower limit goes with the next write.
    pub fn set(&self, settings: Settings) {
        self.0.settings.set(settings);
    }

    pub fn stats(&self) -> Stats {
        let (used, space, indexes) = (self.used_bytes(), self.0.space.borrow(), self.0.indexes.borrow());
        let indexes_bytes: u64 = indexes.iter().map(Index::bytes).sum();
        let mut stats = *self.0.stats.borrow();
        stats.keys = indexes.iter().map(Index::len).sum();
        stats.peak = stats.peak.max(used);
        self.count(|s| s.peak = stats.peak);
        stats.used = used;
        stats.held = space.sheets() * PAGE_SIZE as u64;
        stats.local = space.bytes() + indexes_bytes + self.0.table.resident();
        stats.cached = self.0.cache.borrow().bytes();
        let log = self.0.log.borrow();
        (stats.waiting, stats.flights) = (log.dirty() as u64, log.flights() as u64);
        stats.slot_reserve = self.0.slot_reserve.slots();
        stats.reads = self.0.pool_io.reads();
        stats
    }

    /// Counts anew what keys were asked for, and what became of them: CONFIG RESETSTAT.
    pub fn reset_statistics(&self) {
        self.count(|s| (s.hits, s.misses, s.cache_hits, s.expired, s.evicted) = (0, 0, 0, 0, 0));
    }

    pub fn is_loading(&self) -> bool {
        self.0.loading.get()
    }

    // ---- beneath ----

    /// Bytes of records.
    fn used_bytes(&self) -> u64 {
        self.0.space.borrow().units().saturating_sub(self.0.moving.get()) * UNIT as u64
    }

    fn is_loaded(&self) -> Result<(), StoreError> {
        if self.0.loading.get() { Err(StoreError::Loading) } else { Ok(()) }
    }

    fn hash(&self, key: &[u8]) -> KeyHash {
        self.0.table.secret().hash(key)
    }

    fn next_version(&self) -> u64 {
        self.0.version.set(self.0.version.get() + 1);
        self.0.version.get()
    }

    fn random(&self) -> u64 {
        // A xorshift generator: nothing here needs better.
        let mut x = self.0.random.get();
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        self.0.random.set(x);
        x.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    fn count(&self, change: impl FnOnce(&mut Stats)) {
        change(&mut self.0.stats.borrow_mut());
    }

    fn count_answer(&self, is_there: bool) {
        self.count(|s| *(if is_there { &mut s.hits } else { &mut s.misses }) += 1);
    }

    /// What is known of a key. One whose time is over goes.
    fn find(&self, db: Db, hash: KeyHash) -> Option<Entry> {
        let found = self.0.indexes.borrow()[at(self.0.table.database(db))].find(hash).copied()?;
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
        self.find(db, self.hash(key)).map(|entry| Spot(entry.place(), entry.tag()))
    }

    fn expire_now(&self, db: Db, key: &[u8]) {
        self.find(db, self.hash(key));
    }

    fn used(&self, access: u32) -> u32 {
        let settings = self.settings();
        settings.policy.used(access, about_now(), self.random() as u32, settings.log_factor)
    }

    fn use_key(&self, store_db: Db, hash: KeyHash) {
        let mut indexes = self.0.indexes.borrow_mut();
        if let Some(entry) = indexes[at(store_db)].find_mut(hash) {
            let access = self.used(entry.access());
            entry.set_access(access);
        }
    }

    /// Removes a key, whatever it has.
    fn forget(&self, db: Db, hash: KeyHash) {
        let removed = self.0.indexes.borrow_mut()[at(self.0.table.database(db))].remove(hash);
        if let Some(entry) = removed {
            self.drop_record(&entry);
            self.changed(db, hash);
        }
    }

    fn changed(&self, db: Db, hash: KeyHash) {
        let mut watches = self.0.watches.borrow_mut();
        if !watches.is_empty() {
            watches.changed(db, hash);
        }
    }

    /// Every key of a database that is there changes.
    fn changed_all(&self, db: Db) {
        let watched = self.0.watches.borrow().of(db);
        let there = watched.into_iter().filter(|hash| self.find(db, *hash).is_some());
        there.for_each(|hash| self.0.watches.borrow_mut().changed(db, hash));
    }

    /// The name under which clients know a database of the store.
    fn name_of(&self, store_db: Db) -> Db {
        (0..DATABASES).map(Db).find(|name| self.0.table.database(*name) == store_db).unwrap_or(store_db)
    }

    /// A record that the index does not name any more.
    fn drop_record(&self, entry: &Entry) {
        self.0.table.clear_start(entry.place());
        self.0.cache.borrow_mut().remove(entry.place());
        self.give_back(entry.place(), entry.units());
    }

    /// Units in which there is no record any more.
    fn give_back(&self, place: Place, units: u32) {
        let mut empty = Vec::new();
        self.0.space.borrow_mut().remove(place, units, &mut empty);
        if empty.len() > FREED_AT_ONCE {
            self.0.empty.borrow_mut().append(&mut empty);
            self.0.work.notify_one();
        }
        empty.into_iter().for_each(|sheet| self.free_sheet(sheet));
    }

    /// Gives back some of the sheets of very large records. False: there are none.
    fn free_some(&self) -> bool {
        let mut empty = self.0.empty.borrow_mut();
        let left = empty.len().saturating_sub(FREED_AT_ONCE);
        let some = empty.split_off(left);
        drop(empty);
        some.iter().for_each(|sheet| self.free_sheet(*sheet));
        !some.is_empty()
    }

    /// Gives a sheet's slot back if nothing of the sheet is in use.
    fn free_sheet(&self, sheet: SheetIdx) {
        let mut space = self.0.space.borrow_mut();
        if space.used(sheet) > 0 {
            return;
        }
        if let Some(slot) = self.0.table.set_slot(sheet, None) {
            self.0.slot_reserve.release(slot);
            if let Some(segment) = space.freed(sheet) {
                self.0.table.abandon(segment);
            }
        }
    }

    /// A write of a sheet is over.
    fn let_go(&self, sheet: SheetIdx) {
        if let Some(segment) = self.0.space.borrow_mut().let_go(sheet) {
            self.0.table.abandon(segment);
        }
    }
}
