//! What a message changes, all or nothing.
//!
//! While a transaction is open, each word of the table that is overwritten goes to the undo log
//! first. The word `progress` holds both the log's length and how many messages of the journal are
//! applied, so that one store ends the transaction *and* takes its message off the list. A
//! successor that finds entries writes them back, newest first, and applies the message again.
//!
//! Order: the entry, then the log's length, then the word itself. Slots that a transaction lets go
//! of are released after its end.

use super::layout::{FILE_BYTES, PROGRESS, UNDO, UNDO_ENTRIES};
use super::record::TableError;
use memmap2::MmapRaw;
use nix::fcntl::{FallocateFlags, fallocate};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// A longer log's memory is given back (1 MiB).
const KEPT: u64 = 1 << 17;
/// The log overflowed: a successor can't tell what was.
const OVERFLOW: u64 = u32::MAX as u64;

/// The words of a table's file.
#[derive(Debug)]
pub(super) struct Words {
    /// Keeps the memory reachable for a successor, who gets the descriptor.
    pub memfd: OwnedFd,
    pub map: MmapRaw,
    /// A transaction is open: what is overwritten goes to the undo log.
    logging: bool,
}

impl Words {
    pub fn over(memfd: OwnedFd) -> std::io::Result<Words> {
        let map = MmapRaw::map_raw(&memfd)?;
        Ok(Words { memfd, map, logging: false })
    }

    pub(super) fn at(&self, offset: usize) -> *mut u8 {
        debug_assert!(offset < FILE_BYTES);
        // SAFETY: every offset is computed from bounded indices and lies in the mapping.
        unsafe { self.map.as_mut_ptr().add(offset) }
    }

    pub(super) fn read(&self, offset: usize) -> u32 {
        // SAFETY: in bounds and 4-aligned; the word is only ever accessed atomically.
        let word = unsafe { &*self.at(offset).cast::<AtomicU32>() };
        word.load(Ordering::Relaxed)
    }

    pub(super) fn write(&self, offset: usize, value: u32) {
        if self.logging {
            self.log(offset);
        }
        self.put(offset, value);
    }

    pub(super) fn write_u64(&self, offset: usize, value: u64) {
        self.write(offset, value as u32);
        self.write(offset + 4, (value >> 32) as u32);
    }

    /// As `write`, whether a transaction is open or not.
    pub(super) fn put(&self, offset: usize, value: u32) {
        // SAFETY: in bounds and 4-aligned; the word is only ever accessed atomically.
        let word = unsafe { &*self.at(offset).cast::<AtomicU32>() };
        word.store(value, Ordering::Release);
    }

    pub(super) fn read_u64(&self, offset: usize) -> u64 {
        u64::from(self.read(offset)) | u64::from(self.read(offset + 4)) << 32
    }

    pub(super) fn progress(&self) -> &AtomicU64 {
        // SAFETY: in bounds, 8-aligned, and accessed as a whole only.
        unsafe { &*self.at(PROGRESS).cast::<AtomicU64>() }
    }

    /// How many messages of the journal are applied.
    pub fn applied(&self) -> usize {
        (self.progress().load(Ordering::Acquire) >> 32) as usize
    }

    /// From here to [`Words::commit`] all changes of the table are one.
    pub fn begin(&mut self) {
        debug_assert!(!self.logging, "transactions don't nest");
        self.logging = true;
    }

    /// Ends the transaction; `applied` messages of the journal are applied with it.
    pub fn commit(&mut self, applied: usize) {
        self.logging = false;
        let entries = self.progress().load(Ordering::Relaxed) & OVERFLOW;
        self.progress().store((applied as u64) << 32, Ordering::SeqCst);
        if entries > KEPT {
            let punch = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
            // The log is only memory: if it can't be given back it is used again.
            let _ = fallocate(&self.memfd, punch, UNDO as i64, (entries.min(UNDO_ENTRIES as u64) * 8) as i64);
        }
    }

    fn log(&self, offset: usize) {
        let progress = self.progress().load(Ordering::Relaxed);
        let entries = progress & OVERFLOW;
        if entries == OVERFLOW {
            return;
        }
        if entries as usize >= UNDO_ENTRIES {
            self.progress().store(progress | OVERFLOW, Ordering::Release);
            return;
        }
        let at = UNDO + entries as usize * 8;
        self.put(at, (offset / 4) as u32);
        self.put(at + 4, self.read(offset));
        self.progress().store(progress + 1, Ordering::Release);
    }

    /// Undoes an open transaction of the annexd before.
    pub(super) fn roll_back(&mut self) -> Result<(), TableError> {
        let progress = self.progress().load(Ordering::Acquire);
        let entries = progress & OVERFLOW;
        if entries == OVERFLOW {
            return Err(TableError::Damaged("a change of more than 1 TiB was under way"));
        }
        for i in (0..entries as usize).rev() {
            let at = UNDO + i * 8;
            let offset = self.read(at) as usize * 4;
            if offset >= UNDO {
                return Err(TableError::Damaged("its undo log names a place outside"));
            }
            self.put(offset, self.read(at + 4));
        }
        self.progress().store(progress & !OVERFLOW, Ordering::SeqCst);
        Ok(())
    }
}
