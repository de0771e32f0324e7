//! What the commands of a pipeline, or of several connections, will look at is brought into the
//! CPU's caches beforehand, for some of them together: one by one, each would wait for memory
//! several times. Nothing that is found here is used for anything else.

use super::hash::KeyHash;
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
    /// A key of which something is wanted soon: [`Store::foresee`] looks for it, together with the
    /// others that are announced until then.
    pub fn announce(&self, db: Db, key: &[u8], soon: Soon) {
        let wanted = Wanted { db: self.0.table.database(db), hash: self.hash(key), soon };
        self.0.announced.0.borrow_mut().push(wanted);
    }

    /// See [`Store::announce`].
    pub fn foresee(&self) {
        let mut announced = self.0.announced.0.borrow_mut();
        announced.chunks(TOGETHER).for_each(|some| self.look_for(some));
        announced.clear();
    }

    /// Brings what is known of some keys into the caches, and the records of those that will be
    /// read.
    fn look_for(&self, wanted: &[Wanted]) {
        let mut entries = [None; TOGETHER];
        let indexes = self.0.indexes.borrow();
        // In a loop of its own, so that the CPU looks for the next key while it waits for this
        // one's entry.
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
        let sheet = entry.place().sheet;
        if !self.0.space.borrow().is_open(sheet)
            && let Some(slot) = self.0.table.slot(sheet)
        {
            let std::ops::Range { start, end } = entry.span();
            self.0.pool_io.foresee(slot, &(start..end.min(PAGE_SIZE as u32)));
        }
    }

    /// What a record's end is noted in.
    fn foresee_end(&self, place: Place) {
        black_box((self.0.table.starts(place.sheet), self.0.space.borrow().used(place.sheet)));
    }
}
