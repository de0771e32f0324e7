//! Reading records: which slots hold one, and whether what they brought is it.

use super::db::Db;
use super::engine::Engine;
use super::error::StoreError;
use super::index::Entry;
use super::log_pages::{LogPageIdx, RecordAddr};
use super::record::{HEADER, Header, RecordError};
use super::space::parts;
use super::value::Value;
use crate::{blocking, turn};
use annex_host::repeated;
use annex_pool::{IoError, Pool, SlotRun};
use annex_shared::ids::SlotIdx;
use annex_shared::page::PAGE_SIZE;
use bytes::{Bytes, BytesMut};
use futures::stream::{self, StreamExt, TryStreamExt};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

/// Slots of one READ at most; the rest of a large record has READs of its own.
const PIECE: u32 = 32;
/// READs of one record under way at a time.
const TOGETHER: usize = 64;
/// Records of at most so many bytes are read alone, not with the log page they lie in.
const SMALL: u32 = 2048;
/// Bytes of a record that is read on the spot, at most: nobody else is served meanwhile.
const AT_ONCE: usize = 64 << 10;
/// How often a record is looked for that is moved just as it is read.
const TRIES: u32 = 8;

/// Header, key and value.
pub type Record = (Header, Bytes, Bytes);

/// Why there is no record.
pub enum Missed {
    /// It went away before it was read.
    Removed,
    Io(IoError),
    Bad(RecordError),
}

/// References to the slots of a record while it is read in several pieces.
pub struct Pinned(Arc<Pool>, Vec<SlotIdx>);

impl Pinned {
    pub fn new(pool: &Arc<Pool>) -> Pinned {
        Pinned(pool.clone(), Vec::new())
    }

    pub fn add(&mut self, slot: SlotIdx) {
        self.0.retain(slot);
        self.1.push(slot);
    }

    pub fn slots(&self) -> &[SlotIdx] {
        &self.1
    }

    pub fn reverse(&mut self) {
        self.1.reverse();
    }

    /// Takes the last ones out, so many at most, and the last one first.
    pub fn split_off(&mut self, most: usize) -> Pinned {
        let mut last = Pinned(self.0.clone(), self.1.split_off(self.1.len().saturating_sub(most)));
        last.reverse();
        last
    }

    pub async fn let_go(mut self) {
        while let Some(slot) = self.1.pop() {
            self.0.release(slot);
            if self.1.len().is_multiple_of(turn::STEP) {
                turn::pause().await;
            }
        }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        self.1.iter().for_each(|slot| self.0.release(*slot));
    }
}

/// See the module's header.
#[derive(Clone, Copy)]
pub struct Reader<'a>(pub &'a Rc<Engine>);

impl Reader<'_> {
    /// Reads the value. `None`: there is no such key. Counts as a use.
    pub async fn read(self, db: Db, key: &[u8]) -> Result<Option<Value>, StoreError> {
        let value = self.fetch(db, key).await?;
        self.0.keys.count_answer(value.is_some());
        Ok(value)
    }

    /// As [`Reader::read`], if nothing has to be waited for: what is known without a READ, and
    /// records of up to [`AT_ONCE`] bytes where READs are over as soon as they are posted. `None`:
    /// nothing was done that [`Reader::read`] does not do again.
    pub fn read_now(&self, db: Db, key: &[u8]) -> Option<Option<Value>> {
        self.0.is_loaded().ok()?;
        let hash = self.0.keys.hash(key);
        let Some(entry) = self.0.keys.find(db, hash) else {
            self.0.keys.count_answer(false);
            return Some(None);
        };
        let addr = entry.addr();
        // What a memcpy brings is not looked for in the cache, nor kept there: finding it, and
        // making room for it, costs more than the copy.
        let value = match self.record_now(&entry, key) {
            Some((header, _, bytes)) => Value { bytes, expires: header.expires, encoding: header.encoding },
            None => {
                let value = self.0.records().cache.borrow().find(addr, key)?;
                self.0.keys.count(|s| s.cache_hits += 1);
                value
            }
        };
        self.0.keys.use_key(self.0.records().table.database(db), hash);
        self.0.keys.count_answer(true);
        Some(Some(value))
    }

    /// A record, if that takes no waiting and it is as it was written.
    fn record_now(&self, entry: &Entry, key: &[u8]) -> Option<Record> {
        let (addr, tag, piece) = (entry.addr(), entry.tag()?, entry.span());
        let is_it = |(header, ..): &Record| header.tag() == tag;
        if piece.end > PAGE_SIZE as u32 {
            return split_shared(self.whole_now(entry)?, Some(key)).ok().filter(is_it);
        }
        let as_written = |bytes: &[u8]| split(bytes, Some(key)).ok().filter(is_it);
        if self.0.records().space.borrow().is_open(addr.log_page)
            && let Some(log_page) = self.0.log.borrow().bytes(addr.log_page)
        {
            return as_written(addr.within(log_page));
        }
        self.0.pool_io.read_now(self.0.records().table.slot(addr.log_page)?, piece, as_written)
    }

    /// The bytes of a record that lies in several log pages. Not verified: only its sum tells that
    /// all of them are its own.
    fn whole_now(&self, entry: &Entry) -> Option<Bytes> {
        let (mut from, len) = (entry.span().start, entry.bytes() as usize);
        if len > AT_ONCE {
            return None;
        }
        let mut whole = BytesMut::with_capacity(len);
        for (log_page, _) in parts(entry.addr(), entry.units()) {
            let to = (from + (len - whole.len()) as u32).min(PAGE_SIZE as u32);
            let slot =
                self.0.records().table.slot(log_page).filter(|_| !self.0.records().space.borrow().is_open(log_page))?;
            self.0.pool_io.read_now(slot, from..to, |bytes| {
                whole.extend_from_slice(bytes);
                Some(())
            })?;
            from = 0;
        }
        Some(whole.freeze())
    }

    /// Reads a key's value, from wherever it is nearest.
    pub async fn fetch(&self, db: Db, key: &[u8]) -> Result<Option<Value>, StoreError> {
        self.0.is_loaded()?;
        turn::pause().await;
        let hash = self.0.keys.hash(key);
        let mut missed = String::new();
        for _ in 0..TRIES {
            let Some(entry) = self.0.keys.find(db, hash) else { return Ok(None) };
            let addr = entry.addr();
            self.0.keys.use_key(self.0.records().table.database(db), hash);
            if let Some(value) = self.0.records().cache.borrow().find(addr, key) {
                self.0.keys.count(|s| s.cache_hits += 1);
                return Ok(Some(value));
            }
            let read = match self.piece(&entry, key).await {
                Some(record) => Ok(record),
                None => self.record(addr, entry.units(), Some(key)).await,
            };
            match read {
                Ok((header, _, bytes)) => {
                    let value = Value { bytes, expires: header.expires, encoding: header.encoding };
                    // Moved or replaced meanwhile: nobody would remove it from the cache.
                    if self.0.keys.find(db, hash).is_some_and(|e| e.addr() == addr) {
                        self.0.records().cache.borrow_mut().insert(addr, key, &value);
                    }
                    return Ok(Some(value));
                }
                Err(Missed::Removed) => missed = "it is moved again and again".into(),
                Err(Missed::Io(error)) => missed = error.to_string(),
                Err(Missed::Bad(error)) => missed = error.to_string(),
            }
            // What was read is wrong only if the record is there still.
            if self.0.keys.find(db, hash).is_some_and(|e| e.addr() == addr) {
                break;
            }
        }
        repeated!(ERROR, "failed to read a key's record" of "", "failed to read a key's record: {missed}");
        Err(StoreError::Unreadable(missed))
    }

    /// Reads a small record and nothing beside it, from one replica. `None` if it isn't found there
    /// as it was written: then whole log pages are read, of which the pool knows what was written.
    async fn piece(&self, entry: &Entry, key: &[u8]) -> Option<Record> {
        let (addr, tag, piece) = (entry.addr(), entry.tag()?, entry.span());
        if entry.bytes() > SMALL
            || piece.end > PAGE_SIZE as u32
            || self.0.records().space.borrow().is_open(addr.log_page)
        {
            return None;
        }
        let slot = || self.0.records().table.slot(addr.log_page);
        let as_written = |bytes: &[u8]| split(bytes, Some(key)).ok().filter(|(header, ..)| header.tag() == tag);
        self.0.pool_io.read_piece(slot, piece, as_written).await.ok().flatten()?
    }

    /// Reads a record. With `of`, it must be that key's.
    pub async fn record(&self, addr: RecordAddr, units: u32, of: Option<&[u8]>) -> Result<Record, Missed> {
        let mut log_pages = parts(addr, units);
        let (first, _) = log_pages.next().ok_or(Missed::Removed)?;
        if log_pages.next().is_none() {
            // A log page that is not the last one may stand in the tail for one that had its number
            // before.
            if self.0.records().space.borrow().is_open(first)
                && let Some(log_page) = self.0.log.borrow().bytes(first)
            {
                return split(addr.within(log_page), of).map_err(Missed::Bad);
            }
            let slot = || self.0.records().table.slot(first);
            let read = self.0.pool_io.read_slot(slot, |log_page| split(addr.within(log_page), of)).await;
            return read.map_err(Missed::Io)?.ok_or(Missed::Removed)?.map_err(Missed::Bad);
        }
        let whole = self.whole(addr, units).await?;
        let (record, key) = (whole.slice_ref(addr.within(&whole)), of.map(Bytes::copy_from_slice));
        drop(whole);
        let split = blocking::run(record.len() as u64, move || split_shared(record, key.as_deref())).await;
        split.map_err(|_| Missed::Removed)?.map_err(Missed::Bad)
    }

    /// All bytes of the log pages that a record lies in.
    async fn whole(&self, addr: RecordAddr, units: u32) -> Result<Bytes, Missed> {
        self.log_pages(parts(addr, units).map(|(log_page, _)| log_page)).await
    }

    /// All bytes of some log pages, one after the other.
    pub async fn log_pages(&self, log_pages: impl Iterator<Item = LogPageIdx>) -> Result<Bytes, Missed> {
        let mut pinned = Pinned::new(&self.0.pool);
        for (nth, log_page) in log_pages.enumerate() {
            pinned.add(self.0.records().table.slot(log_page).ok_or(Missed::Removed)?);
            if nth % turn::STEP == 0 {
                // If the record goes meanwhile, what is read is not it, and its entry tells.
                turn::pause().await;
            }
        }
        let whole = self.slots(pinned.slots()).await.map_err(Missed::Io)?;
        pinned.let_go().await;
        Ok(blocking::shared(whole))
    }

    /// All bytes of some slots, one after the other.
    pub async fn slots(&self, slots: &[SlotIdx]) -> Result<BytesMut, IoError> {
        let whole = RefCell::new(BytesMut::zeroed(slots.len() * PAGE_SIZE));
        let reads = self.runs(slots).into_iter().map(|(nth, run)| {
            let whole = &whole;
            let take = move |bytes: &[u8]| {
                let from = nth * PAGE_SIZE;
                let bytes = &bytes[..run.count as usize * PAGE_SIZE];
                whole.borrow_mut()[from..from + bytes.len()].copy_from_slice(bytes);
            };
            async move {
                turn::pause().await;
                self.0.pool_io.read(run, take).await
            }
        });
        let mut reads = stream::iter(reads).buffer_unordered(TOGETHER);
        while reads.try_next().await?.is_some() {}
        drop(reads);
        Ok(whole.into_inner())
    }

    /// Slots in a row, as runs that one READ each can bring, with the place of each among them.
    pub fn runs(&self, slots: &[SlotIdx]) -> Vec<(usize, SlotRun)> {
        let per_extent = self.0.pool.slots_per_extent().max(1);
        let mut runs: Vec<(usize, SlotRun)> = Vec::new();
        for (nth, slot) in slots.iter().enumerate() {
            match runs.last_mut() {
                Some((_, run))
                    if run.first.0 + run.count == slot.0 && !slot.0.is_multiple_of(per_extent) && run.count < PIECE =>
                {
                    run.count += 1;
                }
                _ => runs.push((nth, SlotRun { first: *slot, count: 1 })),
            }
        }
        runs
    }
}

/// Takes a record apart that begins where the bytes do, and checks it.
pub fn checked<'a>(bytes: &'a [u8], of: Option<&[u8]>) -> Result<(Header, &'a [u8]), RecordError> {
    let header = Header::decode(bytes)?;
    let body = bytes.get(HEADER..HEADER + header.body()).ok_or(RecordError::Magic)?;
    header.verify(body)?;
    if of.is_some_and(|key| key != &body[..header.key_len as usize]) {
        return Err(RecordError::Foreign);
    }
    Ok((header, body))
}

/// A record that lies whole in these bytes. Without its key, if that is known.
pub fn split(bytes: &[u8], of: Option<&[u8]>) -> Result<Record, RecordError> {
    let (header, body) = checked(bytes, of)?;
    let (key, value) = body.split_at(header.key_len as usize);
    let key = if of.is_some() { Bytes::new() } else { Bytes::copy_from_slice(key) };
    Ok((header, key, Bytes::copy_from_slice(value)))
}

/// The same, without copying anything.
fn split_shared(bytes: Bytes, of: Option<&[u8]>) -> Result<Record, RecordError> {
    let (header, body) = checked(&bytes, of)?;
    let body = bytes.slice_ref(body);
    let key = header.key_len as usize;
    Ok((header, body.slice(..key), body.slice(key..)))
}
