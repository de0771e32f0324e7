//! Compaction: records that are left in sheets of which most is unused are appended anew, and the sheets' slots go back to the pool.
//!
//! It starts when more than a quarter of what is held is unused. It moves few records at a time, together, so that a request waits behind no more
//! than one such step; and it moves nothing while the log waits for room.

use super::fetch::{Missed, Record, split};
use super::record::RecordError;
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

/// What a sheet has of a record that begins in it.
enum Found {
    Whole(Record),
    /// A record of so many units goes on in the sheets that follow.
    Begins(u32),
}

impl Found {
    fn at(place: Place, sheet: &[u8]) -> Result<Found, RecordError> {
        let bytes = place.within(sheet);
        let header = Header::decode(bytes)?;
        if HEADER + header.body() > bytes.len() {
            return Ok(Found::Begins(header.units()));
        }
        split(bytes, None).map(Found::Whole)
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
        let (slot, places) = (|| self.0.table.slot(sheet), self.0.table.places(sheet));
        let look = |bytes: &[u8]| places.map(|place| (place, Found::at(place, bytes))).collect::<Vec<_>>();
        let Ok(Some(found)) = self.0.way.read_slot(slot, look).await else { return 0 };
        let moves = found.into_iter().map(|(place, found)| self.move_record(place, found));
        join_all(moves).await.into_iter().filter(|moved| *moved).count() as u64
    }

    async fn move_record(&self, place: Place, found: Result<Found, RecordError>) -> bool {
        let record = match found {
            Ok(Found::Whole(record)) => Ok(record),
            Ok(Found::Begins(units)) if log::takes(units) => self.record(place, units, None).await,
            // It has its sheets for itself.
            Ok(Found::Begins(_)) => return false,
            Err(error) => Err(Missed::Bad(error)),
        };
        let (header, key, value) = match record {
            Ok(record) => record,
            Err(Missed::Bad(error)) => {
                tracing::error!("a record can't be moved: {error}");
                return false;
            }
            Err(_) => return false,
        };
        let found = self.0.indexes.borrow()[at(header.db)].find(header.hash).copied();
        match found {
            Some(entry) if entry.place() == place && entry.tag().is_none_or(|tag| tag == header.tag()) => {
                let moving = Moving::new(&self.0.moving, header.units());
                let moved = self.append(&header, &key, &value, entry.access(), Some(place), || ()).await;
                drop(moving);
                moved.is_ok()
            }
            _ => false,
        }
    }
}
