//! Compaction: records that are left in sheets of which most is unused are appended anew, and the sheets' slots go back to the pool.
//!
//! It starts when more than a quarter of what is held is unused. It moves few records at a time, together, so that a request waits behind no more
//! than one such step; and it moves nothing while the log waits for room.

use super::fetch::{Missed, checked};
use super::log::Told;
use super::sheets::UNITS;
use super::space::FILLS;
use super::*;
use futures::future::{join_all, poll_fn};
use std::task::{Poll, Waker};

/// How often it looks whether there is something to do.
pub(super) const EVERY: Duration = Duration::from_millis(100);
/// Below so many sheets nothing is compacted.
const LEAST: u64 = 256;
/// Sheets emptied in one step.
const STEP: usize = 16;
/// What is unused of the sheets held, at most: one part in so many.
const UNUSED: u64 = 4;

/// The moves of one step, until all are decided.
struct Moves {
    /// Units that are there twice, for as long as the moves are under way: the store's count, and how many of these are ours.
    moving: Rc<Cell<u64>>,
    units: Cell<u64>,
    under_way: Cell<u64>,
    moved: Cell<u64>,
    waker: RefCell<Option<Waker>>,
}

impl Moves {
    fn begin(&self, units: u32) {
        self.moving.set(self.moving.get() + u64::from(units));
        self.units.set(self.units.get() + u64::from(units));
        self.under_way.set(self.under_way.get() + 1);
    }

    async fn over(&self) -> u64 {
        poll_fn(|context| {
            if self.under_way.get() == 0 {
                return Poll::Ready(self.moved.get());
            }
            self.waker.replace(Some(context.waker().clone()));
            Poll::Pending
        })
        .await
    }
}

impl Hears for Moves {
    fn hear(&self, units: u64, outcome: Result<(), StoreError>) {
        self.moving.set(self.moving.get() - units);
        self.units.set(self.units.get() - units);
        self.under_way.set(self.under_way.get() - 1);
        self.moved.set(self.moved.get() + u64::from(outcome.is_ok()));
        if self.under_way.get() == 0
            && let Some(waker) = self.waker.take()
        {
            waker.wake();
        }
    }
}

impl Drop for Moves {
    fn drop(&mut self) {
        self.moving.set(self.moving.get() - self.units.get());
    }
}

impl Store {
    /// One step. False: there is nothing to do.
    pub(super) async fn compact(&self) -> bool {
        let (held, used) = {
            let space = self.0.space.borrow();
            (space.sheets(), space.units().div_ceil(u64::from(UNITS)))
        };
        if self.0.loading.get() || held < LEAST || held.saturating_sub(used) * UNUSED < held || self.0.stock.is_out() {
            return false;
        }
        let sheets = self.sparse();
        if sheets.is_empty() {
            return false;
        }
        let moves = Rc::new(Moves {
            moving: self.0.moving.clone(),
            units: Cell::new(0),
            under_way: Cell::new(0),
            moved: Cell::new(0),
            waker: RefCell::new(None),
        });
        join_all(sheets.into_iter().map(|sheet| self.empty(sheet, &moves))).await;
        self.forward();
        let moved = moves.over().await;
        self.count(|s| s.moved += moved);
        moved > 0
    }

    /// Some sheets that are to be emptied, of the emptiest.
    fn sparse(&self) -> Vec<SheetIdx> {
        let space = self.0.space.borrow();
        let (first, mut sheets) = (self.random() as usize, Vec::new());
        // Of those that are full but for some units nothing is to be gained.
        for fill in 1..FILLS {
            space.filled(fill, first, STEP, &mut sheets);
            // A record that goes on in other sheets begins in none of them.
            sheets.retain(|sheet| self.0.table.starts(*sheet) != 0);
            if sheets.len() == STEP {
                break;
            }
        }
        sheets
    }

    /// Appends the records anew that begin in a sheet.
    async fn empty(&self, sheet: SheetIdx, moves: &Rc<Moves>) {
        while self.is_full() {
            self.0.drained.notified().await;
        }
        let (slot, places) = (|| self.0.table.slot(sheet), self.0.table.places(sheet));
        let look = |bytes: &[u8]| places.filter_map(|place| self.move_within(place, bytes, moves)).collect::<Vec<_>>();
        let Ok(Some(going_on)) = self.0.way.read_slot(slot, look).await else { return };
        for (place, units) in going_on {
            match self.record(place, units, None).await {
                Ok((header, key, value)) => self.move_record(place, &header, &key, &value, moves),
                Err(Missed::Bad(error)) => tracing::error!("a record can't be moved: {error}"),
                Err(_) => {}
            }
        }
    }

    /// Moves a record that begins here. If it goes on in the sheets that follow, tells how many units it has.
    fn move_within(&self, place: Place, sheet: &[u8], moves: &Rc<Moves>) -> Option<(Place, u32)> {
        let bytes = place.within(sheet);
        let header = Header::decode(bytes);
        if let Ok(header) = &header
            && HEADER + header.body() > bytes.len()
        {
            // One that is too large for the log has its sheets for itself.
            return Some((place, header.units())).filter(|(_, units)| log::takes(*units));
        }
        match checked(bytes, None) {
            Ok((header, body)) => {
                let (key, value) = body.split_at(header.key_len as usize);
                self.move_record(place, &header, key, value, moves);
            }
            Err(error) => tracing::error!("a record can't be moved: {error}"),
        }
        None
    }

    fn move_record(&self, place: Place, header: &Header, key: &[u8], value: &[u8], moves: &Rc<Moves>) {
        let found = self.0.indexes.borrow()[at(header.db)].find(header.hash).copied();
        let is_it = |entry: &Entry| entry.place() == place && entry.tag().is_none_or(|tag| tag == header.tag());
        let Some(entry) = found.filter(is_it) else { return };
        let hearer: Rc<dyn Hears> = moves.clone();
        let told = Told::Hearer(Rc::downgrade(&hearer), u64::from(header.units()));
        if self.append(header, key, value, entry.access(), Some(place), told).is_ok() {
            moves.begin(header.units());
        }
    }
}
