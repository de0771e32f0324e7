//! Writing: a record's way into the log.

use super::clock::{UnixMs, now};
use super::completion::{Completion, WriteListener};
use super::db::Db;
use super::engine::Engine;
use super::error::StoreError;
use super::eviction::Eviction;
use super::fetch::Reader;
use super::index::Entry;
use super::log::Change;
use super::log_pages::{RecordAddr, fits_log, units_of};
use super::record::{Encoding, HEADER, Header, UNIT};
use super::value::Value;
use crate::turn;
use annex_pool::IoError;
use bytes::Bytes;
use std::rc::{Rc, Weak};
use tokio::sync::oneshot;

/// See the module's header.
#[derive(Clone, Copy)]
pub struct Writer<'a>(pub &'a Rc<Engine>);

impl Writer<'_> {
    /// Writes the value; it is on all replicas when this returns. An expiry in the past makes the
    /// key be gone.
    pub async fn write(self, db: Db, key: &[u8], bytes: Bytes, expires: Option<UnixMs>) -> Result<(), StoreError> {
        self.write_as(db, key, Value { bytes, expires, encoding: Encoding::Plain }).await
    }

    /// As [`Writer::write`], of a value that is not as SET leaves it.
    pub async fn write_as(self, db: Db, key: &[u8], value: Value) -> Result<(), StoreError> {
        self.write_and_tell(db, key, value, || ()).await
    }

    /// As [`Writer::write`]. `appended` is called, if it can be, as soon as the record is in the
    /// log: it counts before any that is appended later.
    pub async fn write_and_tell(self, db: Db, key: &[u8], value: Value, appended: impl Fn()) -> Result<(), StoreError> {
        self.0.is_loaded()?;
        turn::pause().await;
        let Value { bytes, expires, encoding } = value;
        if expires.is_some_and(|at| at <= now()) {
            self.0.keys.remove(db, key);
            return Ok(());
        }
        let units = units_of((HEADER + key.len() + bytes.len()) as u32);
        Eviction(self.0).make_room(u64::from(units) * UNIT as u64).await?;
        while self.0.held_up.get() {
            self.0.drained.notified().await;
        }
        if fits_log(units) {
            let (header, access) = self.record_of(db, key, &bytes, expires);
            let header = header.kept_as(encoding);
            while self.0.is_full() {
                self.0.drained.notified().await;
            }
            let (done, completion) = oneshot::channel();
            self.append(&header, key, &bytes, access, None, Completion::Task(done))?;
            self.0.pool_io.wake();
            appended();
            completion.await.unwrap_or(Err(StoreError::Unwritten(IoError::Lost)))?;
        } else {
            self.write_large(db, key, &bytes, expires).await?;
        }
        self.0.keys.count(|s| s.writes += 1);
        Ok(())
    }

    /// Notes that Redis would keep this value, which is the key's, as one that was changed in
    /// place, though its bytes stay the same: who watches the key is told nothing. A record that is
    /// too large for the log stays as it is.
    pub async fn mark_raw(&self, db: Db, key: &[u8], value: Value) -> Result<(), StoreError> {
        let units = units_of((HEADER + key.len() + value.bytes.len()) as u32);
        if !fits_log(units) {
            return Ok(());
        }
        Eviction(self.0).make_room(u64::from(units) * UNIT as u64).await?;
        while self.0.held_up.get() || self.0.is_full() {
            self.0.drained.notified().await;
        }
        // It may have expired, or been evicted to make the room.
        let Some(entry) = self.0.keys.find(db, self.0.keys.hash(key)) else { return Ok(()) };
        let (header, access) = self.record_of(db, key, &value.bytes, value.expires);
        let header = header.kept_as(Encoding::Raw);
        let (done, completion) = oneshot::channel();
        self.append(&header, key, &value.bytes, access, Some(entry.addr()), Completion::Task(done))?;
        self.0.pool_io.wake();
        completion.await.unwrap_or(Err(StoreError::Unwritten(IoError::Lost)))
    }

    /// Puts a value that never expires into the log, if nothing has to be waited for before: then
    /// `listener` is told under `number` what becomes of it, after the next
    /// [`super::flush::forward`], which the caller sees to. False: nothing was done, and
    /// [`Writer::write`] waits or tells what is wrong.
    pub fn append_deferred(
        &self,
        db: Db,
        key: &[u8],
        bytes: &[u8],
        listener: &Weak<dyn WriteListener>,
        number: u64,
    ) -> bool {
        let units = units_of((HEADER + key.len() + bytes.len()) as u32);
        let is_busy =
            self.0.is_full() || self.0.held_up.get() || self.0.loading.get() || self.0.records().slot_reserve.is_out();
        if is_busy || !fits_log(units) || !Eviction(self.0).has_room_for(u64::from(units) * UNIT as u64) {
            return false;
        }
        let (header, access) = self.record_of(db, key, bytes, None);
        if self.append(&header, key, bytes, access, None, Completion::Listener(listener.clone(), number)).is_err() {
            return false;
        }
        self.0.keys.count(|s| s.writes += 1);
        true
    }

    /// The record that a key is about to have, and what its entry is to say of its use.
    fn record_of(&self, db: Db, key: &[u8], bytes: &[u8], expires: Option<UnixMs>) -> (Header, u32) {
        let hash = self.0.keys.hash(key);
        let header =
            Header::new(self.0.records().table.database(db), self.0.keys.next_version(), expires, hash, key, bytes);
        (header, self.0.keys.access_of_written(db, hash))
    }

    /// Appends a record. With `from`, it is a move of the one that is there.
    pub fn append(
        &self,
        header: &Header,
        key: &[u8],
        value: &[u8],
        access: u32,
        from: Option<RecordAddr>,
        completion: Completion,
    ) -> Result<(), StoreError> {
        let addr = self.0.records().space.borrow_mut().append(header.units()).map_err(|_| StoreError::NoRoom)?;
        let entry = Entry::new(header, addr, access);
        let change = Change { db: header.db, entry, from, completion };
        self.0.log.borrow_mut().append(addr, [&header.encode()[..HEADER], key, value], change);
        Ok(())
    }

    /// Sets or removes a key's expiry; false if there is no such key.
    pub async fn expire_at(&self, db: Db, key: &[u8], expires: Option<UnixMs>) -> Result<bool, StoreError> {
        match Reader(self.0).fetch(db, key).await? {
            None => Ok(false),
            Some(value) if value.expires == expires => Ok(true),
            Some(value) => self.write_as(db, key, Value { expires, ..value }).await.map(|()| true),
        }
    }
}
