//! Writing: a record's way into the log, and what it changes when it is on all replicas.

use super::super::turn;
use super::log::{Change, Completion, Flight};
use super::*;
use std::rc::Weak;
use tokio::sync::oneshot;

/// Who is told what became of a record, for tasks that have many under way and want none of them to
/// cost a channel.
pub trait WriteListener {
    /// The record that was given this number is on all replicas and counts, or never will.
    fn hear(&self, number: u64, outcome: Result<(), StoreError>);
}

impl Store {
    /// Writes the value; it is on all replicas when this returns. An expiry in the past makes the
    /// key be gone.
    pub async fn write(&self, db: Db, key: &[u8], bytes: Bytes, expires: Option<UnixMs>) -> Result<(), StoreError> {
        self.write_as(db, key, Value { bytes, expires, encoding: Encoding::Plain }).await
    }

    /// As [`Store::write`], of a value that is not as SET leaves it.
    pub async fn write_as(&self, db: Db, key: &[u8], value: Value) -> Result<(), StoreError> {
        self.write_and_tell(db, key, value, || ()).await
    }

    /// As [`Store::write`]. `placed` is called, if it can be, as soon as the record is in the log:
    /// it counts before any that is appended later.
    pub async fn write_and_tell(&self, db: Db, key: &[u8], value: Value, placed: impl Fn()) -> Result<(), StoreError> {
        self.is_loaded()?;
        turn::pause().await;
        let Value { bytes, expires, encoding } = value;
        if expires.is_some_and(|at| at <= now()) {
            self.remove(db, key);
            return Ok(());
        }
        let units = log::room((HEADER + key.len() + bytes.len()) as u32);
        self.make_room(u64::from(units) * UNIT as u64).await?;
        while self.0.held_up.get() {
            self.0.drained.notified().await;
        }
        if log::takes(units) {
            let (header, access) = self.record_of(db, key, &bytes, expires);
            let header = header.kept_as(encoding);
            while self.is_full() {
                self.0.drained.notified().await;
            }
            let (done, over) = oneshot::channel();
            self.append(&header, key, &bytes, access, None, Completion::Task(done))?;
            self.0.pool_io.wake();
            placed();
            over.await.unwrap_or(Err(StoreError::Unwritten(IoError::Lost)))?;
        } else {
            self.write_large(db, key, &bytes, expires).await?;
        }
        self.count(|s| s.writes += 1);
        Ok(())
    }

    /// Notes that Redis would keep this value, which is the key's, as one that was changed in
    /// place, though its bytes stay the same: who watches the key is told nothing. A record that is
    /// too large for the log stays as it is.
    pub async fn mark_raw(&self, db: Db, key: &[u8], value: Value) -> Result<(), StoreError> {
        let units = log::room((HEADER + key.len() + value.bytes.len()) as u32);
        if !log::takes(units) {
            return Ok(());
        }
        self.make_room(u64::from(units) * UNIT as u64).await?;
        while self.0.held_up.get() || self.is_full() {
            self.0.drained.notified().await;
        }
        // It may have expired, or been evicted to make the room.
        let Some(entry) = self.find(db, self.hash(key)) else { return Ok(()) };
        let (header, access) = self.record_of(db, key, &value.bytes, value.expires);
        let header = header.kept_as(Encoding::Raw);
        let (done, over) = oneshot::channel();
        self.append(&header, key, &value.bytes, access, Some(entry.place()), Completion::Task(done))?;
        self.0.pool_io.wake();
        over.await.unwrap_or(Err(StoreError::Unwritten(IoError::Lost)))
    }

    /// Puts a value that never expires into the log, if nothing has to be waited for before: then
    /// `hears` is told under `number` what becomes of it, after the next [`Store::forward`], which
    /// the caller sees to. False: nothing was done, and [`Store::write`] waits or tells what is
    /// wrong.
    pub fn place(&self, db: Db, key: &[u8], bytes: &[u8], hears: &Weak<dyn WriteListener>, number: u64) -> bool {
        let units = log::room((HEADER + key.len() + bytes.len()) as u32);
        let is_busy = self.is_full() || self.0.held_up.get() || self.0.loading.get() || self.0.slot_reserve.is_out();
        if is_busy || !log::takes(units) || !self.has_room_for(u64::from(units) * UNIT as u64) {
            return false;
        }
        let (header, access) = self.record_of(db, key, bytes, None);
        if self.append(&header, key, bytes, access, None, Completion::Hearer(hears.clone(), number)).is_err() {
            return false;
        }
        self.count(|s| s.writes += 1);
        true
    }

    /// Where that is over at once, writes what waits, and tells whoever waits for it. Else as
    /// [`Store::forward_soon`].
    pub fn forward(&self) {
        if self.0.pool_io.is_instant() {
            self.step();
        }
        if self.0.log.borrow().is_busy() {
            self.forward_soon();
        }
    }

    /// Has the driver write what waits, together with what comes until its turn.
    pub fn forward_soon(&self) {
        self.0.pool_io.wake();
    }

    /// The record that a key is about to have, and what its entry is to say of its use.
    fn record_of(&self, db: Db, key: &[u8], bytes: &[u8], expires: Option<UnixMs>) -> (Header, u32) {
        let hash = self.hash(key);
        let header = Header::new(self.0.table.database(db), self.next_version(), expires, hash, key, bytes);
        (header, self.access_of_written(db, hash))
    }

    /// Rewritten is used.
    pub(super) fn access_of_written(&self, db: Db, hash: KeyHash) -> u32 {
        let policy = self.settings().policy;
        let is_looked_up = policy.counts() || self.0.indexes.borrow()[at(self.0.table.database(db))].volatile() > 0;
        // Where nobody counts how often, and no key's time can be over, what is there makes no
        // difference.
        match is_looked_up.then(|| self.find(db, hash)).flatten() {
            Some(entry) => self.used(entry.access()),
            None => policy.fresh(about_now()),
        }
    }

    /// Too much waits to be written.
    pub(super) fn is_full(&self) -> bool {
        self.0.log.borrow().dirty() > MAX_DIRTY
    }

    /// Appends a record. With `from`, it is a move of the one that is there.
    pub(super) fn append(
        &self,
        header: &Header,
        key: &[u8],
        value: &[u8],
        access: u32,
        from: Option<Place>,
        told: Completion,
    ) -> Result<(), StoreError> {
        let place = self.0.space.borrow_mut().append(header.units()).map_err(|_| StoreError::NoRoom)?;
        let entry = Entry::new(header, place, access);
        let change = Change { db: header.db, entry, from, told };
        self.0.log.borrow_mut().append(place, [&header.encode()[..HEADER], key, value], change);
        Ok(())
    }

    /// A flight is over: its records count, or those who wrote them hear why not.
    pub(super) fn commit(&self, flight: Flight, result: Result<(), IoError>) {
        if result.is_ok() {
            // If not, its slots were given back already.
            flight.landings.iter().for_each(|landing| self.put(landing.sheet, landing.slot));
        }
        for _ in 0..flight.changes {
            let next = self.0.log.borrow_mut().next_change();
            let Some(change) = next else { break };
            match result {
                Ok(()) => self.apply(&change),
                Err(_) => self.give_back(change.entry.place(), change.entry.units()),
            }
            change.told.tell(result.map_err(StoreError::Unwritten));
        }
        for landing in &flight.landings {
            self.free_sheet(landing.sheet);
            self.let_go(landing.sheet);
        }
    }

    /// A sheet's bytes are in this slot now.
    pub(super) fn put(&self, sheet: SheetIdx, slot: annex_shared::ids::SlotIdx) {
        match self.0.table.set_slot(sheet, Some(slot)) {
            Some(old) => self.0.slot_reserve.release(old),
            None => self.0.space.borrow_mut().placed(sheet),
        }
    }

    /// A record that lies in the pool becomes the one that counts.
    pub(super) fn apply(&self, change: &Change) {
        let hash = change.entry.hash();
        let mut indexes = self.0.indexes.borrow_mut();
        let index = &mut indexes[at(change.db)];
        let mut entry = change.entry;
        if let Some(from) = change.from {
            match index.find(hash) {
                Some(now) if now.place() == from => entry.set_access(now.access()),
                _ => {
                    drop(indexes);
                    return self.give_back(entry.place(), entry.units());
                }
            }
        }
        self.0.table.set_start(entry.place());
        let old = index.insert(entry);
        drop(indexes);
        if let Some(old) = old {
            self.drop_record(&old);
        }
        if change.from.is_none() {
            self.changed(self.name_of(change.db), hash);
        }
    }
}
