//! Where records lie: which units are in use, in which slots of the pool their sheets are, and what
//! becomes of both when a record goes.

use super::cache::Cache;
use super::index::Entry;
use super::record::UNIT;
use super::sheets::{Place, SheetIdx, SheetTable};
use super::slot_reserve::SlotReserve;
use super::space::Space;
use annex_shared::ids::SlotIdx;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use tokio::sync::Notify;

/// Sheets of a record that are given back as soon as it goes; those of a larger one are given back
/// bit by bit.
const FREED_AT_ONCE: usize = 4096;

/// See the module's header.
pub struct Records {
    pub table: Arc<SheetTable>,
    pub space: RefCell<Space>,
    pub slot_reserve: SlotReserve,
    pub cache: RefCell<Cache>,
    /// Sheets of which nothing is in use, and which nobody has given back.
    empty: RefCell<Vec<SheetIdx>>,
    /// Units of records that are there twice while they are moved.
    pub moving: Rc<Cell<u64>>,
    /// There may be something to compact or to give back.
    pub work: Notify,
}

impl Records {
    pub fn new(table: Arc<SheetTable>, slot_reserve: SlotReserve, cache: Cache) -> Records {
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

    /// A sheet's bytes are in this slot now.
    pub fn put(&self, sheet: SheetIdx, slot: SlotIdx) {
        match self.table.set_slot(sheet, Some(slot)) {
            Some(old) => self.slot_reserve.release(old),
            None => self.space.borrow_mut().placed(sheet),
        }
    }

    /// A record that the index does not name any more.
    pub fn drop_record(&self, entry: &Entry) {
        self.table.clear_start(entry.place());
        self.cache.borrow_mut().remove(entry.place());
        self.give_back(entry.place(), entry.units());
    }

    /// Units in which there is no record any more.
    pub fn give_back(&self, place: Place, units: u32) {
        let mut empty = Vec::new();
        self.space.borrow_mut().remove(place, units, &mut empty);
        if empty.len() > FREED_AT_ONCE {
            self.empty.borrow_mut().append(&mut empty);
            self.work.notify_one();
        }
        empty.into_iter().for_each(|sheet| self.free_sheet(sheet));
    }

    /// Gives back some of the sheets of very large records. False: there are none.
    pub fn free_some(&self) -> bool {
        let mut empty = self.empty.borrow_mut();
        let left = empty.len().saturating_sub(FREED_AT_ONCE);
        let some = empty.split_off(left);
        drop(empty);
        some.iter().for_each(|sheet| self.free_sheet(*sheet));
        !some.is_empty()
    }

    /// Gives a sheet's slot back if nothing of the sheet is in use.
    pub fn free_sheet(&self, sheet: SheetIdx) {
        let mut space = self.space.borrow_mut();
        if space.used(sheet) > 0 {
            return;
        }
        if let Some(slot) = self.table.set_slot(sheet, None) {
            self.slot_reserve.release(slot);
            if let Some(segment) = space.freed(sheet) {
                self.table.abandon(segment);
            }
        }
    }

    /// A write of a sheet is over.
    pub fn let_go(&self, sheet: SheetIdx) {
        if let Some(segment) = self.space.borrow_mut().let_go(sheet) {
            self.table.abandon(segment);
        }
    }
}
