//! The log: records that are on their way into the pool.
//!
//! A record is copied into the *tail*, the log pages at the end of the space that are not full or
//! not written yet. From there whole log pages are written to fresh slots, as many as there are in
//! one *flight*; the last log page, if it is not full, is written again with the records that come
//! next, to another slot. A record is committed when the flight is over that holds its last log
//! page. Flights are committed in the order in which they started, so a log page is never put back
//! to an older slot, and two records of one key commit in the order in which they were appended.
//!
//! A flight that no replica took, since all donors of its slots are away, is written again to other
//! slots, before anything that came after it.

use super::completion::Completion;
use super::db::Db;
use super::index::Entry;
use super::log_pages::{BATCH, LogPageIdx, RecordAddr};
use super::pool_io::PoolIo;
use super::record::UNIT;
use super::slot_reserve::SlotReserve;
use annex_pool::{Buf, IoError, Part, SlotRun};
use annex_shared::ids::SlotIdx;
use annex_shared::page::PAGE_SIZE;
use std::collections::VecDeque;

/// Flights under way at most.
const MAX_FLIGHTS: usize = 8;
/// How often a write is tried that no replica takes.
pub const TRIES: u8 = 8;

/// Tails whose memory is kept for the next ones.
const SPARE: usize = 64;

/// What a record changes when it is committed.
pub struct Change {
    pub db: Db,
    pub entry: Entry,
    /// A record that is moved: it counts only if the key's record is still here.
    pub from: Option<RecordAddr>,
    pub completion: Completion,
}

struct Tail {
    log_page: LogPageIdx,
    bytes: Box<[u8; PAGE_SIZE]>,
    dirty: bool,
}

/// A slot that a log page is being written to.
#[derive(Clone, Copy)]
pub struct Landing {
    pub log_page: LogPageIdx,
    pub slot: SlotIdx,
}

/// A write under way.
pub struct Flight {
    pub landings: Vec<Landing>,
    /// How many of the log's changes it brings, which are the next ones when it is committed.
    pub changes: usize,
    state: State,
    tries: u8,
}

enum State {
    /// The lane knows it by this token.
    Posted(u64),
    /// No replica took it, and its slots were given back. It has been given so many others so far.
    Again { buf: Buf, runs: Vec<SlotRun>, got: usize },
    /// It waits for those before it. If it failed, its slots were given back.
    Completed(Result<(), IoError>),
}

/// See the module's header.
#[derive(Default)]
pub struct Log {
    tails: VecDeque<Tail>,
    spare: Vec<Box<[u8; PAGE_SIZE]>>,
    /// The number of the first tail; log pages are numbered as they come.
    first: u64,
    /// In the order of the log, each with the number of its record's last log page: first those of
    /// the flights, then those that wait.
    changes: VecDeque<(u64, Change)>,
    /// How many of these the flights bring.
    flying: usize,
    flights: VecDeque<Flight>,
}

impl Log {
    /// Log pages that wait to be written.
    pub fn dirty(&self) -> usize {
        // Only one can be written and still be here: the last, while it is the only one.
        match self.tails.front() {
            Some(first) if !first.dirty => self.tails.len() - 1,
            _ => self.tails.len(),
        }
    }

    /// Writes under way.
    pub fn flights(&self) -> usize {
        self.flights.len()
    }

    /// Something waits to be written, or is on its way.
    pub fn is_busy(&self) -> bool {
        !self.flights.is_empty() || self.dirty() > 0
    }

    /// Puts a record's pieces at its address, which is the end of the space.
    pub fn append(&mut self, addr: RecordAddr, pieces: [&[u8]; 3], change: Change) {
        let mut at = usize::from(addr.unit) * UNIT;
        self.tail(addr.log_page);
        for mut piece in pieces {
            while !piece.is_empty() {
                if at == PAGE_SIZE {
                    let last = self.tails.back().map_or(addr.log_page, |t| t.log_page);
                    self.tail(LogPageIdx(last.0 + 1));
                    at = 0;
                }
                let (now, later) = piece.split_at(piece.len().min(PAGE_SIZE - at));
                if let Some(tail) = self.tails.back_mut() {
                    tail.bytes[at..at + now.len()].copy_from_slice(now);
                    tail.dirty = true;
                }
                at += now.len();
                piece = later;
            }
        }
        let last = self.first + self.tails.len() as u64 - 1;
        self.changes.push_back((last, change));
    }

    /// Makes a log page the last of the tail.
    fn tail(&mut self, log_page: LogPageIdx) {
        if self.tails.back().is_none_or(|t| t.log_page != log_page) {
            let mut bytes = self.spare.pop().unwrap_or_else(|| Box::new([0; PAGE_SIZE]));
            bytes.fill(0);
            self.tails.push_back(Tail { log_page, bytes, dirty: false });
            self.trim();
        }
    }

    /// The bytes of a log page that is in the tail still.
    pub fn bytes(&self, log_page: LogPageIdx) -> Option<&[u8; PAGE_SIZE]> {
        self.tails.iter().rev().find(|t| t.log_page == log_page).map(|t| &*t.bytes)
    }

    /// Starts a flight with what waits. `None`: nothing can be started now.
    pub fn launch(&mut self, pool_io: &PoolIo, slot_reserve: &SlotReserve) -> Option<&Flight> {
        if !self.launch_again(pool_io, slot_reserve) {
            return None;
        }
        let dirty = self.tails.iter().position(|t| t.dirty);
        let from = dirty.filter(|_| self.flights.len() < MAX_FLIGHTS)?;
        let wanted = (self.tails.len() - from).min(BATCH);
        let mut buf = pool_io.try_buffer(wanted)?;
        let mut runs: Vec<SlotRun> = Vec::new();
        let got = slot_reserve.take(wanted as u32, &mut runs) as usize;
        if got == 0 {
            pool_io.free(buf);
            return None;
        }
        let log_pages = self.tails.range(from..from + got);
        pool_io.fill(&mut buf, |bytes| {
            for (tail, to) in log_pages.clone().zip(bytes.chunks_exact_mut(PAGE_SIZE)) {
                to.copy_from_slice(&*tail.bytes);
            }
        });
        let slots = runs.iter().flat_map(|run| run.slots());
        let landings = log_pages.zip(slots).map(|(tail, slot)| Landing { log_page: tail.log_page, slot }).collect();
        let token = match pool_io.post_flight(&Part::in_order(&runs), buf) {
            Ok(token) => token,
            Err(buf) => {
                pool_io.free(buf);
                slot_reserve.put_back(runs);
                return None;
            }
        };
        self.tails.range_mut(from..from + got).for_each(|t| t.dirty = false);
        let last = self.first + (from + got) as u64;
        let changes = self.changes.range(self.flying..).take_while(|(n, _)| *n < last).count();
        self.flying += changes;
        self.flights.push_back(Flight { landings, changes, state: State::Posted(token), tries: 1 });
        self.trim();
        self.flights.back()
    }

    /// Starts those again that no replica took. False: one of them has to wait for slots.
    fn launch_again(&mut self, pool_io: &PoolIo, slot_reserve: &SlotReserve) -> bool {
        for flight in &mut self.flights {
            let State::Again { runs, got, .. } = &mut flight.state else { continue };
            *got += slot_reserve.take((flight.landings.len() - *got) as u32, runs) as usize;
            if *got < flight.landings.len() {
                return false;
            }
            let State::Again { buf, runs, got } =
                std::mem::replace(&mut flight.state, State::Completed(Err(IoError::Lost)))
            else {
                continue;
            };
            match pool_io.post_flight(&Part::in_order(&runs), buf) {
                Ok(token) => flight.state = State::Posted(token),
                Err(buf) => {
                    flight.state = State::Again { buf, runs, got };
                    return false;
                }
            }
            let slots = runs.iter().flat_map(|run| run.slots());
            flight.landings.iter_mut().zip(slots).for_each(|(landing, slot)| landing.slot = slot);
            flight.tries += 1;
        }
        true
    }

    /// Something is to be written again.
    pub fn waits(&self) -> bool {
        self.flights.iter().any(|flight| matches!(flight.state, State::Again { .. }))
    }

    /// A flight is over. What no replica took is to be written again.
    pub fn landed(
        &mut self,
        token: u64,
        outcome: Result<(), (IoError, Buf)>,
        pool_io: &PoolIo,
        slot_reserve: &SlotReserve,
    ) {
        let is_it = |flight: &&mut Flight| matches!(flight.state, State::Posted(its) if its == token);
        let Some(flight) = self.flights.iter_mut().find(is_it) else { return };
        flight.state = match outcome {
            Ok(()) => State::Completed(Ok(())),
            Err((error, buf)) => {
                flight.landings.iter().for_each(|landing| slot_reserve.release(landing.slot));
                if error == IoError::Lost && flight.tries < TRIES {
                    State::Again { buf, runs: Vec::new(), got: 0 }
                } else {
                    pool_io.free(buf);
                    State::Completed(Err(error))
                }
            }
        };
    }

    /// The next flight to commit, if it is over.
    pub fn next(&mut self) -> Option<(Flight, Result<(), IoError>)> {
        let State::Completed(result) = self.flights.front()?.state else { return None };
        let flight = self.flights.pop_front()?;
        Some((flight, result))
    }

    /// The next change of the flight that is being committed.
    pub fn next_change(&mut self) -> Option<Change> {
        self.flying -= 1;
        self.changes.pop_front().map(|(_, change)| change)
    }

    /// Nothing that waits can be written.
    pub fn give_up(&mut self, pool_io: &PoolIo, slot_reserve: &SlotReserve) -> Vec<Change> {
        for flight in &mut self.flights {
            if let State::Again { .. } = flight.state
                && let State::Again { buf, runs, .. } =
                    std::mem::replace(&mut flight.state, State::Completed(Err(IoError::Lost)))
            {
                pool_io.free(buf);
                slot_reserve.put_back(runs);
            }
        }
        self.tails.iter_mut().for_each(|t| t.dirty = false);
        self.trim();
        self.changes.drain(self.flying..).map(|(_, change)| change).collect()
    }

    /// Written log pages go, except the last one, which goes on.
    fn trim(&mut self) {
        while self.tails.len() > 1 && self.tails.front().is_some_and(|t| !t.dirty) {
            let written = self.tails.pop_front().map(|tail| tail.bytes);
            self.spare.extend(written.filter(|_| self.spare.len() < SPARE));
            self.first += 1;
        }
    }
}
