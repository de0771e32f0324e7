//! Which keys somebody watches.

use super::db::Db;
use super::hash::KeyHash;
use std::cell::Cell;
use std::collections::HashMap;
use std::rc::{Rc, Weak};

/// By the database as clients know it.
#[derive(Default)]
pub struct Watches(HashMap<(Db, KeyHash), Vec<Weak<Cell<bool>>>>);

impl Watches {
    pub fn add(&mut self, db: Db, hash: KeyHash) -> Rc<Cell<bool>> {
        let changed = Rc::new(Cell::new(false));
        // Those that ended go as the table grows.
        if self.0.len() == self.0.capacity() {
            self.0.retain(|_, of| {
                of.retain(|w| w.strong_count() > 0);
                !of.is_empty()
            });
        }
        let of = self.0.entry((db, hash)).or_default();
        of.retain(|w| w.strong_count() > 0);
        of.push(Rc::downgrade(&changed));
        changed
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn changed(&mut self, db: Db, hash: KeyHash) {
        for watch in self.0.remove(&(db, hash)).into_iter().flatten() {
            watch.upgrade().inspect(|changed| changed.set(true));
        }
    }

    /// Keys of a database that are watched.
    pub fn of(&self, db: Db) -> Vec<KeyHash> {
        self.0.keys().filter(|(at, _)| *at == db).map(|(_, hash)| *hash).collect()
    }
}
