//! Slabs that a connector has made ready, and how its endpoints see them without waiting for each
//! other.
//!
//! The table is never changed, only replaced. An endpoint keeps a [`View`]: a reference to the
//! table it saw last. It looks at a version number to learn that there is a newer one. A replaced
//! table goes away when no endpoint holds it any more, and always on the connector's side
//! ([`Prepared::sweep`]).

use annex_shared::ids::Rkey;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

type Table<T> = HashMap<Rkey, T>;

/// What a connector shares with its endpoints.
#[derive(Debug)]
pub(super) struct Prepared<T> {
    version: AtomicU64,
    tables: Mutex<Tables<T>>,
}

#[derive(Debug)]
struct Tables<T> {
    current: Arc<Table<T>>,
    replaced: Vec<Arc<Table<T>>>,
}

/// What one endpoint sees.
#[derive(Debug)]
pub(super) struct View<T> {
    version: u64,
    table: Arc<Table<T>>,
}

impl<T> Default for Prepared<T> {
    fn default() -> Self {
        let tables = Tables { current: Arc::default(), replaced: Vec::new() };
        Prepared { version: AtomicU64::new(1), tables: Mutex::new(tables) }
    }
}

impl<T: Clone> Prepared<T> {
    /// The newest table. The lock behind it is only ever held for a few pointer moves.
    pub(super) fn view(&self) -> View<T> {
        let tables = self.tables.lock();
        View { table: tables.current.clone(), version: self.version.load(Ordering::Acquire) }
    }

    pub(super) fn contains(&self, rkey: Rkey) -> bool {
        self.tables.lock().current.contains_key(&rkey)
    }

    pub(super) fn insert(&self, rkey: Rkey, slab: T) {
        self.replace(|table| {
            table.insert(rkey, slab);
        });
    }

    pub(super) fn remove(&self, rkey: Rkey) {
        self.replace(|table| {
            table.remove(&rkey);
        });
    }

    /// Frees what no endpoint can reach any more.
    pub(super) fn sweep(&self) {
        let unused: Vec<_> = {
            // A replaced table that only this list holds can't gain holders: endpoints take the
            // current one only.
            self.tables.lock().replaced.extract_if(.., |table| Arc::strong_count(table) == 1).collect()
        };
        drop(unused);
    }

    /// Control threads only, one at a time (the connector sees to it).
    fn replace(&self, change: impl FnOnce(&mut Table<T>)) {
        let old = self.view();
        let mut table = Table::clone(&old.table);
        drop(old);
        change(&mut table);
        let table = Arc::new(table);
        {
            let mut tables = self.tables.lock();
            let old = std::mem::replace(&mut tables.current, table);
            tables.replaced.push(old);
            self.version.fetch_add(1, Ordering::Release);
        }
        self.sweep();
    }
}

impl<T: Clone> View<T> {
    /// Takes the newest table, and lets go of the old one (the connector frees it).
    #[inline]
    pub(super) fn refresh(&mut self, prepared: &Prepared<T>) {
        if self.version != prepared.version.load(Ordering::Acquire) {
            *self = prepared.view();
        }
    }

    #[inline]
    pub(super) fn get(&self, rkey: Rkey) -> Option<&T> {
        self.table.get(&rkey)
    }
}
