//! What the commands of a pipeline, or of several connections, will look at is brought into the
//! CPU's caches beforehand, for some of them together: one by one, each would wait for memory
//! several times. Nothing that is found here is used for anything else.

use super::db::Db;
use super::hash::KeyHash;
use super::index::{Entry, at};
use super::keyspace::Keyspace;
use super::log_pages::RecordAddr;
use super::pool_io::PoolIo;
use super::records::Records;
use annex_shared::page::PAGE_SIZE;
use std::cell::RefCell;
use std::hint::black_box;

/// How many keys are looked up together at most.
pub const TOGETHER: usize = 16;

/// What will be done with a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Soon {
    Read,
    /// Whatever it has now goes.
    Overwrite,
}

/// A key, in one of the store's databases.
#[derive(Clone, Copy)]
struct Wanted {
    db: Db,
    hash: KeyHash,
    soon: Soon,
}

/// Hints that nobody has followed yet.
#[derive(Default)]
pub struct PrefetchHints(RefCell<Vec<Wanted>>);

impl PrefetchHints {
    /// A key of which something is wanted soon: [`PrefetchHints::follow`] looks for it, together
    /// with the others that are added until then.
    pub fn add(&self, keys: &Keyspace, db: Db, key: &[u8], soon: Soon) {
        let wanted = Wanted { db: keys.records.table.database(db), hash: keys.hash(key), soon };
        self.0.borrow_mut().push(wanted);
    }

    /// See [`PrefetchHints::add`].
    pub fn follow(&self, keys: &Keyspace, pool_io: &PoolIo) {
        let mut announced = self.0.borrow_mut();
        announced.chunks(TOGETHER).for_each(|some| look_for(some, keys, pool_io));
        announced.clear();
    }
}

/// Brings what is known of some keys into the caches, and the records of those that will be
/// read.
fn look_for(wanted: &[Wanted], keys: &Keyspace, pool_io: &PoolIo) {
    let mut entries = [None; TOGETHER];
    let indexes = keys.indexes.borrow();
    // In a loop of its own, so that the CPU looks for the next key while it waits for this
    // one's entry.
    for (entry, Wanted { db, hash, soon }) in entries.iter_mut().zip(wanted) {
        *entry = indexes[at(*db)].find(*hash).map(|entry| (*entry, *soon));
    }
    for (entry, soon) in entries.iter().flatten() {
        match soon {
            Soon::Read => look_for_record(entry, &keys.records, pool_io),
            Soon::Overwrite => look_for_end(entry.addr(), &keys.records),
        }
    }
}

fn look_for_record(entry: &Entry, records: &Records, pool_io: &PoolIo) {
    let log_page = entry.addr().log_page;
    if !records.space.borrow().is_open(log_page)
        && let Some(slot) = records.table.slot(log_page)
    {
        let std::ops::Range { start, end } = entry.span();
        pool_io.prefetch_hint(slot, &(start..end.min(PAGE_SIZE as u32)));
    }
}

/// What a record's end is noted in.
fn look_for_end(addr: RecordAddr, records: &Records) {
    black_box((records.table.starts(addr.log_page), records.space.borrow().used(addr.log_page)));
}
