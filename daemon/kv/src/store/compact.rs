//! Compaction: records that are left in log pages of which most is unused are appended anew, and
//! the log pages' slots go back to the pool.
//!
//! While the pool has room to give, half of what is held may be unused: the emptier the log pages
//! are, the less there is to move for each that comes back. When room runs short it is a quarter.
//! It moves few records at a time, together, so that a request waits behind no more than one such
//! step, and more of them the faster writers take log pages. What is moved needs room itself before
//! any comes back: so writers are *held up* when little is left, until there is more again or
//! nothing to be had, and it moves nothing while the log waits for room.

use super::completion::{Completion, WriteListener};
use super::engine::Engine;
use super::error::StoreError;
use super::fetch::{Missed, Reader, checked};
use super::flush;
use super::index::{Entry, at};
use super::log_pages::{LogPageIdx, RecordAddr, UNITS, fits_log};
use super::record::{HEADER, Header};
use super::space::FILLS;
use super::write::Writer;
use annex_host::repeated;
use annex_shared::page::PAGE_SIZE;
use futures::future::{join_all, poll_fn};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::Duration;

/// How often it looks whether there is something to do.
pub const EVERY: Duration = Duration::from_millis(100);
/// Below so many log pages nothing is compacted.
const LEAST: u64 = 256;
/// How long one may take: its donors may go while it is read.
const PATIENCE: Duration = Duration::from_millis(500);
/// Log pages emptied in one step at most.
const MOST: u64 = 128;
/// Room is short when no more than one part in so many of what could be held is left.
const SHORT: u64 = 8;
/// The same for when writers wait for it.
const SCARCE: u64 = 16;
const LAX: Pace = Pace { unused: 2, least: 4 };
const EAGER: Pace = Pace { unused: 4, least: 16 };

/// How compaction goes about it.
struct Pace {
    /// What is unused of the log pages held, at most: one part in so many.
    unused: u64,
    /// Log pages emptied in one step.
    least: u64,
}

/// Whether no more than one part in so many of what could be held is left.
fn is_left(room: u64, held: u64, part: u64) -> bool {
    room * part < held + room
}

/// What there is to go by, in log pages.
struct Look {
    held: u64,
    /// As many would do for what is in them.
    used: u64,
    /// New since the look before.
    grown: u64,
    /// To be had yet of the pool.
    room: u64,
    /// Before more is held than a limit is to cost; `None`: there is no limit.
    below_limit: Option<u64>,
}

impl Look {
    fn is_scarce(&self) -> bool {
        is_left(self.room, self.held, SCARCE)
    }

    /// How many log pages are to be emptied in one step.
    fn step(&self) -> usize {
        let is_short = is_left(self.room.min(self.below_limit.unwrap_or(u64::MAX)), self.held, SHORT);
        let pace = if is_short { EAGER } else { LAX };
        if self.held < LEAST || self.held.saturating_sub(self.used) * pace.unused <= self.held {
            return 0;
        }
        // Of each that is emptied at least that part comes back, and the rest needs room before.
        let wanted = if self.is_scarce() { MOST } else { (self.grown * pace.unused).clamp(pace.least, MOST) };
        wanted.min(self.room.div_ceil(2)) as usize
    }
}

/// The moves of one step, until all are decided.
struct Moves {
    /// Units that are there twice, for as long as the moves are under way: the store's count, and
    /// how many of these are ours.
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

    async fn completed(&self) -> u64 {
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

impl WriteListener for Moves {
    fn completed(&self, units: u64, outcome: Result<(), StoreError>) {
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

/// See the module's header.
pub struct Compaction<'a>(pub &'a Rc<Engine>);

impl Compaction<'_> {
    /// One step. False: there is nothing to do.
    pub async fn compact(&self) -> bool {
        let log_pages = self.to_empty();
        if log_pages.is_empty() {
            return false;
        }
        let moves = Rc::new(Moves {
            moving: self.0.records().moving.clone(),
            units: Cell::new(0),
            under_way: Cell::new(0),
            moved: Cell::new(0),
            waker: RefCell::new(None),
        });
        join_all(log_pages.into_iter().map(|log_page| tokio::time::timeout(PATIENCE, self.empty(log_page, &moves))))
            .await;
        flush::forward(self.0);
        let moved = moves.completed().await;
        self.0.keys.count(|s| s.moved += moved);
        self.0.records().slot_reserve.ask_again();
        if moved == 0 {
            self.hold_up(false);
        }
        moved > 0
    }

    /// The log pages of the next step, which begins at once. Writers are held up until then if they
    /// must not take more before.
    fn to_empty(&self) -> Vec<LogPageIdx> {
        let look = self.look();
        let most = if self.0.records().slot_reserve.is_out() || self.0.loading.get() { 0 } else { look.step() };
        let log_pages = if most > 0 { self.sparse(most) } else { Vec::new() };
        self.hold_up(!log_pages.is_empty() && look.is_scarce());
        log_pages
    }

    fn hold_up(&self, holds: bool) {
        if self.0.held_up.replace(holds) && !holds {
            self.0.drained.notify_waiters();
        }
    }

    fn look(&self) -> Look {
        let (held, used) = {
            let space = self.0.records().space.borrow();
            (space.log_pages(), space.units().div_ceil(u64::from(UNITS)))
        };
        let grown = held.saturating_sub(self.0.looked.replace(held));
        let waiting = self.0.log.borrow().dirty() as u64;
        let room = (self.0.records().slot_reserve.slots() + self.0.pool.room_for_kv()).saturating_sub(waiting);
        // As much is held for a limit's worth of records as an eager compaction leaves of them.
        let limit = Some(self.0.keys.settings().limit / PAGE_SIZE as u64).filter(|limit| *limit > 0);
        let below_limit = limit.map(|limit| (limit + limit / (EAGER.unused - 1)).saturating_sub(held));
        Look { held, used, grown, room, below_limit }
    }

    /// Some log pages that are to be emptied, of the emptiest.
    fn sparse(&self, most: usize) -> Vec<LogPageIdx> {
        let space = self.0.records().space.borrow();
        let (first, mut log_pages) = (self.0.keys.random() as usize, Vec::new());
        // Of those that are full but for some units nothing is to be gained.
        for fill in 1..FILLS {
            space.filled(fill, first, most, &mut log_pages);
            // A record that goes on in other log pages begins in none of them. What is out of reach
            // can't be read.
            log_pages
                .retain(|log_page| self.0.records().table.starts(*log_page) != 0 && self.0.is_within_reach(*log_page));
            if log_pages.len() == most {
                break;
            }
        }
        log_pages
    }

    /// Appends the records anew that begin in a log page.
    async fn empty(&self, log_page: LogPageIdx, moves: &Rc<Moves>) {
        while self.0.is_full() {
            self.0.drained.notified().await;
        }
        let (slot, addrs) = (|| self.0.records().table.slot(log_page), self.0.records().table.addrs(log_page));
        let look = |bytes: &[u8]| addrs.filter_map(|addr| self.move_within(addr, bytes, moves)).collect::<Vec<_>>();
        let Ok(Some(going_on)) = self.0.pool_io.read_slot(slot, look).await else { return };
        for (addr, units) in going_on {
            match Reader(self.0).record(addr, units, None).await {
                Ok((header, key, value)) => self.move_record(addr, &header, &key, &value, moves),
                Err(Missed::Bad(error)) => {
                    repeated!(ERROR, "a record can't be moved" of "", "a record can't be moved: {error}")
                }
                Err(_) => {}
            }
        }
    }

    /// Moves a record that begins here. If it goes on in the log pages that follow, tells how many
    /// units it has.
    fn move_within(&self, addr: RecordAddr, log_page: &[u8], moves: &Rc<Moves>) -> Option<(RecordAddr, u32)> {
        let bytes = addr.within(log_page);
        let header = Header::decode(bytes);
        if let Ok(header) = &header
            && HEADER + header.body() > bytes.len()
        {
            // One that is too large for the log has its log pages for itself.
            return Some((addr, header.units())).filter(|(_, units)| fits_log(*units));
        }
        match checked(bytes, None) {
            Ok((header, body)) => {
                let (key, value) = body.split_at(header.key_len as usize);
                self.move_record(addr, &header, key, value, moves);
            }
            Err(error) => repeated!(ERROR, "a record can't be moved" of "", "a record can't be moved: {error}"),
        }
        None
    }

    fn move_record(&self, addr: RecordAddr, header: &Header, key: &[u8], value: &[u8], moves: &Rc<Moves>) {
        let found = self.0.keys.indexes.borrow()[at(header.db)].find(header.hash).copied();
        let is_it = |entry: &Entry| entry.addr() == addr && entry.tag().is_none_or(|tag| tag == header.tag());
        let Some(entry) = found.filter(is_it) else { return };
        let listener: Rc<dyn WriteListener> = moves.clone();
        let completion = Completion::Listener(Rc::downgrade(&listener), u64::from(header.units()));
        if Writer(self.0).append(header, key, value, entry.access(), Some(addr), completion).is_ok() {
            moves.begin(header.units());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MUCH: u64 = 100_000;
    const LITTLE: u64 = 140;

    fn look(held: u64, used: u64, room: u64) -> Look {
        Look { held, used, grown: 0, room, below_limit: None }
    }

    #[test]
    fn half_may_be_unused_while_there_is_room_and_a_quarter_when_it_is_short() {
        let step = |held, used, room| look(held, used, room).step();
        assert_eq!((step(1000, 501, MUCH), step(1000, 499, MUCH)), (0, 4));
        assert_eq!((step(1000, 751, LITTLE), step(1000, 749, LITTLE)), (0, 16));
        // An eighth of what could be held.
        assert_eq!((step(700, 500, 100), step(701, 500, 100)), (0, 16));
        assert_eq!(step(LEAST - 1, 0, 1000), 0);
    }

    #[test]
    fn above_a_limit_there_is_as_much_to_do_and_it_takes_the_room_of_the_pool() {
        let step = |below_limit| Look { below_limit, ..look(1000, 749, MUCH) }.step();
        assert_eq!([None, Some(200), Some(100), Some(0)].map(step), [0, 0, 16, 16]);
        assert!(!Look { below_limit: Some(0), ..look(1000, 749, MUCH) }.is_scarce());
    }

    #[test]
    fn more_is_done_the_faster_writers_are_and_never_more_than_there_is_room_for() {
        let step = |used, room, grown| Look { grown, ..look(1000, used, room) }.step();
        assert_eq!((step(499, MUCH, 15), step(749, LITTLE, 15)), (30, 60));
        assert_eq!(step(499, MUCH, 1_000_000), 128);
        assert_eq!((step(749, 60, 0), step(749, 1, 0), step(749, 0, 0)), (30, 1, 0));
    }
}
