//! The page table of one address space: where each of its pages is.
//!
//! It lies in a memfd, so that it can outlive this process. All numbers little-endian, offsets in bytes:
//!
//! ```text
//! 0            header      magic "annexpgt" (8), version u32 = 1, chunks u32 (high-water mark),
//!                          app id u64, pid u32 (0: unknown), stub pid u32, staging address u64, staging length u64
//! 4096         journal     messages read but not yet applied: 64 x 32 bytes, as the kernel wrote them (event byte 0 = none)
//! 8192         intent      the eviction under way: phase u32 (0 none, 1 moving, 2 moved), ranges u32, then
//!                          256 x {address u64, length u64}, then runs u32, pad u32, 256 x {first slot u32, count u32}
//! 1 MiB        directory   2^26 x u32, indexed by address >> 21: 0 = no chunk, else chunk number + 1
//! 257 MiB      chunks      2^20 x 2304 bytes: 512 x u32 records, then 512 x 4 bits of policy, low nibble first
//! ```
//!
//! The file is sparse: only what is used takes memory. A record is a 2-bit kind and 30 bits of slot:
//!
//! | kind | payload | meaning |
//! | --- | --- | --- |
//! | 0 | 0 | *none*: never evicted, or resident with no copy in the pool |
//! | 0 | 1 | *gone*: a REMOVE was announced and may not have happened yet: not to be evicted until the app touches it anew |
//! | 0 | 2 | *poisoned*: no replica could give it; touching it raises SIGBUS |
//! | 1 | slot | *evicted*: its bytes are in the slot and nowhere else |
//! | 2 | slot | *clean*: resident, and unless written since, the slot has the same bytes |
//!
//! A record that names a slot holds one reference to it. Order of updates: the reference first, then the record; the record
//! first, then the release: a kill in between can only leak a reference, which a recount from the tables finds.
//!
//! The policy nibble of a resident page is its heat, of an evicted one the clock lap it left in (see `policy`).

use super::uffd::Message;
use annex_shared::ids::SlotIdx;
use annex_shared::page::PAGE_SHIFT;
use memmap2::MmapRaw;
use nix::sys::memfd::{MFdFlags, memfd_create};
use std::io;
use std::os::fd::OwnedFd;

const MAGIC: u64 = u64::from_le_bytes(*b"annexpgt");
const VERSION: u32 = 1;
const JOURNAL: usize = 4096;
const INTENT: usize = 8192;
const DIRECTORY: usize = 1 << 20;
const DIRECTORY_ENTRIES: usize = 1 << 26;
const CHUNKS: usize = DIRECTORY + DIRECTORY_ENTRIES * 4;
const CHUNK_PAGES: usize = 512;
/// A record of 4 bytes and a policy nibble for each page.
const CHUNK_BYTES: usize = CHUNK_PAGES * 4 + CHUNK_PAGES / 2;
const MAX_CHUNKS: u32 = 1 << 20;
const FILE_BYTES: usize = CHUNKS + MAX_CHUNKS as usize * CHUNK_BYTES;

/// Messages the journal holds: what one read may take.
pub const JOURNAL_MESSAGES: usize = 64;
/// Ranges one eviction may move.
pub const INTENT_RANGES: usize = 256;

/// The highest slot a record can name.
pub const MAX_SLOT: u32 = (1 << 30) - 1;

/// A page's number: its address divided by the page size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageIdx(pub u64);

impl PageIdx {
    pub fn of(addr: u64) -> PageIdx {
        PageIdx(addr >> PAGE_SHIFT)
    }

    pub fn addr(self) -> u64 {
        self.0 << PAGE_SHIFT
    }

    pub fn plus(self, pages: u64) -> PageIdx {
        PageIdx(self.0 + pages)
    }
}

/// Where a page is. See the module's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record {
    None,
    Gone,
    Poisoned,
    Evicted(SlotIdx),
    Clean(SlotIdx),
}

impl Record {
    fn encode(self) -> u32 {
        match self {
            Record::None => 0,
            Record::Gone => 1,
            Record::Poisoned => 2,
            Record::Evicted(slot) => 1 << 30 | slot.0,
            Record::Clean(slot) => 2 << 30 | slot.0,
        }
    }

    fn decode(word: u32) -> Record {
        let slot = SlotIdx(word & MAX_SLOT);
        match (word >> 30, slot.0) {
            (1, _) => Record::Evicted(slot),
            (2, _) => Record::Clean(slot),
            (0, 0) => Record::None,
            (0, 1) => Record::Gone,
            // Anything else was never written; poison fails closed.
            _ => Record::Poisoned,
        }
    }

    pub fn slot(self) -> Option<SlotIdx> {
        match self {
            Record::Evicted(slot) | Record::Clean(slot) => Some(slot),
            _ => None,
        }
    }
}

/// The table has no room for another chunk (2 TiB of scattered addresses are covered).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableFull;

#[derive(Debug)]
pub struct Table {
    /// Keeps the memory reachable for a successor, who gets the descriptor.
    _memfd: OwnedFd,
    map: MmapRaw,
    /// Chunks given back, for use again. Recomputable: chunks below the mark that the directory does not name.
    free: Vec<u32>,
    /// Directory entries in use, for walks. Recomputable from the directory.
    used: std::collections::BTreeSet<u32>,
    evicted: u64,
}

impl Table {
    pub fn new(app: u64) -> io::Result<Table> {
        let memfd = memfd_create(c"annex-pages", MFdFlags::MFD_CLOEXEC)?;
        nix::unistd::ftruncate(&memfd, FILE_BYTES as i64)?;
        let map = MmapRaw::map_raw(&memfd)?;
        let table = Table { _memfd: memfd, map, free: Vec::new(), used: Default::default(), evicted: 0 };
        table.write_u64(0, MAGIC);
        table.write(8, VERSION);
        table.write_u64(16, app);
        Ok(table)
    }

    /// What a successor needs to find the address space again.
    pub fn describe(&self, pid: i32, stub: i32, staging: (u64, u64)) {
        self.write(24, pid as u32);
        self.write(28, stub as u32);
        self.write_u64(32, staging.0);
        self.write_u64(40, staging.1);
    }

    /// Pages whose bytes are in the pool only.
    pub fn evicted(&self) -> u64 {
        self.evicted
    }

    /// Bytes of memory the table takes, but for a few pages of header and directory.
    pub fn bytes(&self) -> u64 {
        let directory = self
            .used
            .iter()
            .map(|d| d >> 10)
            .fold((0u64, u32::MAX), |(n, last), page| (n + (page != last) as u64, page));
        (self.used.len() * CHUNK_BYTES) as u64 + (2 + directory.0) * 4096
    }

    pub fn record(&self, page: PageIdx) -> Record {
        self.chunk_of(page).map_or(Record::None, |chunk| Record::decode(self.read(record_at(chunk, page))))
    }

    /// Replaces a page's record, and returns what it was. References are the caller's business.
    pub fn set(&mut self, page: PageIdx, record: Record) -> Result<Record, TableFull> {
        let chunk = match self.chunk_of(page) {
            Some(chunk) => chunk,
            None if record == Record::None => return Ok(Record::None),
            None => self.add_chunk(page)?,
        };
        let at = record_at(chunk, page);
        let before = Record::decode(self.read(at));
        self.write(at, record.encode());
        self.count(before, false);
        self.count(record, true);
        Ok(before)
    }

    fn count(&mut self, record: Record, added: bool) {
        if let Record::Evicted(_) = record {
            self.evicted = if added { self.evicted + 1 } else { self.evicted - 1 };
        }
    }

    /// Makes sure that records of these pages can be set without fail.
    pub fn ensure(&mut self, start: PageIdx, pages: u64) -> Result<(), TableFull> {
        for entry in entry_of(start)..=entry_of(start.plus(pages.max(1) - 1)) {
            let page = PageIdx((entry as u64) * CHUNK_PAGES as u64);
            if self.chunk_of(page).is_none() {
                self.add_chunk(page)?;
            }
        }
        Ok(())
    }

    pub fn policy(&self, page: PageIdx) -> u8 {
        match self.chunk_of(page) {
            // SAFETY: in bounds of the mapping by construction; policy is only touched under the address space's lock.
            Some(chunk) => unsafe { self.at(policy_at(chunk, page)).read() >> nibble_of(page) & 0xf },
            None => 0,
        }
    }

    /// Sets the policy nibble (of `value`, the low 4 bits); without effect on a page whose neighbourhood has no records.
    pub fn set_policy(&mut self, page: PageIdx, value: u8) {
        if let Some(chunk) = self.chunk_of(page) {
            let (at, shift) = (self.at(policy_at(chunk, page)), nibble_of(page));
            // SAFETY: as in `policy`.
            unsafe { at.write(at.read() & !(0xf << shift) | (value & 0xf) << shift) };
        }
    }

    /// Calls `each` for every page from `start` up to `end` that has a record other than *none*.
    pub fn walk(&self, start: PageIdx, end: PageIdx, mut each: impl FnMut(PageIdx, Record)) {
        if start >= end {
            return;
        }
        for entry in self.used.range(entry_of(start)..=entry_of(PageIdx(end.0 - 1))) {
            let first = *entry as u64 * CHUNK_PAGES as u64;
            let range = start.0.max(first)..end.0.min(first + CHUNK_PAGES as u64);
            let chunk = self.read(DIRECTORY + *entry as usize * 4) - 1;
            for page in range.map(PageIdx) {
                match Record::decode(self.read(record_at(chunk, page))) {
                    Record::None => {}
                    record => each(page, record),
                }
            }
        }
    }

    /// All of the address space.
    pub fn everything() -> (PageIdx, PageIdx) {
        (PageIdx(0), PageIdx((DIRECTORY_ENTRIES * CHUNK_PAGES) as u64))
    }

    /// Clears every record from `start` up to `end` (their slots go to `released`); chunks that are covered whole are given back.
    pub fn clear(&mut self, start: PageIdx, end: PageIdx, mut released: impl FnMut(SlotIdx)) {
        if start >= end {
            return;
        }
        let entries: Vec<u32> = self.used.range(entry_of(start)..=entry_of(PageIdx(end.0 - 1))).copied().collect();
        for entry in entries {
            let first = entry as u64 * CHUNK_PAGES as u64;
            let last = first + CHUNK_PAGES as u64;
            for page in (start.0.max(first)..end.0.min(last)).map(PageIdx) {
                let before = self.set(page, Record::None).unwrap_or(Record::None);
                before.slot().into_iter().for_each(&mut released);
                self.set_policy(page, 0);
            }
            if start.0 <= first && end.0 >= last {
                let at = DIRECTORY + entry as usize * 4;
                self.free.push(self.read(at) - 1);
                self.write(at, 0);
                self.used.remove(&entry);
            }
        }
    }

    /// Room for messages, to be read straight into. An entry counts while its event byte is not 0.
    pub fn journal(&self) -> *mut Message {
        // 64 messages of 32 bytes fit between the journal and the intent.
        self.at(JOURNAL).cast()
    }

    /// Notes what is about to be moved and where its bytes will go. In force from `intend`'s return until `conclude`.
    pub fn intend(&self, ranges: &[(u64, u64)], runs: impl ExactSizeIterator<Item = (SlotIdx, u32)>) {
        let after = INTENT + 8 + INTENT_RANGES * 16;
        self.write(INTENT + 4, ranges.len() as u32);
        for (i, (addr, len)) in ranges.iter().enumerate() {
            self.write_u64(INTENT + 8 + i * 16, *addr);
            self.write_u64(INTENT + 16 + i * 16, *len);
        }
        self.write(after, runs.len() as u32);
        for (i, (first, count)) in runs.enumerate().take(INTENT_RANGES) {
            self.write(after + 8 + i * 8, first.0);
            self.write(after + 12 + i * 8, count);
        }
        self.set_phase(1);
    }

    /// The moves are done and the records say so; the bytes are in staging still.
    pub fn intent_moved(&self) {
        self.set_phase(2);
    }

    /// The bytes are in the pool, or back in the app.
    pub fn conclude(&self) {
        self.set_phase(0);
    }

    fn set_phase(&self, phase: u32) {
        // SAFETY: in bounds, 4-aligned, and atomic like every word of the table.
        let word = unsafe { &*self.at(INTENT).cast::<std::sync::atomic::AtomicU32>() };
        word.store(phase, std::sync::atomic::Ordering::SeqCst);
    }

    fn chunk_of(&self, page: PageIdx) -> Option<u32> {
        let entry = entry_of(page) as usize;
        if entry >= DIRECTORY_ENTRIES {
            return None;
        }
        self.read(DIRECTORY + entry * 4).checked_sub(1)
    }

    fn add_chunk(&mut self, page: PageIdx) -> Result<u32, TableFull> {
        let entry = entry_of(page);
        let mark = self.read(12);
        let chunk = match self.free.pop() {
            Some(chunk) => chunk,
            None if mark < MAX_CHUNKS && (entry as usize) < DIRECTORY_ENTRIES => {
                self.write(12, mark + 1);
                mark
            }
            None => return Err(TableFull),
        };
        self.used.insert(entry);
        self.write(DIRECTORY + entry as usize * 4, chunk + 1);
        Ok(chunk)
    }

    fn at(&self, offset: usize) -> *mut u8 {
        debug_assert!(offset < FILE_BYTES);
        // SAFETY: every offset is computed from bounded indices and lies in the mapping.
        unsafe { self.map.as_mut_ptr().add(offset) }
    }

    fn read(&self, offset: usize) -> u32 {
        // SAFETY: in bounds and 4-aligned; the word is only ever accessed atomically.
        let word = unsafe { &*self.at(offset).cast::<std::sync::atomic::AtomicU32>() };
        word.load(std::sync::atomic::Ordering::Relaxed)
    }

    fn write(&self, offset: usize, value: u32) {
        // SAFETY: in bounds and 4-aligned; the word is only ever accessed atomically.
        let word = unsafe { &*self.at(offset).cast::<std::sync::atomic::AtomicU32>() };
        word.store(value, std::sync::atomic::Ordering::Release);
    }

    fn write_u64(&self, offset: usize, value: u64) {
        self.write(offset, value as u32);
        self.write(offset + 4, (value >> 32) as u32);
    }
}

fn entry_of(page: PageIdx) -> u32 {
    u32::try_from(page.0 / CHUNK_PAGES as u64).unwrap_or(u32::MAX)
}

fn record_at(chunk: u32, page: PageIdx) -> usize {
    CHUNKS + chunk as usize * CHUNK_BYTES + (page.0 as usize % CHUNK_PAGES) * 4
}

fn policy_at(chunk: u32, page: PageIdx) -> usize {
    CHUNKS + chunk as usize * CHUNK_BYTES + CHUNK_PAGES * 4 + page.0 as usize % CHUNK_PAGES / 2
}

/// Where in its byte a page's policy lies.
fn nibble_of(page: PageIdx) -> u32 {
    (page.0 % 2) as u32 * 4
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    #[test]
    fn a_covered_chunk_is_given_back_and_used_again() {
        let mut table = Table::new(1).unwrap();
        let far = PageIdx::of(0x7fff_ff00_0000);
        table.set(far, Record::Evicted(SlotIdx(MAX_SLOT))).unwrap();
        assert_eq!(table.record(far), Record::Evicted(SlotIdx(MAX_SLOT)));
        let mut released = Vec::new();
        table.clear(PageIdx(0), Table::everything().1, |slot| released.push(slot));
        assert_eq!((released, table.evicted(), table.record(far)), (vec![SlotIdx(MAX_SLOT)], 0, Record::None));
        table.set(PageIdx(5), Record::Gone).unwrap();
        assert_eq!(table.read(12), 1, "the freed chunk is used again");
        assert_eq!(table.record(PageIdx(6)), Record::None, "and carries nothing over");
    }

    #[test]
    fn neighbours_have_policies_of_their_own() {
        let mut table = Table::new(1).unwrap();
        table.ensure(PageIdx(510), 4).unwrap();
        for page in 510..514 {
            table.set_policy(PageIdx(page), page as u8);
        }
        table.set_policy(PageIdx(511), 0);
        let found: Vec<u8> = (510..514).map(|p| table.policy(PageIdx(p))).collect();
        assert_eq!(found, [510u64 as u8 & 15, 0, 512u64 as u8 & 15, 513u64 as u8 & 15]);
        assert_eq!(table.record(PageIdx(511)), Record::None, "records lie elsewhere");
    }

    #[derive(Clone, Debug)]
    enum Step {
        Set(u64, u32),
        Clear(u64, u64),
    }

    proptest! {
        #[test]
        fn the_table_is_a_map_from_pages_to_records(
            steps in proptest::collection::vec(prop_oneof![
                (0u64..3000, 0u32..50).prop_map(|(p, r)| Step::Set(p, r)),
                (0u64..3000, 0u64..1500).prop_map(|(p, n)| Step::Clear(p, n)),
            ], 1..200)
        ) {
            let mut table = Table::new(1).unwrap();
            let mut model = BTreeMap::new();
            for step in steps {
                match step {
                    Step::Set(page, r) => {
                        let record = match r { 0 => Record::None, 1 => Record::Gone, 2..20 => Record::Clean(SlotIdx(r)), _ => Record::Evicted(SlotIdx(r)) };
                        let before = table.set(PageIdx(page), record).unwrap();
                        let expected = if record == Record::None { model.remove(&page) } else { model.insert(page, record) };
                        prop_assert_eq!(before, expected.unwrap_or(Record::None));
                    }
                    Step::Clear(page, n) => {
                        let mut released = Vec::new();
                        table.clear(PageIdx(page), PageIdx(page + n), |s| released.push(s));
                        let gone: Vec<_> = model.range(page..page + n).map(|(p, r)| (*p, *r)).collect();
                        gone.iter().for_each(|(p, _)| { model.remove(p); });
                        prop_assert_eq!(released, gone.iter().filter_map(|(_, r)| r.slot()).collect::<Vec<_>>());
                    }
                }
                let mut walked = Vec::new();
                let (start, end) = Table::everything();
                table.walk(start, end, |p, r| walked.push((p.0, r)));
                prop_assert_eq!(&walked, &model.iter().map(|(p, r)| (*p, *r)).collect::<Vec<_>>());
                let evicted = model.values().filter(|r| matches!(r, Record::Evicted(_))).count() as u64;
                prop_assert_eq!(table.evicted(), evicted);
            }
        }
    }
}
