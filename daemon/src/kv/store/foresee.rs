//! What the commands of a pipeline will look at is brought into the CPU's caches beforehand, for some of them together: one by one, each would wait for memory
//! several times. Nothing that is found here is used for anything else.

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

impl Store {
    /// Keys of which something is wanted soon; those beyond the first [`TOGETHER`] are left out.
    pub fn foresee<'a>(&self, db: Db, wanted: impl Iterator<Item = (&'a [u8], Soon)>) {
        let mut hashes = [(KeyHash { high: 0, low: 0 }, Soon::Read); TOGETHER];
        let hashed = wanted.map(|(key, soon)| (self.hash(key), soon));
        let count = hashes.iter_mut().zip(hashed).map(|(at, hashed)| *at = hashed).count();
        // In a loop of its own, so that the CPU looks for the next key while it waits for this one's entry.
        let mut entries = [None; TOGETHER];
        let indexes = self.0.indexes.borrow();
        let index = &indexes[at(self.0.table.database(db))];
        for (entry, (hash, soon)) in entries.iter_mut().zip(&hashes[..count]) {
            *entry = index.find(*hash).map(|entry| (*entry, *soon));
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
