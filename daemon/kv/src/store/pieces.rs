//! A large value piece by piece, as it comes from the pool: annexd never has all of it.
//!
//! The slots of its record are pinned first, which takes the key's lock and no READ. A slot's bytes
//! never change, so all pieces are of the value that the key had then, whatever becomes of the key.
//! What vouches for them is what vouches for a part of a value, see `part`.

use super::db::Db;
use super::engine::Engine;
use super::fetch::{Pinned, Reader};
use super::hash::KeyHash;
use super::index::Entry;
use super::keyspace::Spot;
use super::part;
use super::record::{HEADER, UNIT};
use super::space::parts;
use crate::turn;
use annex_pool::{IoError, SlotRun};
use annex_shared::page::PAGE_SIZE;
use bytes::Bytes;
use std::future::Future;
use std::rc::Rc;

/// Smaller records are read whole: in pieces they take more of the thread in all, and little memory
/// is saved.
pub const LARGE: usize = 4 << 20;
/// Log pages of a piece: one READ brings them, if their slots lie in a row.
const LOG_PAGES: usize = 32;

pub struct Pieces {
    store: Rc<Engine>,
    db: Db,
    hash: KeyHash,
    entry: Entry,
    /// Slots that nobody has begun to read, the last one first.
    pinned: Pinned,
    /// Bytes of the first of them that are before the value.
    skipped: usize,
    /// Bytes that nobody has begun to read.
    left: usize,
}

impl Pieces {
    /// Pins a large value. `None`: it is none, or has to be read whole; nothing was done.
    pub async fn pin(store: &Rc<Engine>, db: Db, key: &[u8]) -> Option<Pieces> {
        let hash = store.keys.hash(key);
        let entry = store.keys.find(db, hash).filter(|entry| entry.bytes() as usize >= LARGE && !store.is_loading())?;
        let (addr, left) = (entry.addr(), entry.value_bytes(key) as usize);
        let skipped = usize::from(addr.unit) * UNIT + HEADER + key.len();
        if skipped > PAGE_SIZE || store.records().cache.borrow().find(addr, key).is_some() {
            return None;
        }
        let mut pinned = Pinned::new(&store.pool);
        for (nth, (log_page, _)) in parts(addr, entry.units()).enumerate() {
            if store.records().space.borrow().is_open(log_page) {
                return None;
            }
            pinned.add(store.records().table.slot(log_page)?);
            if nth % turn::STEP == 0 {
                turn::pause().await;
            }
        }
        pinned.reverse();
        let pieces = Pieces { store: store.clone(), db, hash, entry, pinned, skipped, left };
        // Compaction may have moved it while it was pinned.
        pieces.is_current().then_some(pieces)
    }

    /// Whether the record is the key's, which its first log page tells. Counts as a use.
    pub async fn is_of(&self, key: &[u8]) -> bool {
        let Some(first) = self.pinned.slots().last() else { return false };
        let (run, store) = (SlotRun { first: *first, count: 1 }, &self.store);
        let read = store.pool_io.read(run, |log_page| part::is_of(log_page, &self.entry, self.hash, key)).await;
        let is_it = read.is_ok_and(|is_it| is_it);
        if is_it {
            store.keys.use_key(store.records().table.database(self.db), self.hash);
            store.keys.count_answer(true);
        }
        is_it
    }

    /// Bytes that nobody has begun to read.
    pub fn left(&self) -> usize {
        self.left
    }

    /// Bytes of memory: in annexd, and in the pool if the key has another value now. Then the pool
    /// keeps this one for its reader alone.
    pub fn memory(&self) -> usize {
        let kept = if self.is_current() { 0 } else { self.left };
        size_of_val(self.pinned.slots()) + kept
    }

    fn is_current(&self) -> bool {
        self.store.keys.find(self.db, self.hash).is_some_and(|entry| Spot::of(&entry) == Spot::of(&self.entry))
    }

    /// Begins to read the next piece: of so many bytes. `None`: that was all.
    pub fn read_next(&mut self) -> Option<(usize, impl Future<Output = Result<Bytes, IoError>> + use<>)> {
        if self.left == 0 {
            return None;
        }
        let pinned = self.pinned.split_off(LOG_PAGES);
        let from = std::mem::take(&mut self.skipped);
        let len = (pinned.slots().len() * PAGE_SIZE - from).min(self.left);
        self.left -= len;
        let store = self.store.clone();
        let read = async move {
            turn::pause().await;
            Ok(Reader(&store).slots(pinned.slots()).await?.freeze().slice(from..from + len))
        };
        Some((len, read))
    }

    /// Gives back what is left, in turns.
    pub async fn let_go(self) {
        self.pinned.let_go().await;
    }
}
