//! A key that somebody watches.

use super::db::Db;
use super::engine::Engine;
use bytes::Bytes;
use std::cell::Cell;
use std::rc::Rc;

/// See the module's header.
pub struct Watch {
    store: Rc<Engine>,
    db: Db,
    key: Bytes,
    changed: Rc<Cell<bool>>,
}

impl Watch {
    pub fn new(store: &Rc<Engine>, db: Db, key: &[u8]) -> Watch {
        let changed = store.keys.watch(db, key);
        Watch { store: store.clone(), db, key: Bytes::copy_from_slice(key), changed }
    }

    /// Written, removed, expired, evicted, flushed or swapped since.
    pub fn is_changed(&self) -> bool {
        self.store.keys.expire_now(self.db, &self.key);
        self.changed.get()
    }
}
