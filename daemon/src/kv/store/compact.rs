//! Compaction: records that are left in sheets of which most is unused are appended anew, and the sheets' slots go back to the pool.
//!
//! It starts when more than a quarter of what is held is unused. It moves few records at a time, together, so that a request waits behind no more
//! than one such step; and it moves nothing while the log waits for room.

use super::sheets::UNITS;
use super::*;
use futures::future::join_all;

/// How often it looks whether there is something to do.
pub(super) const EVERY: Duration = Duration::from_millis(100);
/// Below so many sheets nothing is compacted.
const LEAST: u64 = 256;
/// Sheets emptied in one step.
const STEP: usize = 16;
/// What is unused of the sheets held, at most: one part in so many.
const UNUSED: u64 = 4;
/// Sheets with at most so many units in use are emptied first, then fuller ones.
const FILLS: [u8; 3] = [UNITS as u8 / 4, UNITS as u8 / 2, UNITS as u8 / 8 * 7];

/// Units that are there twice, for as long as this lives.
struct Moving<'a>(&'a Cell<u64>, u64);

impl Moving<'_> {
    fn new(count: &Cell<u64>, units: u32) -> Moving<'_> {
        count.set(count.get() + u64::from(units));
        Moving(count, u64::from(units))
    }
}

impl Drop for Moving<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - self.1);
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
        let moved: Vec<u64> = join_all(sheets.into_iter().map(|sheet| self.empty(sheet))).await;
        let moved: u64 = moved.into_iter().sum();
        self.count(|s| s.moved += moved);
        moved > 0
    }

    /// Some sheets that are to be emptied.
    fn sparse(&self) -> Vec<SheetIdx> {
        let space = self.0.space.borrow();
        let first = self.random() as usize;
        for at_most in FILLS {
            let mut sheets = Vec::new();
            for n in 0..space.segments() {
                let nth = first.wrapping_add(n) % space.segments();
                let sparse = space.sparse(nth, at_most).into_iter();
                sheets.extend(sparse.filter(|sheet| self.0.table.starts(*sheet) != 0));
                if sheets.len() >= STEP {
                    sheets.truncate(STEP);
                    break;
                }
            }
            if !sheets.is_empty() {
                return sheets;
            }
        }
        Vec::new()
    }

    /// Moves the records that begin in a sheet. Tells how many there were.
    async fn empty(&self, sheet: SheetIdx) -> u64 {
        let starts = self.0.table.starts(sheet);
        let places = (0..UNITS as u8).filter(|unit| starts >> unit & 1 == 1).map(|unit| Place { sheet, unit });
        join_all(places.map(|place| self.move_record(place))).await.into_iter().filter(|moved| *moved).count() as u64
    }

    async fn move_record(&self, place: Place) -> bool {
        // How long it is the header says; one sheet always has that.
        let Some(units) = self.header_at(place).await.map(|h| h.units()) else { return false };
        if !log::takes(units) {
            return false;
        }
        let (header, key, value) = match self.record(place, units, None).await {
            Ok(record) => record,
            Err(fetch::Missed::Bad(error)) => {
                tracing::error!("a record can't be moved: {error}");
                return false;
            }
            Err(_) => return false,
        };
        let found = self.0.indexes.borrow()[at(header.db)].find(header.hash).copied();
        match found {
            Some(entry) if entry.place() == place => {
                let moving = Moving::new(&self.0.moving, units);
                let moved = self.append(&header, &key, &value, entry.access(), Some(place), || ()).await;
                drop(moving);
                moved.is_ok()
            }
            _ => false,
        }
    }

    /// The header of the record that begins here.
    pub(super) async fn header_at(&self, place: Place) -> Option<Header> {
        let at = usize::from(place.unit) * UNIT;
        let run = crate::pool::SlotRun { first: self.0.table.slot(place.sheet)?, count: 1 };
        self.0.way.read(run, |sheet| Header::decode(&sheet[at..])).await.ok()?.ok()
    }
}
