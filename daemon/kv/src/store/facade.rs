//! What others may ask of the store. Each line names who does it.

use super::background;
use super::cache::Cache;
use super::clock::UnixMs;
use super::completion::WriteListener;
use super::db::Db;
use super::engine::Engine;
use super::error::{OpenError, StoreError};
use super::eviction::Eviction;
use super::fetch::Reader;
use super::flush;
use super::keyspace::{Keyspace, Spot};
use super::log_pages::LogPageTable;
use super::pieces::Pieces;
use super::pool_io::PoolIo;
use super::prefetch_hint::Soon;
use super::records::Records;
use super::recover::Recovery;
use super::scan::Scan;
use super::settings::Settings;
use super::slot_reserve::{Delivery, SlotReserve};
use super::statistics::Stats;
use super::value::{Known, Value};
use super::watch::Watch;
use super::write::Writer;
use annex_pool::Pool;
use annex_shared::page::PAGE_SIZE;
use bytes::Bytes;
use std::future::Future;
use std::ops::Range;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use tokio::sync::mpsc::UnboundedReceiver;

/// Pages of the lane's arena.
const ARENA: usize = 4096;

/// Keys to values. Every method sees expired keys as not there. The caller holds a lock on the key.
#[derive(Clone)]
pub struct Store(pub(super) Rc<Engine>);

impl Store {
    /// Opens the store over a table, which is empty or another annexd's. [`Store::start`] and then
    /// [`Store::load`] make it usable.
    pub fn open(
        pool: Arc<Pool>,
        table: Arc<LogPageTable>,
        cache: u64,
        settings: Settings,
    ) -> Result<(Store, UnboundedReceiver<Delivery>), OpenError> {
        let mut lane = pool.lane("kv", ARENA)?;
        lane.write_past_caches();
        let (slot_reserve, deliveries) = SlotReserve::new(pool.clone())?;
        let records = Records::new(table, slot_reserve, Cache::new(cache));
        let keys = Keyspace::new(records, settings);
        Ok((Store(Rc::new(Engine::new(pool, keys, PoolIo::new(lane)))), deliveries))
    }

    /// Starts the tasks that the store needs, on the local task set that this runs in.
    pub fn start(&self, deliveries: UnboundedReceiver<Delivery>) -> std::io::Result<()> {
        background::start(&self.0, deliveries)
    }

    /// Makes the index anew. Until it is, requests are told to wait.
    pub async fn load(&self) {
        Recovery(&self.0).load().await;
    }

    /// Reads the value. `None`: there is no such key. Counts as a use.
    pub fn read(&self, db: Db, key: &[u8]) -> impl Future<Output = Result<Option<Value>, StoreError>> {
        Reader(&self.0).read(db, key)
    }

    /// As [`Store::read`], if nothing has to be waited for: what is known without a READ, and
    /// small records where READs are over as soon as they are posted. `None`:
    /// nothing was done that [`Store::read`] does not do again.
    #[inline]
    pub fn read_now(&self, db: Db, key: &[u8]) -> Option<Option<Value>> {
        Reader(&self.0).read_now(db, key)
    }

    /// Reads the bytes of a value that `wanted` names, which is told how many there are. `None`:
    /// there is no such key. Counts as a use.
    pub async fn read_part(
        &self,
        db: Db,
        key: &[u8],
        wanted: impl Fn(u64) -> Range<u64>,
    ) -> Result<Option<Bytes>, StoreError> {
        Reader(&self.0).read_part(db, key, wanted).await
    }

    /// Pins a large value. `None`: it is none, or has to be read whole; nothing was done.
    pub async fn pin(&self, db: Db, key: &[u8]) -> Option<Pieces> {
        Pieces::pin(&self.0, db, key).await
    }

    /// Writes the value; it is on all replicas when this returns. An expiry in the past makes the
    /// key be gone.
    pub fn write(
        &self,
        db: Db,
        key: &[u8],
        bytes: Bytes,
        expires: Option<UnixMs>,
    ) -> impl Future<Output = Result<(), StoreError>> {
        Writer(&self.0).write(db, key, bytes, expires)
    }

    /// As [`Store::write`], of a value that is not as SET leaves it.
    pub fn write_as(&self, db: Db, key: &[u8], value: Value) -> impl Future<Output = Result<(), StoreError>> {
        Writer(&self.0).write_as(db, key, value)
    }

    /// As [`Store::write`]. `appended` is called, if it can be, as soon as the record is in the
    /// log: it counts before any that is appended later.
    pub fn write_and_tell(
        &self,
        db: Db,
        key: &[u8],
        value: Value,
        appended: impl Fn(),
    ) -> impl Future<Output = Result<(), StoreError>> {
        Writer(&self.0).write_and_tell(db, key, value, appended)
    }

    /// Notes that Redis would keep this value, which is the key's, as one that was changed in
    /// place, though its bytes stay the same: who watches the key is told nothing. A record that is
    /// too large for the log stays as it is.
    pub async fn mark_raw(&self, db: Db, key: &[u8], value: Value) -> Result<(), StoreError> {
        Writer(&self.0).mark_raw(db, key, value).await
    }

    /// Sets or removes a key's expiry; false if there is no such key.
    pub async fn expire_at(&self, db: Db, key: &[u8], expires: Option<UnixMs>) -> Result<bool, StoreError> {
        Writer(&self.0).expire_at(db, key, expires).await
    }

    /// Puts a value that never expires into the log, if nothing has to be waited for before: then
    /// `listener` is told under `number` what becomes of it, after the next [`Store::forward`],
    /// which the caller sees to. False: nothing was done, and [`Store::write`] waits or tells what
    /// is wrong.
    #[inline]
    pub fn append_deferred(
        &self,
        db: Db,
        key: &[u8],
        bytes: &[u8],
        listener: &Weak<dyn WriteListener>,
        number: u64,
    ) -> bool {
        Writer(&self.0).append_deferred(db, key, bytes, listener, number)
    }

    /// Where that is over at once, writes what waits, and tells whoever waits for it. Else as
    /// [`Store::forward_soon`].
    #[inline]
    pub fn forward(&self) {
        flush::forward(&self.0);
    }

    /// Has the driver write what waits, together with what comes until its turn.
    #[inline]
    pub fn forward_soon(&self) {
        flush::forward_soon(&self.0);
    }

    /// A key of which something is wanted soon: [`Store::follow_prefetch_hints`] looks for it,
    /// together with the others that are added until then.
    #[inline]
    pub fn add_prefetch_hint(&self, db: Db, key: &[u8], soon: Soon) {
        self.0.prefetch_hints.add(&self.0.keys, db, key, soon);
    }

    /// See [`Store::add_prefetch_hint`].
    #[inline]
    pub fn follow_prefetch_hints(&self) {
        self.0.prefetch_hints.follow(&self.0.keys, &self.0.pool_io);
    }

    /// The value's length, which the index knows. `None`: there is no such key. Counts as a use, as
    /// a read does.
    pub fn length(&self, db: Db, key: &[u8]) -> Option<u64> {
        self.0.keys.length(db, key)
    }

    /// True if it was there.
    pub fn remove(&self, db: Db, key: &[u8]) -> bool {
        self.0.keys.remove(db, key)
    }

    /// Bytes of a key's record, 0 if there is none. Does not count as a use.
    pub fn bytes(&self, db: Db, key: &[u8]) -> usize {
        self.0.keys.bytes(db, key)
    }

    /// `None`: there is no such key. Does not count as a use.
    pub fn known(&self, db: Db, key: &[u8]) -> Option<Known> {
        self.0.keys.known(db, key)
    }

    /// Counts as a use. False: there is no such key.
    pub fn touch(&self, db: Db, key: &[u8]) -> bool {
        self.0.keys.touch(db, key)
    }

    /// Where a key's record lies; another one when it is written anew. `None`: there is no such
    /// key.
    pub fn spot(&self, db: Db, key: &[u8]) -> Option<Spot> {
        self.0.keys.spot(db, key)
    }

    /// Watches a key.
    pub fn watch(&self, db: Db, key: &[u8]) -> Watch {
        Watch::new(&self.0, db, key)
    }

    /// Keys in a database: (all, those with an expiry). Expired keys that were not removed yet
    /// count.
    pub fn len(&self, db: Db) -> (u64, u64) {
        self.0.keys.len(db)
    }

    /// Removes all keys of one database or of all. Their memory is given back in the background.
    pub fn clear(&self, db: Option<Db>) {
        self.0.keys.clear(db);
    }

    /// Each of the two is the other from now on.
    pub fn swap(&self, a: Db, b: Db) {
        self.0.keys.swap(a, b);
    }

    /// About `count` keys from a cursor on, and the next cursor (0: that was all). A key that is
    /// there all the while is returned at least once.
    pub async fn scan(&self, db: Db, cursor: u64, count: usize) -> Result<(u64, Vec<Bytes>), StoreError> {
        Scan(&self.0).scan(db, cursor, count).await
    }

    /// Any key that is not expired; `None` if the database has none.
    pub async fn random_key(&self, db: Db) -> Result<Option<Bytes>, StoreError> {
        Scan(&self.0).random_key(db).await
    }

    /// Whether anything at all could be written now. Keys go for it, if the policy lets them.
    #[inline]
    pub fn has_room(&self) -> bool {
        Eviction(&self.0).has_room()
    }

    #[inline]
    pub fn settings(&self) -> Settings {
        self.0.keys.settings()
    }

    /// What is over a lower limit goes with the next write.
    pub fn set(&self, settings: Settings) {
        self.0.keys.set(settings);
    }

    #[inline]
    pub fn is_loading(&self) -> bool {
        self.0.is_loading()
    }

    /// Counts anew what keys were asked for, and what became of them: CONFIG RESETSTAT.
    pub fn reset_statistics(&self) {
        self.0.keys.reset_statistics();
    }

    pub fn stats(&self) -> Stats {
        let (mut stats, records, log) = (self.0.keys.stats(), self.0.records(), self.0.log.borrow());
        let space = records.space.borrow();
        stats.held = space.log_pages() * PAGE_SIZE as u64;
        stats.local += space.bytes() + records.table.resident();
        stats.cached = records.cache.borrow().bytes();
        (stats.waiting, stats.flights) = (log.dirty() as u64, log.flights() as u64);
        stats.slot_reserve = records.slot_reserve.slots();
        stats.reads = self.0.pool_io.reads();
        stats
    }
}
