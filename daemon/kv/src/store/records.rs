//! Where records lie: which units are in use, in which slots of the pool their log pages are, and
//! what becomes of both when a record goes.

use super::cache::Cache;
use super::index::Entry;
use super::log_pages::{LogPageIdx, LogPageTable, RecordAddr};
use super::record::UNIT;
use super::slot_reserve::SlotReserve;
use super::space::Space;
use annex_shared::ids::SlotIdx;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use tokio::sync::Notify;

/// Log pages of a record that are given back as soon as it goes; those of a larger one are given
/// back bit by bit.
const FREED_AT_ONCE: usize = 4096;

/// See the module's header.
pub struct Records {
    pub table: Arc<LogPageTable>,
    pub space: RefCell<Space>,
    pub slot_reserve: SlotReserve,
    pub cache: RefCell<Cache>,
    /// Log pages of which nothing is in use, and which nobody has given back.
    empty: RefCell<Vec<LogPageIdx>>,
    /// Units of records that are there twice while they are moved.
    pub moving: Rc<Cell<u64>>,
    /// There may be something to compact or to give back.
    pub work: Notify,
}

impl Records {
    pub fn new(table: Arc<LogPageTable>, slot_reserve: SlotReserve, cache: Cache) -> Records {
        Records {
            table,
            space: RefCell::default(),
            slot_reserve,
            cache: RefCell::new(cache),
            empty: RefCell::default(),
            moving: Rc::default(),
            work: Notify::new(),
        }
    }

    /// Bytes of records.
    #[inline]
    pub fn used_bytes(&self) -> u64 {
        self.space.borrow().units().saturating_sub(self.moving.get()) * UNIT as u64
    }

    /// A log page's bytes are in this slot now.
    pub fn put(&self, log_page: LogPageIdx, slot: SlotIdx) {
        match self.table.set_slot(log_page, Some(slot)) {
            Some(old) => self.slot_reserve.release(old),
            None => self.space.borrow_mut().stored(log_page),
        }
    }

    /// A record that the index does not name any more.
    pub fn drop_record(&self, entry: &Entry) {
        self.table.clear_start(entry.addr());
        self.cache.borrow_mut().remove(entry.addr());
        self.give_back(entry.addr(), entry.units());
    }

    /// Units in which there is no record any more.
    pub fn give_back(&self, addr: RecordAddr, units: u32) {
        let mut empty = Vec::new();
        self.space.borrow_mut().remove(addr, units, &mut empty);
        if empty.len() > FREED_AT_ONCE {
            self.empty.borrow_mut().append(&mut empty);
            self.work.notify_one();
        }
        empty.into_iter().for_each(|log_page| self.free_log_page(log_page));
    }

    /// Gives back some of the log pages of very large records. False: there are none.
    pub fn free_some(&self) -> bool {
        let mut empty = self.empty.borrow_mut();
        let left = empty.len().saturating_sub(FREED_AT_ONCE);
        let some = empty.split_off(left);
        drop(empty);
        some.iter().for_each(|log_page| self.free_log_page(*log_page));
        !some.is_empty()
    }

    /// Gives a log page's slot back if nothing of the log page is in use.
    pub fn free_log_page(&self, log_page: LogPageIdx) {
        let mut space = self.space.borrow_mut();
        if space.used(log_page) > 0 {
            return;
        }
        if let Some(slot) = self.table.set_slot(log_page, None) {
            self.slot_reserve.release(slot);
            if let Some(segment) = space.freed(log_page) {
                self.table.abandon(segment);
            }
        }
    }

    /// A write of a log page is over.
    pub fn let_go(&self, log_page: LogPageIdx) {
        if let Some(segment) = self.space.borrow_mut().let_go(log_page) {
            self.table.abandon(segment);
        }
    }
}
