//! What a store is made of: its requests and its background tasks share it.

use super::error::StoreError;
use super::keyspace::Keyspace;
use super::log::Log;
use super::log_pages::LogPageIdx;
use super::pool_io::PoolIo;
use super::prefetch_hint::PrefetchHints;
use super::records::Records;
use annex_pool::Pool;
use std::cell::{Cell, RefCell};
use std::sync::Arc;
use tokio::sync::Notify;

/// Log pages that wait to be written before writers wait too.
const MAX_DIRTY: usize = 1024;
/// So many log pages more than at compaction's last look are a reason for the next one.
const LOOK_AFTER: u64 = 64;

/// See the module's header.
pub struct Engine {
    pub pool: Arc<Pool>,
    pub keys: Keyspace,
    pub log: RefCell<Log>,
    pub pool_io: PoolIo,
    pub prefetch_hints: PrefetchHints,
    pub loading: Cell<bool>,
    /// Keys are being evicted so that what waits can be written.
    pub making_room: Cell<bool>,
    /// Fewer log pages wait to be written, or compaction has made room.
    pub drained: Notify,
    /// Log pages held when it was last looked whether there is something to compact.
    pub looked: Cell<u64>,
    /// Compaction needs what room is left: writers wait.
    pub held_up: Cell<bool>,
}

impl Engine {
    pub fn new(pool: Arc<Pool>, keys: Keyspace, pool_io: PoolIo) -> Engine {
        Engine {
            pool,
            keys,
            log: RefCell::default(),
            pool_io,
            prefetch_hints: PrefetchHints::default(),
            loading: Cell::new(true),
            making_room: Cell::new(false),
            drained: Notify::new(),
            looked: Cell::new(0),
            held_up: Cell::new(false),
        }
    }

    #[inline]
    pub fn records(&self) -> &Records {
        &self.keys.records
    }

    #[inline]
    pub fn is_loading(&self) -> bool {
        self.loading.get()
    }

    #[inline]
    pub fn is_loaded(&self) -> Result<(), StoreError> {
        if self.loading.get() { Err(StoreError::Loading) } else { Ok(()) }
    }

    /// Too much waits to be written.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.log.borrow().dirty() > MAX_DIRTY
    }

    /// Writers have taken log pages: compaction is to look if they are many.
    pub fn look_soon(&self) {
        if self.records().space.borrow().log_pages() >= self.looked.get() + LOOK_AFTER {
            self.records().work.notify_one();
        }
    }

    /// A donor that has the log page takes reads and writes now, or it has no slot.
    pub fn is_within_reach(&self, log_page: LogPageIdx) -> bool {
        self.records().table.slot(log_page).is_none_or(|slot| self.pool.takes_writes_to(slot))
    }
}
