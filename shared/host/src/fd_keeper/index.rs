//! Which descriptor is what: a table in a memfd, which annexd writes and whoever comes after it
//! reads.
//!
//! # Layout, version 1 (little-endian, offsets in bytes)
//! ```text
//! 0     magic "annexidx"              8
//! 8     version = 1                   u32
//! 12    complete: 1 once a successor finds all it needs here   u32
//! 16    generation: 1 more than that of the annexd it was taken over from   u64
//! 4096  65536 entries, 16 bytes each:
//!         +0 kind, 0 = unused          u32
//!         +4 descriptor number         u32
//!         +8 which of its kind         u64
//! ```
//! An entry's kind is written last, and cleared first.

use super::Kept;
use crate::mapped::{MapError, Mapped};
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};

const MAGIC: u64 = u64::from_le_bytes(*b"annexidx");
const VERSION: u32 = 1;
const AT: usize = 4096;
const ENTRY: usize = 16;

pub const ENTRIES: usize = 1 << 16;

pub struct Index {
    map: Mapped,
    free: Vec<usize>,
    used: usize,
}

fn failed(error: MapError) -> io::Error {
    io::Error::other(error)
}

impl Index {
    pub fn create() -> io::Result<Index> {
        let map = Mapped::create("annex-index", AT + ENTRIES * ENTRY).map_err(failed)?;
        map.u32(8).store(VERSION, Relaxed);
        map.u64(0).store(MAGIC, Release);
        Ok(Index { map, free: Vec::new(), used: 0 })
    }

    /// Another's index, to read. `None` if it is not one of this version.
    pub fn open(fd: OwnedFd) -> io::Result<Option<Index>> {
        let map = Mapped::open("annex-index", fd).map_err(failed)?;
        let known = map.size() == AT + ENTRIES * ENTRY
            && map.u64(0).load(Acquire) == MAGIC
            && map.u32(8).load(Relaxed) == VERSION;
        Ok(known.then_some(Index { map, free: Vec::new(), used: ENTRIES }))
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.map.fd()
    }

    /// Enters a descriptor, in place of what is at `place` if there is one. `None`: the index is
    /// full.
    pub fn add(&mut self, kept: Kept, fd: RawFd, place: Option<usize>) -> Option<usize> {
        let place = place.or_else(|| self.free.pop()).or_else(|| {
            let next = self.used;
            (next < ENTRIES).then(|| {
                self.used += 1;
                next
            })
        })?;
        let (kind, which) = kept.encode();
        let at = AT + place * ENTRY;
        self.map.u32(at).store(0, SeqCst);
        self.map.u32(at + 4).store(fd as u32, Relaxed);
        self.map.u64(at + 8).store(which, Relaxed);
        self.map.u32(at).store(kind, SeqCst);
        Some(place)
    }

    pub fn remove(&mut self, place: usize) {
        self.map.u32(AT + place * ENTRY).store(0, SeqCst);
        self.free.push(place);
    }

    pub fn complete(&self, generation: u64) {
        self.map.u64(16).store(generation, Relaxed);
        self.map.u32(12).store(1, SeqCst);
    }

    pub fn is_complete(&self) -> bool {
        self.map.u32(12).load(Acquire) == 1
    }

    pub fn generation(&self) -> u64 {
        self.map.u64(16).load(Relaxed)
    }

    pub fn entries(&self) -> Vec<(Kept, RawFd)> {
        // What was never touched is never looked at: entries are used from the front.
        let places = (0..ENTRIES).map(|place| AT + place * ENTRY);
        let entry = |at: usize| {
            let kept = Kept::decode(self.map.u32(at).load(Acquire), self.map.u64(at + 8).load(Relaxed))?;
            Some((kept, self.map.u32(at + 4).load(Relaxed) as RawFd))
        };
        let touched = self.map.resident() as usize;
        places.take_while(|at| *at < touched.max(AT) + AT).filter_map(entry).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_sees_what_is_kept_and_nothing_that_was_dropped() {
        let mut index = Index::create().unwrap();
        let first = index.add(Kept::Ledger, 10, None).unwrap();
        index.add(Kept::Table(5), 11, None).unwrap();
        index.remove(first);
        index.add(Kept::Process(7), 12, None).unwrap();
        let reader = Index::open(nix::unistd::dup(index.fd()).unwrap()).unwrap().unwrap();
        assert_eq!(reader.entries(), [(Kept::Process(7), 12), (Kept::Table(5), 11)]);
        assert!(!reader.is_complete());
        index.complete(4);
        assert_eq!((reader.is_complete(), reader.generation()), (true, 4));
    }

    #[test]
    fn many_entries_are_all_found() {
        let mut index = Index::create().unwrap();
        for n in 0..5000 {
            index.add(Kept::Table(n), n as i32, None).unwrap();
        }
        assert_eq!(index.entries().len(), 5000);
    }
}
