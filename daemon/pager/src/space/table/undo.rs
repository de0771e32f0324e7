//! What a message changes, all or nothing.
//!
//! While a transaction is open, each word of the table that is overwritten goes to the undo log
//! first. The word `progress` holds both the log's length and how many messages of the journal are
//! applied, so that one store ends the transaction *and* takes its message off the list. A
//! successor that finds entries writes them back, newest first, and applies the message again.
//!
//! Order: the entry, then the log's length, then the word itself. Slots that a transaction lets go
//! of are released after its end.

use super::{INTENT_PAGES, JOURNAL, JOURNAL_MESSAGES, Message, PROGRESS, Table, TableError, UNDO};
use nix::fcntl::{FallocateFlags, fallocate};
use std::sync::atomic::{AtomicU64, Ordering};

/// Entries the log has room for: two for each page of 1 TiB that moves.
pub const ENTRIES: usize = 1 << 29;
/// A longer log's memory is given back (1 MiB).
const KEPT: u64 = 1 << 17;
/// The log overflowed: a successor can't tell what was.
const OVERFLOW: u64 = u32::MAX as u64;

impl Table {
    fn progress(&self) -> &AtomicU64 {
        // SAFETY: in bounds, 8-aligned, and accessed as a whole only.
        unsafe { &*self.at(PROGRESS).cast::<AtomicU64>() }
    }

    /// How many messages of the journal are applied.
    pub fn applied(&self) -> usize {
        (self.progress().load(Ordering::Acquire) >> 32) as usize
    }

    /// From here to [`Table::commit`] all changes of the table are one.
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
            let _ = fallocate(&self.memfd, punch, UNDO as i64, (entries.min(ENTRIES as u64) * 8) as i64);
        }
    }

    pub(super) fn log(&self, offset: usize) {
        let progress = self.progress().load(Ordering::Relaxed);
        let entries = progress & OVERFLOW;
        if entries == OVERFLOW {
            return;
        }
        if entries as usize >= ENTRIES {
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

    /// The journal is empty again: all its messages are applied.
    pub fn clear_journal(&self, messages: usize) {
        for i in 0..messages {
            // SAFETY: the journal has room for JOURNAL_MESSAGES.
            unsafe { self.journal().add(i).cast::<u8>().write_volatile(0) };
        }
        // Last: until here a successor skips the applied ones by their number.
        self.progress().store(0, Ordering::SeqCst);
    }

    /// Messages that were read and not yet applied, with their places.
    pub fn unapplied(&self) -> Vec<(usize, Message)> {
        let messages = (self.applied()..JOURNAL_MESSAGES).map(|i| {
            // SAFETY: in bounds of the journal, which is plain memory; nobody else writes it now.
            (i, unsafe { self.journal().add(i).read_volatile() })
        });
        messages.take_while(|(_, message)| message.event != 0).collect()
    }
}

const _: () = assert!(JOURNAL + JOURNAL_MESSAGES * size_of::<Message>() <= super::INTENT && INTENT_PAGES <= 512);

#[cfg(test)]
mod tests {
    use super::super::{OLDEST, Record, VERSION};
    use super::*;
    use crate::page::PageIdx;
    use annex_shared::ids::SlotIdx;

    fn reopened(table: &Table) -> Table {
        Table::open(nix::unistd::dup(table.fd()).unwrap()).unwrap()
    }

    fn records(table: &Table) -> Vec<(PageIdx, Record)> {
        let mut found = Vec::new();
        let (start, end) = Table::everything();
        table.walk(start, end, |page, record| found.push((page, record)));
        found
    }

    #[test]
    fn a_transaction_that_was_not_ended_never_was() {
        let mut table = Table::new(1, 2).unwrap();
        for page in 0..1500 {
            table.set(PageIdx(page), Record::Evicted(SlotIdx(page as u32))).unwrap();
        }
        let before = records(&table);
        table.begin();
        table.clear(PageIdx(0), PageIdx(1024), |_| {});
        table.set(PageIdx(9_000_000), Record::Clean(SlotIdx(7))).unwrap();
        table.save_window(&[1, 2, 3]);
        let successor = reopened(&table);
        assert_eq!(records(&successor), before);
        assert_eq!(successor.evicted(), 1500);
        assert!(successor.saved_window().unwrap().is_empty());
    }

    #[test]
    fn an_ended_transaction_stays_and_its_message_is_not_applied_again() {
        let mut table = Table::new(1, 2).unwrap();
        let message = |event| Message { event, ..Default::default() };
        for (i, event) in [0x15, 0x16].into_iter().enumerate() {
            // SAFETY: in bounds of the journal.
            unsafe { table.journal().add(i).write(message(event)) };
        }
        table.begin();
        table.set(PageIdx(5), Record::Gone).unwrap();
        table.commit(1);
        table.begin();
        table.set(PageIdx(6), Record::Gone).unwrap();
        let successor = reopened(&table);
        assert_eq!(records(&successor), [(PageIdx(5), Record::Gone)]);
        assert_eq!(successor.unapplied().iter().map(|(i, m)| (*i, m.event)).collect::<Vec<_>>(), [(1, 0x16)]);
        successor.clear_journal(2);
        assert!(reopened(&successor).unapplied().is_empty());
    }

    #[test]
    fn a_table_of_the_version_before_is_taken_over_unless_its_window_is_open() {
        let mut table = Table::new(1, 2).unwrap();
        table.set(PageIdx(5), Record::Evicted(SlotIdx(9))).unwrap();
        table.write(8, OLDEST);
        let successor = reopened(&table);
        assert_eq!((successor.read(8), records(&successor)), (VERSION, records(&table)));

        table.write(8, OLDEST);
        table.begin();
        table.save_window(&[0, 0, 0, 0, 0]);
        table.commit(1);
        let error = Table::open(nix::unistd::dup(table.fd()).unwrap()).unwrap_err();
        assert!(matches!(error, TableError::Version(OLDEST)), "{error}");
        assert_eq!(table.read(8), OLDEST);
    }

    #[test]
    fn a_table_of_another_version_is_refused_and_left_alone() {
        let table = Table::new(1, 2).unwrap();
        let other = VERSION + 1;
        table.write(8, other);
        let error = Table::open(nix::unistd::dup(table.fd()).unwrap()).unwrap_err();
        assert!(matches!(error, TableError::Version(v) if v == other), "{error}");
        assert_eq!(table.read(8), other);
    }
}
