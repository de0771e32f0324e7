//! The log page table: where each log page of records lies in the pool, and where in it live
//! records begin. A memfd, so that it outlives annexd.
//!
//! A *log page* is 4 KiB of records under a number that stays while its bytes move from slot to
//! slot. [`SEGMENT`] log pages are a *segment*.
//!
//! # Layout, version 1 (little-endian)
//! ```text
//! 0          u64 magic "annexkv\0"   u32 version   u32 0
//! 16         u64 × 2   key hash secret
//! 32         u64       which store database each of the 16 is that clients know: 4 bits each
//! 64         u64 × 16  of each store database: records with a lower version are gone (FLUSHDB)
//! 4096       u32 × 2^30    the slot + 1 of each log page; 0: none
//! then       u64 × 2^30    live records: bit n is set if one begins at unit n of the log page
//! ```
//! Sparse: 12 bytes per log page in use, given back a segment at a time.
//!
//! # Order of updates
//! A record counts if its bit is set, and of several records of one key the one with the highest
//! version. When its bytes are on all replicas the log page's slot is set, then the record's bit,
//! then the bit of the record that it replaces is cleared. A record is removed by clearing its bit.
//! Killed between any two of these, the picture is true: at worst an unacknowledged record counts,
//! or two of one key do, of which the higher version holds. Slots that were being written are in no
//! log page; the pool finds that at the take-over, and lets them rest until nothing can arrive in
//! them any more.

use super::db::{DATABASES, Db};
use super::hash::HashKey;
use super::record::UNIT;
use annex_host::mapped::{MapError, Mapped};
use annex_shared::ids::SlotIdx;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};

/// Units per log page.
pub const UNITS: u32 = 64;
/// Log pages that one write of the log has at most.
pub const BATCH: usize = 256;
/// Log pages per segment.
pub const SEGMENT: u32 = 1024;
pub const SEGMENTS: u32 = 1 << 20;

const MAGIC: u64 = u64::from_le_bytes(*b"annexkv\0");
const VERSION: u32 = 1;
const SECRET: usize = 16;
const NAMES: usize = 32;
const MARKS: usize = 64;
const SLOTS: usize = 4096;
const LOG_PAGES: usize = (SEGMENT as usize) * (SEGMENTS as usize);
const STARTS: usize = SLOTS + LOG_PAGES * 4;
const LEN: usize = STARTS + LOG_PAGES * 8;

/// A log page's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LogPageIdx(pub u32);

impl LogPageIdx {
    pub fn segment(self) -> u32 {
        self.0 / SEGMENT
    }
}

/// Where a record begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RecordAddr {
    pub log_page: LogPageIdx,
    pub unit: u8,
}

impl RecordAddr {
    /// The bytes of its log page from here on.
    pub fn within(self, log_page: &[u8]) -> &[u8] {
        &log_page[usize::from(self.unit) * UNIT..]
    }
}

/// Units that a record of so many bytes has to itself: one that is too large for the log has whole
/// log pages.
pub fn units_of(bytes: u32) -> u32 {
    let units = bytes.div_ceil(UNIT as u32);
    if fits_log(units) { units } else { units.next_multiple_of(UNITS) }
}

/// Whether a record of so many units goes through the log. Larger ones are written by whoever has
/// them.
pub fn fits_log(units: u32) -> bool {
    units <= BATCH as u32 * UNITS
}

/// The kept table can't be used.
#[derive(Debug, thiserror::Error)]
pub enum LogPagesError {
    #[error(transparent)]
    Map(#[from] MapError),
    #[error(
        "the kept key-value table has layout {0}, and this annexd knows {VERSION}: start the version it belongs to"
    )]
    Version(u32),
    #[error("what was kept as the key-value table is none")]
    Foreign,
}

/// See the module's header.
pub struct LogPageTable {
    map: Mapped,
}

impl LogPageTable {
    pub fn create() -> Result<LogPageTable, LogPagesError> {
        let map = Mapped::create("annex-kv", LEN)?;
        let secret = HashKey::random();
        map.u64(SECRET).store(secret.0[0], Relaxed);
        map.u64(SECRET + 8).store(secret.0[1], Relaxed);
        map.u64(NAMES).store((0..16).map(|n| n << (4 * n)).sum(), Relaxed);
        map.u32(8).store(VERSION, Relaxed);
        map.u64(0).store(MAGIC, Release);
        Ok(LogPageTable { map })
    }

    pub fn open(fd: OwnedFd) -> Result<LogPageTable, LogPagesError> {
        let map = Mapped::open("annex-kv", fd)?;
        if map.size() < STARTS || map.u64(0).load(Acquire) != MAGIC {
            return Err(LogPagesError::Foreign);
        }
        match map.u32(8).load(Relaxed) {
            VERSION if map.size() == LEN => Ok(LogPageTable { map }),
            other => Err(LogPagesError::Version(other)),
        }
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.map.fd()
    }

    /// Bytes of memory in use.
    pub fn resident(&self) -> u64 {
        self.map.resident()
    }

    pub fn secret(&self) -> HashKey {
        HashKey([self.map.u64(SECRET).load(Relaxed), self.map.u64(SECRET + 8).load(Relaxed)])
    }

    // ---- databases ----

    /// The store's database that clients know by this number.
    pub fn database(&self, name: Db) -> Db {
        Db((self.map.u64(NAMES).load(Relaxed) >> (4 * name.0) & 15) as u8)
    }

    pub fn swap(&self, a: Db, b: Db) {
        let names = self.map.u64(NAMES).load(Relaxed);
        let differ = ((names >> (4 * a.0)) ^ (names >> (4 * b.0))) & 15;
        self.map.u64(NAMES).store(names ^ (differ << (4 * a.0)) ^ (differ << (4 * b.0)), SeqCst);
    }

    /// Records of a store database with a version below this are gone.
    pub fn mark(&self, db: Db) -> u64 {
        if db.0 < DATABASES { self.map.u64(MARKS + usize::from(db.0) * 8).load(Acquire) } else { u64::MAX }
    }

    pub fn set_mark(&self, db: Db, version: u64) {
        self.map.u64(MARKS + usize::from(db.0) * 8).store(version, SeqCst);
    }

    // ---- log pages ----

    #[inline]
    pub fn slot(&self, log_page: LogPageIdx) -> Option<SlotIdx> {
        self.map.u32(SLOTS + log_page.0 as usize * 4).load(Acquire).checked_sub(1).map(SlotIdx)
    }

    /// Puts a log page into a slot or into none, and tells where it was.
    pub fn set_slot(&self, log_page: LogPageIdx, slot: Option<SlotIdx>) -> Option<SlotIdx> {
        let word = slot.map_or(0, |s| s.0 + 1);
        self.map.u32(SLOTS + log_page.0 as usize * 4).swap(word, SeqCst).checked_sub(1).map(SlotIdx)
    }

    /// The units at which live records begin.
    pub fn starts(&self, log_page: LogPageIdx) -> u64 {
        self.map.u64(STARTS + log_page.0 as usize * 8).load(Acquire)
    }

    /// Where in a log page live records begin, as of now.
    pub fn addrs(&self, log_page: LogPageIdx) -> impl Iterator<Item = RecordAddr> + use<> {
        let starts = self.starts(log_page);
        (0..UNITS as u8).filter(move |unit| starts >> unit & 1 == 1).map(move |unit| RecordAddr { log_page, unit })
    }

    pub fn set_start(&self, addr: RecordAddr) {
        self.map.u64(STARTS + addr.log_page.0 as usize * 8).fetch_or(1 << addr.unit, SeqCst);
    }

    pub fn clear_start(&self, addr: RecordAddr) {
        self.map.u64(STARTS + addr.log_page.0 as usize * 8).fetch_and(!(1 << addr.unit), SeqCst);
    }

    /// Gives back the table's memory for a segment without a slot.
    pub fn abandon(&self, segment: u32) {
        let (first, log_pages) = (segment as usize * SEGMENT as usize, SEGMENT as usize);
        for (at, len) in [(SLOTS + first * 4, log_pages * 4), (STARTS + first * 8, log_pages * 8)] {
            if let Err(error) = self.map.punch(at, len) {
                tracing::warn!("failed to give back the key-value table's memory of segment {segment}: {error}");
            }
        }
    }

    /// Segments that may have a log page in use: those whose part of the table takes memory.
    pub fn segments(&self) -> Vec<u32> {
        let slots = self.map.touched(SLOTS, LOG_PAGES * 4);
        slots.into_iter().map(|at| ((at - SLOTS) / (SEGMENT as usize * 4)) as u32).collect()
    }

    /// All log pages that lie in a slot.
    pub fn log_pages(&self) -> impl Iterator<Item = (LogPageIdx, SlotIdx)> {
        let log_pages = self.segments().into_iter().flat_map(|n| n * SEGMENT..(n + 1) * SEGMENT).map(LogPageIdx);
        log_pages.filter_map(|log_page| Some((log_page, self.slot(log_page)?)))
    }

    /// Each reference that the table makes to a slot of the pool.
    pub fn references(&self, each: &mut dyn FnMut(SlotIdx)) {
        self.log_pages().for_each(|(_, slot)| each(slot));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn again(table: &LogPageTable) -> LogPageTable {
        LogPageTable::open(table.fd().try_clone_to_owned().unwrap()).unwrap()
    }

    #[test]
    fn the_next_one_finds_what_was_entered() {
        let table = LogPageTable::create().unwrap();
        let far = LogPageIdx(900 * SEGMENT + 5);
        table.set_slot(LogPageIdx(3), Some(SlotIdx(0)));
        table.set_slot(far, Some(SlotIdx(77)));
        table.set_start(RecordAddr { log_page: far, unit: 63 });
        let next = again(&table);
        assert_eq!(next.secret(), table.secret());
        assert_eq!(next.log_pages().collect::<Vec<_>>(), [(LogPageIdx(3), SlotIdx(0)), (far, SlotIdx(77))]);
        assert_eq!(next.starts(far), 1 << 63);
        let mut references = Vec::new();
        next.references(&mut |slot| references.push(slot.0));
        assert_eq!(references, [0, 77]);
        assert_eq!(table.set_slot(far, None), Some(SlotIdx(77)));
        table.abandon(900);
        assert_eq!(next.log_pages().count(), 1);
    }

    #[test]
    fn databases_swap_names() {
        let table = LogPageTable::create().unwrap();
        table.swap(Db(0), Db(15));
        table.swap(Db(0), Db(1));
        table.swap(Db(2), Db(2));
        let next = again(&table);
        assert_eq!([0, 1, 2, 15].map(|n| next.database(Db(n)).0), [1, 15, 2, 0]);
    }

    #[test]
    fn another_layout_is_refused() {
        let table = LogPageTable::create().unwrap();
        table.map.u32(8).store(2, SeqCst);
        let fd = table.fd().try_clone_to_owned().unwrap();
        assert!(matches!(LogPageTable::open(fd), Err(LogPagesError::Version(2))));
    }
}
