//! The records: each page's, in chunks that are made as they are needed.

use super::layout::*;
use super::record::{Record, StubTraces, TableError, TableFull};
use super::undo::Words;
use crate::kernel::uffd::Proof;
use crate::page::PageIdx;
use annex_shared::ids::SlotIdx;
use annex_shared::memfd;
use nix::unistd::{Whence, lseek};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

#[derive(Debug)]
pub struct Table {
    pub(super) words: Words,
    /// Chunks given back, for use again. Recomputable: chunks below the mark that the directory
    /// does not name.
    free: Vec<u32>,
    /// Directory entries in use, for walks. Recomputable from the directory.
    used: std::collections::BTreeSet<u32>,
    evicted: u64,
    /// Records that name a slot.
    slots: u64,
}

impl Table {
    pub fn new(app: u64, space: u64) -> io::Result<Table> {
        let table = Table::over(memfd::create(c"annex-pages", FILE_BYTES)?)?;
        table.words.write(8, VERSION);
        table.words.write_u64(16, app);
        table.words.write_u64(SPACE, space);
        table.words.write_u64(0, MAGIC);
        Ok(table)
    }

    fn over(memfd: OwnedFd) -> io::Result<Table> {
        Ok(Table { words: Words::over(memfd)?, free: Vec::new(), used: Default::default(), evicted: 0, slots: 0 })
    }

    /// The table of an annexd that is gone. A transaction that it left open is undone: its message
    /// is to be applied again.
    pub fn open(memfd: OwnedFd) -> Result<Table, TableError> {
        let len = nix::sys::stat::fstat(&memfd).map_err(io::Error::from)?.st_size;
        if len < 4096 {
            return Err(TableError::Magic);
        }
        let mut table = Table::over(memfd)?;
        if table.words.read_u64(0) != MAGIC {
            return Err(TableError::Magic);
        }
        let version = table.words.read(8);
        match version {
            OLDEST..=VERSION if len as usize == FILE_BYTES => {}
            OLDEST..=VERSION => return Err(TableError::Damaged("its length is not the layout's")),
            other => return Err(TableError::Version(other)),
        }
        table.words.roll_back()?;
        if version < VERSION && table.has_window() {
            return Err(TableError::Version(version));
        }
        table.words.write(8, VERSION);
        table.recount()?;
        Ok(table)
    }

    /// Makes what is on the heap anew from the directory.
    fn recount(&mut self) -> Result<(), TableError> {
        let mark = self.words.read(12);
        if mark > MAX_CHUNKS {
            return Err(TableError::Damaged("it claims more chunks than there is room for"));
        }
        let mut taken = vec![false; mark as usize];
        for entry in self.directory_entries() {
            let chunk = self.words.read(DIRECTORY + entry as usize * 4) - 1;
            match taken.get_mut(chunk as usize) {
                Some(taken) if !*taken => *taken = true,
                _ => return Err(TableError::Damaged("its directory names a chunk twice, or one that is not there")),
            }
            self.used.insert(entry);
        }
        self.free = (0..mark).filter(|c| !taken[*c as usize]).collect();
        let (start, end) = Table::everything();
        let (mut evicted, mut slots) = (0, 0);
        self.walk(start, end, |_, record| {
            evicted += u64::from(matches!(record, Record::Evicted(_)));
            slots += u64::from(record.slot().is_some());
        });
        (self.evicted, self.slots) = (evicted, slots);
        Ok(())
    }

    /// Directory entries that name a chunk. Skips what was never touched, which in a sparse file is
    /// nearly everything.
    fn directory_entries(&self) -> Vec<u32> {
        let (mut at, end) = (DIRECTORY as i64, CHUNKS as i64);
        let mut found = Vec::new();
        while at < end {
            let Ok(data) = lseek(&self.words.memfd, at, Whence::SeekData) else { break };
            let hole = lseek(&self.words.memfd, data, Whence::SeekHole).unwrap_or(end).min(end);
            let entries = (data.max(at)..hole).step_by(4).map(|at| (at as usize - DIRECTORY) as u32 / 4);
            found.extend(entries.filter(|entry| self.words.read(DIRECTORY + *entry as usize * 4) != 0));
            at = hole.max(data + 4096);
        }
        found
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.words.memfd.as_fd()
    }

    pub fn app(&self) -> u64 {
        self.words.read_u64(16)
    }

    pub fn space(&self) -> u64 {
        self.words.read_u64(SPACE)
    }

    /// The process this is; 0 while it is not known.
    pub fn pid(&self) -> i32 {
        self.words.read(24) as i32
    }

    /// What a successor needs to find the process and its stub again.
    pub fn describe(&self, pid: i32, stub: &StubTraces) {
        self.words.write_u64(32, stub.staging.0);
        self.words.write_u64(40, stub.staging.1);
        self.words.write_u64(STUB, stub.code_at);
        self.words.write_u64(STUB + 8, stub.comm_at);
        self.words.write_u64(STUB + 16, stub.staging_map_at);
        self.words.write(STUB + 24, stub.pid_there as u32);
        for (i, fd) in stub.fds.iter().enumerate() {
            self.words.write(STUB + 28 + i * 4, *fd as u32);
        }
        self.words.write(STUB + 36, stub.inode as u32);
        self.words.write(STUB + 40, (stub.inode >> 32) as u32);
        self.words.write(STUB + 44, stub.version);
        self.words.write(28, stub.pid as u32);
        self.words.write(24, pid as u32);
    }

    /// The stub as it was described, if there was one.
    pub fn stub(&self) -> Option<StubTraces> {
        let pid = self.words.read(28) as i32;
        (pid != 0).then(|| StubTraces {
            pid,
            pid_there: self.words.read(STUB + 24) as i32,
            staging: (self.words.read_u64(32), self.words.read_u64(40)),
            code_at: self.words.read_u64(STUB),
            comm_at: self.words.read_u64(STUB + 8),
            staging_map_at: self.words.read_u64(STUB + 16),
            fds: [0, 1].map(|i| self.words.read(STUB + 28 + i * 4) as i32),
            inode: u64::from(self.words.read(STUB + 36)) | u64::from(self.words.read(STUB + 40)) << 32,
            version: self.words.read(STUB + 44),
        })
    }

    /// Eviction from this space is over for good; a successor must know.
    pub fn freeze(&self) {
        self.words.write(FLAGS, self.words.read(FLAGS) | FROZEN);
    }

    pub fn is_frozen(&self) -> bool {
        self.words.read(FLAGS) & FROZEN != 0
    }

    /// Everything is back, and the address space is being let go of: a successor goes on with that.
    pub fn leave(&self) {
        self.words.write(FLAGS, self.words.read(FLAGS) | LEAVING);
    }

    pub fn is_leaving(&self) -> bool {
        self.words.read(FLAGS) & LEAVING != 0
    }

    /// Pages whose bytes are in the pool only.
    pub fn evicted(&self) -> u64 {
        self.evicted
    }

    /// Pages that have bytes in the pool, there or not.
    pub fn slots(&self) -> u64 {
        self.slots
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
        self.chunk_of(page).map_or(Record::None, |chunk| Record::decode(self.words.read(record_at(chunk, page))))
    }

    /// Replaces a page's record, and returns what it was. References are the caller's business.
    pub fn set(&mut self, page: PageIdx, record: Record) -> Result<Record, TableFull> {
        let chunk = match self.chunk_of(page) {
            Some(chunk) => chunk,
            None if record == Record::None => return Ok(Record::None),
            None => self.add_chunk(page)?,
        };
        let at = record_at(chunk, page);
        let before = Record::decode(self.words.read(at));
        self.words.write(at, record.encode());
        self.count(before, false);
        self.count(record, true);
        Ok(before)
    }

    fn count(&mut self, record: Record, added: bool) {
        if record.slot().is_some() {
            self.slots = if added { self.slots + 1 } else { self.slots - 1 };
        }
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
            Some(chunk) => unsafe { self.words.at(policy_at(chunk, page)).read() >> nibble_of(page) & 0xf },
            None => 0,
        }
    }

    /// Sets the policy nibble (of `value`, the low 4 bits); without effect on a page whose
    /// neighbourhood has no records.
    pub fn set_policy(&mut self, page: PageIdx, value: u8) {
        if let Some(chunk) = self.chunk_of(page) {
            let (at, shift) = (self.words.at(policy_at(chunk, page)), nibble_of(page));
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
            let chunk = self.words.read(DIRECTORY + *entry as usize * 4) - 1;
            for page in range.map(PageIdx) {
                match Record::decode(self.words.read(record_at(chunk, page))) {
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
                self.free.push(self.words.read(at) - 1);
                self.words.write(at, 0);
                self.used.remove(&entry);
            }
        }
    }

    fn chunk_of(&self, page: PageIdx) -> Option<u32> {
        let entry = entry_of(page) as usize;
        if entry >= DIRECTORY_ENTRIES {
            return None;
        }
        self.words.read(DIRECTORY + entry * 4).checked_sub(1)
    }

    fn add_chunk(&mut self, page: PageIdx) -> Result<u32, TableFull> {
        let entry = entry_of(page);
        let mark = self.words.read(12);
        let chunk = match self.free.pop() {
            Some(chunk) => chunk,
            None if mark < MAX_CHUNKS && (entry as usize) < DIRECTORY_ENTRIES => {
                self.words.write(12, mark + 1);
                mark
            }
            None => return Err(TableFull),
        };
        self.used.insert(entry);
        self.words.write(DIRECTORY + entry as usize * 4, chunk + 1);
        Ok(chunk)
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
