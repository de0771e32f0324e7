//! The page table of one address space: where each of its pages is.
//!
//! It lies in a memfd, so that it outlives this process. All numbers little-endian, offsets in
//! bytes:
//!
//! ```text
//! 0            header      magic "annexpgt" (8), version u32 = 5, chunks u32 (high-water mark),
//!   16                     app id u64, pid u32 (0: unknown), stub pid u32, staging address u64, staging length u64
//!   48                     progress u64: undo entries (low half), journal messages applied (high half)
//!   56                     space id u64, stub: code u64, comm u64, staging mapping u64 (addresses),
//!   88                     its pid in the app's namespace u32, its descriptor numbers u32 x 2 (comm, userfaultfd), inode of comm u32 x 2 (low, high), version u32
//!   112                    install under way: first page u64, pages u32; flags u32 (1: frozen, 2: being let go of)
//!   128                    fork under way: child's space id u64, journal index + 1 u32; words of the window u32
//!   144                    changes applied u64; the space from which changes were inherited last u64 (a fork's child, see `young`)
//!   160                    pages found in an install note at a take-over: ranges u32, pad u32, 64 x {first u64, pages u32, pad u32}
//! 4096         journal     messages read but not yet applied: 64 x 32 bytes, as the kernel wrote them (event byte 0 = none)
//! 8192         intent      the eviction under way, see `intent`
//! 64 KiB       window      changes not yet known to be complete, see `window`: 240 Ki words u32
//! 1 MiB        directory   2^26 x u32, indexed by address >> 21: 0 = no chunk, else chunk number + 1
//! 257 MiB      chunks      2^20 x 2304 bytes: 512 x u32 records, then 512 x 4 bits of policy, low nibble first
//! then         undo        2^29 x {offset / 4 u32, word before u32}, see `undo`
//! ```
//!
//! The file is sparse: only what is used takes memory. A record is a 2-bit kind and 30 bits of
//! slot:
//!
//! | kind | payload | meaning |
//! | --- | --- | --- |
//! | 0 | 0 | *none*: never evicted, or resident with no copy in the pool |
//! | 0 | 1 | *gone*: a REMOVE was announced and may not have happened yet: not to be evicted until the app touches it anew |
//! | 0 | 2 | *poisoned*: no replica could give it; touching it raises SIGBUS |
//! | 1 | slot | *evicted*: its bytes are in the slot and nowhere else |
//! | 2 | slot | *clean*: resident, and unless written since, the slot has the same bytes |
//!
//! The policy nibble of a resident page is its heat, of an evicted one the clock lap it left in
//! (see `policy`).
//!
//! # A kill between any two instructions
//! - A record that names a slot holds one reference to it. The counts are recounted from the
//!   records at a take-over, so only the records must be right.
//! - What a message changes is one transaction (`undo`): its successor sees all of it or none, and
//!   with it whether the message still has to be applied.
//! - An install is noted before the COPY and the note taken back after the record: the pages in the
//!   note that are still *evicted* may be there already, and a second COPY's EEXIST says so.
//! - An eviction is noted with every page and its slot before the first MOVE (`intent`).
//!
//! Version 3 did not say which pages of an intent are settled: none was before all were. Version 2
//! knew no origin of doubts in its window: it is taken over where the window is empty, as it is but
//! for moments, and refused otherwise. Version 1 had no undo log, no window and another intent, and
//! nobody to take it over from.

mod intent;
mod notes;
mod undo;

pub use intent::{Intent, Phase, Victim};

use crate::kernel::uffd::{Message, Proof};
use crate::page::PageIdx;
use annex_shared::ids::SlotIdx;
use memmap2::MmapRaw;
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::unistd::{Whence, lseek};
use serde::{Deserialize, Serialize};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

const MAGIC: u64 = u64::from_le_bytes(*b"annexpgt");
const VERSION: u32 = 5;
/// The oldest version that can be taken over. Until the present one windows were written otherwise.
const OLDEST: u32 = 2;
const JOURNAL: usize = 4096;
const PROGRESS: usize = 48;
const SPACE: usize = 56;
const STUB: usize = 64;
const INSTALL: usize = 112;
const FLAGS: usize = 124;
const FORKING: usize = 128;
const WINDOW_WORDS: usize = 140;
const CHANGES: usize = 144;
const INHERITED: usize = 152;
const SUSPECTS: usize = 160;
const SUSPECT_RANGES: usize = 64;
const INTENT: usize = 8192;
const WINDOW: usize = 64 << 10;
/// Words the window's place holds.
const WINDOW_ROOM: usize = (DIRECTORY - WINDOW) / 4;
const DIRECTORY: usize = 1 << 20;
const DIRECTORY_ENTRIES: usize = 1 << 26;
const CHUNKS: usize = DIRECTORY + DIRECTORY_ENTRIES * 4;
const CHUNK_PAGES: usize = 512;
/// A record of 4 bytes and a policy nibble for each page.
const CHUNK_BYTES: usize = CHUNK_PAGES * 4 + CHUNK_PAGES / 2;
const MAX_CHUNKS: u32 = 1 << 20;
const UNDO: usize = CHUNKS + MAX_CHUNKS as usize * CHUNK_BYTES;
const FILE_BYTES: usize = UNDO + undo::ENTRIES * 8;
const FROZEN: u32 = 1;
const LEAVING: u32 = 2;

/// Messages the journal holds: what one read may take.
pub const JOURNAL_MESSAGES: usize = 64;
/// Ranges one eviction may move.
pub const INTENT_RANGES: usize = 256;
/// Pages one eviction may move.
pub const INTENT_PAGES: usize = 512;

/// The highest slot a record can name.
pub const MAX_SLOT: u32 = (1 << 30) - 1;

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
    pub fn encode(self) -> u32 {
        match self {
            Record::None => 0,
            Record::Gone => 1,
            Record::Poisoned => 2,
            Record::Evicted(slot) => 1 << 30 | slot.0,
            Record::Clean(slot) => 2 << 30 | slot.0,
        }
    }

    pub fn decode(word: u32) -> Record {
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

/// A page table could not be made or taken over.
#[derive(Debug, thiserror::Error)]
pub enum TableError {
    #[error("failed to make or map a page table: {0}")]
    System(#[from] io::Error),
    #[error("the saved state is not a page table of annex")]
    Magic,
    #[error("the saved page table has layout version {0}, this annexd knows {VERSION}: start the annexd that wrote it")]
    Version(u32),
    #[error("the saved page table is damaged: {0}")]
    Damaged(&'static str),
}

/// Where a stub's things are, for the annexd that comes after.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StubTraces {
    pub pid: i32,
    /// Its PID in the app's namespace.
    pub pid_there: i32,
    pub staging: (u64, u64),
    pub code_at: u64,
    pub comm_at: u64,
    pub staging_map_at: u64,
    /// Descriptor numbers in the stub's table: shared page, userfaultfd.
    pub fds: [i32; 2],
    /// Of the shared page's file.
    pub inode: u64,
    /// Of the stub's code and shared page.
    pub version: u32,
}

#[derive(Debug)]
pub struct Table {
    /// Keeps the memory reachable for a successor, who gets the descriptor.
    memfd: OwnedFd,
    map: MmapRaw,
    /// Chunks given back, for use again. Recomputable: chunks below the mark that the directory
    /// does not name.
    free: Vec<u32>,
    /// Directory entries in use, for walks. Recomputable from the directory.
    used: std::collections::BTreeSet<u32>,
    evicted: u64,
    /// A transaction is open: what is overwritten goes to the undo log.
    logging: bool,
}

impl Table {
    pub fn new(app: u64, space: u64) -> io::Result<Table> {
        let memfd = memfd_create(c"annex-pages", MFdFlags::MFD_CLOEXEC)?;
        nix::unistd::ftruncate(&memfd, FILE_BYTES as i64)?;
        let table = Table::over(memfd)?;
        table.write(8, VERSION);
        table.write_u64(16, app);
        table.write_u64(SPACE, space);
        table.write_u64(0, MAGIC);
        Ok(table)
    }

    fn over(memfd: OwnedFd) -> io::Result<Table> {
        let map = MmapRaw::map_raw(&memfd)?;
        Ok(Table { memfd, map, free: Vec::new(), used: Default::default(), evicted: 0, logging: false })
    }

    /// The table of an annexd that is gone. A transaction that it left open is undone: its message
    /// is to be applied again.
    pub fn open(memfd: OwnedFd) -> Result<Table, TableError> {
        let len = nix::sys::stat::fstat(&memfd).map_err(io::Error::from)?.st_size;
        if len < 4096 {
            return Err(TableError::Magic);
        }
        let mut table = Table::over(memfd)?;
        if table.read_u64(0) != MAGIC {
            return Err(TableError::Magic);
        }
        let version = table.read(8);
        match version {
            OLDEST..=VERSION if len as usize == FILE_BYTES => {}
            OLDEST..=VERSION => return Err(TableError::Damaged("its length is not the layout's")),
            other => return Err(TableError::Version(other)),
        }
        table.roll_back()?;
        if version < VERSION && table.has_window() {
            return Err(TableError::Version(version));
        }
        table.write(8, VERSION);
        table.recount()?;
        Ok(table)
    }

    /// Makes what is on the heap anew from the directory.
    fn recount(&mut self) -> Result<(), TableError> {
        let mark = self.read(12);
        if mark > MAX_CHUNKS {
            return Err(TableError::Damaged("it claims more chunks than there is room for"));
        }
        let mut taken = vec![false; mark as usize];
        for entry in self.directory_entries() {
            let chunk = self.read(DIRECTORY + entry as usize * 4) - 1;
            match taken.get_mut(chunk as usize) {
                Some(taken) if !*taken => *taken = true,
                _ => return Err(TableError::Damaged("its directory names a chunk twice, or one that is not there")),
            }
            self.used.insert(entry);
        }
        self.free = (0..mark).filter(|c| !taken[*c as usize]).collect();
        let (start, end) = Table::everything();
        let mut evicted = 0;
        self.walk(start, end, |_, record| evicted += u64::from(matches!(record, Record::Evicted(_))));
        self.evicted = evicted;
        Ok(())
    }

    /// Directory entries that name a chunk. Skips what was never touched, which in a sparse file is
    /// nearly everything.
    fn directory_entries(&self) -> Vec<u32> {
        let (mut at, end) = (DIRECTORY as i64, CHUNKS as i64);
        let mut found = Vec::new();
        while at < end {
            let Ok(data) = lseek(&self.memfd, at, Whence::SeekData) else { break };
            let hole = lseek(&self.memfd, data, Whence::SeekHole).unwrap_or(end).min(end);
            let entries = (data.max(at)..hole).step_by(4).map(|at| (at as usize - DIRECTORY) as u32 / 4);
            found.extend(entries.filter(|entry| self.read(DIRECTORY + *entry as usize * 4) != 0));
            at = hole.max(data + 4096);
        }
        found
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.memfd.as_fd()
    }

    pub fn app(&self) -> u64 {
        self.read_u64(16)
    }

    pub fn space(&self) -> u64 {
        self.read_u64(SPACE)
    }

    /// The process this is; 0 while it is not known.
    pub fn pid(&self) -> i32 {
        self.read(24) as i32
    }

    /// What a successor needs to find the process and its stub again.
    pub fn describe(&self, pid: i32, stub: &StubTraces) {
        self.write_u64(32, stub.staging.0);
        self.write_u64(40, stub.staging.1);
        self.write_u64(STUB, stub.code_at);
        self.write_u64(STUB + 8, stub.comm_at);
        self.write_u64(STUB + 16, stub.staging_map_at);
        self.write(STUB + 24, stub.pid_there as u32);
        for (i, fd) in stub.fds.iter().enumerate() {
            self.write(STUB + 28 + i * 4, *fd as u32);
        }
        self.write(STUB + 36, stub.inode as u32);
        self.write(STUB + 40, (stub.inode >> 32) as u32);
        self.write(STUB + 44, stub.version);
        self.write(28, stub.pid as u32);
        self.write(24, pid as u32);
    }

    /// The stub as it was described, if there was one.
    pub fn stub(&self) -> Option<StubTraces> {
        let pid = self.read(28) as i32;
        (pid != 0).then(|| StubTraces {
            pid,
            pid_there: self.read(STUB + 24) as i32,
            staging: (self.read_u64(32), self.read_u64(40)),
            code_at: self.read_u64(STUB),
            comm_at: self.read_u64(STUB + 8),
            staging_map_at: self.read_u64(STUB + 16),
            fds: [0, 1].map(|i| self.read(STUB + 28 + i * 4) as i32),
            inode: u64::from(self.read(STUB + 36)) | u64::from(self.read(STUB + 40)) << 32,
            version: self.read(STUB + 44),
        })
    }

    /// Eviction from this space is over for good; a successor must know.
    pub fn freeze(&self) {
        self.write(FLAGS, self.read(FLAGS) | FROZEN);
    }

    pub fn is_frozen(&self) -> bool {
        self.read(FLAGS) & FROZEN != 0
    }

    /// Everything is back, and the address space is being let go of: a successor goes on with that.
    pub fn leave(&self) {
        self.write(FLAGS, self.read(FLAGS) | LEAVING);
    }

    pub fn is_leaving(&self) -> bool {
        self.read(FLAGS) & LEAVING != 0
    }

    /// Pages whose bytes are in the pool only.
    pub fn evicted(&self) -> u64 {
        self.evicted
    }

    /// That no page is anywhere but in memory. Nothing may be evicted any more.
    pub fn all_back(&self) -> Option<Proof> {
        Proof::all_back(self.evicted() == 0 && self.intent().is_none())
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
            // SAFETY: in bounds of the mapping by construction; policy is only touched under the
            // address space's lock.
            Some(chunk) => unsafe { self.at(policy_at(chunk, page)).read() >> nibble_of(page) & 0xf },
            None => 0,
        }
    }

    /// Sets the policy nibble (of `value`, the low 4 bits); without effect on a page whose
    /// neighbourhood has no records.
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

    /// Clears every record from `start` up to `end` (their slots go to `released`); chunks that are
    /// covered whole are given back.
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
        if self.logging {
            self.log(offset);
        }
        self.put(offset, value);
    }

    fn write_u64(&self, offset: usize, value: u64) {
        self.write(offset, value as u32);
        self.write(offset + 4, (value >> 32) as u32);
    }

    /// As `write`, whether a transaction is open or not.
    fn put(&self, offset: usize, value: u32) {
        // SAFETY: in bounds and 4-aligned; the word is only ever accessed atomically.
        let word = unsafe { &*self.at(offset).cast::<std::sync::atomic::AtomicU32>() };
        word.store(value, std::sync::atomic::Ordering::Release);
    }

    fn read_u64(&self, offset: usize) -> u64 {
        u64::from(self.read(offset)) | u64::from(self.read(offset + 4)) << 32
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
mod tests;
