//! What the commands of a pipeline, or of several connections, will look at is brought into the CPU's caches beforehand, for some of them together: one by one, each
//! would wait for memory several times. Nothing that is found here is used for anything else.

use super::hash::KeyHash;
use super::record::UNIT;
use super::*;
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

/// What was announced and not looked for yet.
#[derive(Default)]
pub(super) struct Announced(RefCell<Vec<Wanted>>);

impl Store {
    /// Keys of which something is wanted soon; those beyond the first [`TOGETHER`] are left out.
    pub fn foresee<'a>(&self, db: Db, wanted: impl Iterator<Item = (&'a [u8], Soon)>) {
        let mut all = [Wanted { db, hash: KeyHash { high: 0, low: 0 }, soon: Soon::Read }; TOGETHER];
        let wanted = wanted.map(|(key, soon)| self.wanted(db, key, soon));
        let count = all.iter_mut().zip(wanted).map(|(at, wanted)| *at = wanted).count();
        self.look_for(&all[..count]);
    }

    /// A key of which something is wanted soon: not before [`Store::foresee_announced`], which looks for it together with those that are announced until then.
    pub fn announce(&self, db: Db, key: &[u8], soon: Soon) {
        let wanted = self.wanted(db, key, soon);
        self.0.announced.0.borrow_mut().push(wanted);
    }

    /// See [`Store::announce`].
    pub fn foresee_announced(&self) {
        let mut announced = self.0.announced.0.borrow_mut();
        announced.chunks(TOGETHER).for_each(|some| self.look_for(some));
        announced.clear();
    }

    fn wanted(&self, db: Db, key: &[u8], soon: Soon) -> Wanted {
        Wanted { db: self.0.table.database(db), hash: self.hash(key), soon }
    }

    /// Brings what is known of some keys into the caches, and the records of those that will be read.
    fn look_for(&self, wanted: &[Wanted]) {
        let mut entries = [None; TOGETHER];
        let indexes = self.0.indexes.borrow();
        // In a loop of its own, so that the CPU looks for the next key while it waits for this one's entry.
        for (entry, Wanted { db, hash, soon }) in entries.iter_mut().zip(wanted) {
            *entry = indexes[at(*db)].find(*hash).map(|entry| (*entry, *soon));
        }
        for (entry, soon) in entries.iter().flatten() {
            match soon {
                Soon::Read => self.foresee_record(entry),
                Soon::Overwrite => self.foresee_end(entry.place()),
            }
        }
    }

    fn foresee_record(&self, entry: &Entry) {
        let place = entry.place();
        let from = u32::from(place.unit) * UNIT as u32;
        if !self.0.space.borrow().is_open(place.sheet)
            && let Some(slot) = self.0.table.slot(place.sheet)
        {
            self.0.way.foresee(slot, &(from..(from + entry.bytes()).min(PAGE_SIZE as u32)));
        }
    }

    /// What a record's end is noted in.
    fn foresee_end(&self, place: Place) {
        black_box((self.0.table.starts(place.sheet), self.0.space.borrow().used(place.sheet)));
    }
}
