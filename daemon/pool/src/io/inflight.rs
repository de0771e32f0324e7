//! What a lane has under way: jobs (one per call of its owner), the parts of a write, and the
//! fabric operations that carry them out.
//!
//! Three tables of fixed size, made once. A fabric operation's tag holds its index and a number
//! that grows with each use of the entry, so that a completion that comes twice or too late meets
//! nobody.

use crate::IoError;
use crate::io::buffer::Buf;
use crate::io::hedging::Asked;
use crate::metadata::replica::REPLICA_ENTRIES;
use crate::metadata::replicas::Took;
use crate::metadata::slots::SlotRun;
use annex_fabric::OpKind;
use annex_shared::ids::{DonorId, ExtentId, RemoteAddr, Rkey};
use std::ops::{Index, IndexMut};
use std::time::Instant;

/// No entry.
pub(crate) const NIL: u32 = u32::MAX;

/// One call of the owner.
#[derive(Debug)]
pub(crate) struct Job {
    pub token: u64,
    pub buf: Buf,
    pub work: Work,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Work {
    Read(ReadWork),
    Write(WriteWork),
}

/// A read walks through its run: each attempt covers what is not verified yet, on one replica.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadWork {
    pub run: SlotRun,
    /// Pages verified so far: the run's first `at` are good.
    pub at: u32,
    /// Failed attempts at page `at`, per replica.
    pub tries: [u8; REPLICA_ENTRIES],
    /// Some replica gave bytes with a wrong checksum for page `at`.
    pub mismatch: bool,
    /// The replica that last gave good bytes.
    pub good: Option<u8>,
    /// Read this replica and no other, once.
    pub only: Option<u8>,
    /// Only these bytes of the one page, which are not verified: where they begin, and how many.
    pub piece: Option<(u32, u32)>,
    /// Attempts under way, the older one first.
    pub attempts: [u32; 2],
}

impl ReadWork {
    pub fn new(run: SlotRun) -> ReadWork {
        let (tries, attempts) = ([0; REPLICA_ENTRIES], [NIL; 2]);
        ReadWork { run, at: 0, tries, mismatch: false, good: None, only: None, piece: None, attempts }
    }

    /// What it has asked, but for what is under way.
    pub fn asked(&self) -> Asked {
        Asked { only: self.only, good: self.good, tries: self.tries, busy: [None; 2] }
    }

    pub fn is_under_way(&self) -> bool {
        self.attempts[0] != NIL
    }

    pub fn add(&mut self, op: u32) {
        let at = usize::from(self.attempts[0] != NIL);
        self.attempts[at] = op;
    }

    pub fn remove(&mut self, op: u32) {
        if self.attempts[0] == op {
            self.attempts = [self.attempts[1], NIL];
        } else if self.attempts[1] == op {
            self.attempts[1] = NIL;
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct WriteWork {
    /// The job's parts, linked.
    pub parts: u32,
    pub parts_left: u32,
    pub error: Option<IoError>,
}

/// One run of a write.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PartState {
    pub job: u32,
    pub next: u32,
    pub extent: ExtentId,
    pub run: SlotRun,
    /// Where its bytes lie in the arena.
    pub local: usize,
    /// Operations not settled yet.
    pub pending: u32,
    /// The replicas it is written to, each in the generation it had then.
    pub to: Took,
    /// Operations done, per replica; a long part has several on each.
    pub done: [u16; REPLICA_ENTRIES],
    /// Only this replica is written, with what others have already: nothing is to be settled.
    pub heals: bool,
    /// How many operations each replica needs.
    pub chunks: u16,
    /// Some operation's outcome is unknown: it may still be on its way to the donor.
    pub unknown: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Read,
    Write,
}

impl Direction {
    pub fn kind(self) -> OpKind {
        match self {
            Direction::Read => OpKind::Read,
            Direction::Write => OpKind::Write,
        }
    }
}

/// One fabric operation, posted or about to be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pending {
    pub direction: Direction,
    /// The job, for a read; for a write the part knows it.
    pub job: u32,
    pub part: u32,
    pub extent: ExtentId,
    pub donor: DonorId,
    pub index: u8,
    pub generation: u16,
    /// How much trouble it had; see the lane's limits.
    pub trouble: u8,
    pub len: u32,
    pub local: usize,
    pub rkey: Rkey,
    pub addr: RemoteAddr,
    /// When it was posted; for a deferred one, when to post it again.
    pub time: Instant,
    /// The next one in its queue.
    pub next: u32,
    /// For a read: the pieces of the arena it reads into, as its buffer's page and pages.
    pub buf: (u32, u32),
    /// For a posted read: its neighbours in its end's list.
    pub older: u32,
    pub newer: u32,
    pub is_posted: bool,
}

/// Entries with a free list, never growing past its capacity.
#[derive(Debug)]
pub(crate) struct Table<T> {
    entries: Vec<Entry<T>>,
    free: u32,
    used: u32,
    capacity: u32,
}

#[derive(Debug)]
struct Entry<T> {
    value: Option<T>,
    serial: u32,
    next_free: u32,
}

impl<T> Table<T> {
    pub fn with_capacity(capacity: u32) -> Self {
        Table { entries: Vec::with_capacity(capacity as usize), free: NIL, used: 0, capacity }
    }

    pub fn used(&self) -> usize {
        self.used as usize
    }

    pub fn room(&self) -> usize {
        (self.capacity - self.used) as usize
    }

    /// The new entry's index; `None` if the table is full.
    pub fn insert(&mut self, value: T) -> Option<u32> {
        let at = if self.free != NIL {
            let at = self.free;
            let entry = &mut self.entries[at as usize];
            self.free = entry.next_free;
            entry.value = Some(value);
            entry.serial = entry.serial.wrapping_add(1);
            at
        } else if self.room() > 0 {
            self.entries.push(Entry { value: Some(value), serial: 0, next_free: NIL });
            self.entries.len() as u32 - 1
        } else {
            return None;
        };
        self.used += 1;
        Some(at)
    }

    pub fn remove(&mut self, at: u32) -> Option<T> {
        let entry = self.entries.get_mut(at as usize)?;
        let value = entry.value.take()?;
        entry.next_free = self.free;
        self.free = at;
        self.used -= 1;
        Some(value)
    }

    pub fn get(&self, at: u32) -> Option<&T> {
        self.entries.get(at as usize)?.value.as_ref()
    }

    /// What a completion will be recognised by.
    pub fn tag(&self, at: u32) -> u64 {
        u64::from(self.entries[at as usize].serial) << 32 | u64::from(at)
    }

    /// The entry a tag stands for, if it is still the same one.
    pub fn by_tag(&self, tag: u64) -> Option<u32> {
        let entry = self.entries.get(tag as u32 as usize)?;
        (entry.value.is_some() && entry.serial == (tag >> 32) as u32).then_some(tag as u32)
    }

    pub fn drain(&mut self) -> impl Iterator<Item = T> {
        self.used = 0;
        self.free = NIL;
        self.entries.drain(..).filter_map(|e| e.value)
    }
}

impl<T> Index<u32> for Table<T> {
    type Output = T;

    /// Indices come from `insert` only and entries are removed in one place each, so a miss is a
    /// bug of the lane's.
    fn index(&self, at: u32) -> &T {
        self.entries[at as usize].value.as_ref().expect("an entry that is referred to is in use")
    }
}

impl<T> IndexMut<u32> for Table<T> {
    fn index_mut(&mut self, at: u32) -> &mut T {
        self.entries[at as usize].value.as_mut().expect("an entry that is referred to is in use")
    }
}

/// Posted reads, oldest first, linked through their entries both ways.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Posted {
    oldest: u32,
    newest: u32,
}

impl Default for Posted {
    fn default() -> Self {
        Posted { oldest: NIL, newest: NIL }
    }
}

impl Posted {
    pub fn oldest(self) -> Option<u32> {
        (self.oldest != NIL).then_some(self.oldest)
    }

    pub fn push(&mut self, ops: &mut Table<Pending>, op: u32) {
        (ops[op].older, ops[op].newer, ops[op].is_posted) = (self.newest, NIL, true);
        if self.newest == NIL {
            self.oldest = op;
        } else {
            ops[self.newest].newer = op;
        }
        self.newest = op;
    }

    pub fn remove(&mut self, ops: &mut Table<Pending>, op: u32) {
        if !std::mem::take(&mut ops[op].is_posted) {
            return;
        }
        let (older, newer) = (ops[op].older, ops[op].newer);
        match older {
            NIL => self.oldest = newer,
            at => ops[at].newer = newer,
        }
        match newer {
            NIL => self.newest = older,
            at => ops[at].older = older,
        }
    }
}

/// Operations in order, linked through their entries.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Queue {
    head: u32,
    tail: u32,
}

impl Default for Queue {
    fn default() -> Self {
        Queue { head: NIL, tail: NIL }
    }
}

impl Queue {
    pub fn is_empty(self) -> bool {
        self.head == NIL
    }

    pub fn front(self) -> Option<u32> {
        (self.head != NIL).then_some(self.head)
    }

    pub fn push(&mut self, ops: &mut Table<Pending>, op: u32) {
        ops[op].next = NIL;
        if self.tail == NIL {
            self.head = op;
        } else {
            ops[self.tail].next = op;
        }
        self.tail = op;
    }

    pub fn pop(&mut self, ops: &mut Table<Pending>) -> Option<u32> {
        let op = self.front()?;
        self.head = ops[op].next;
        if self.head == NIL {
            self.tail = NIL;
        }
        Some(op)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_late_completion_meets_nobody() {
        let mut pool = Table::with_capacity(2);
        let a = pool.insert("a").unwrap();
        let tag = pool.tag(a);
        assert_eq!(pool.by_tag(tag), Some(a));
        pool.remove(a);
        assert_eq!(pool.by_tag(tag), None);
        assert_eq!(pool.insert("b"), Some(a));
        assert_eq!(pool.by_tag(tag), None);
        assert!(pool.insert("c").is_some());
        assert_eq!(pool.insert("d"), None);
    }
}
