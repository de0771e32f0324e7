//! Messages that were read and not yet applied, and the transactions in which they are.

use super::layout::{JOURNAL, JOURNAL_MESSAGES};
use super::records::Table;
use crate::kernel::uffd::Message;
use std::sync::atomic::Ordering;

impl Table {
    /// How many messages of the journal are applied.
    pub fn applied(&self) -> usize {
        self.words.applied()
    }

    /// From here to [`Table::commit`] all changes of the table are one.
    pub fn begin(&mut self) {
        self.words.begin();
    }

    /// Ends the transaction; `applied` messages of the journal are applied with it.
    pub fn commit(&mut self, applied: usize) {
        self.words.commit(applied);
    }

    /// Room for messages, to be read straight into. An entry counts while its event byte is not 0.
    pub fn journal(&self) -> *mut Message {
        // 64 messages of 32 bytes fit between the journal and the intent.
        self.words.at(JOURNAL).cast()
    }

    /// The journal is empty again: all its messages are applied.
    pub fn clear_journal(&self, messages: usize) {
        // By its place in the journal: the next message to come there may be another FORK.
        self.forked();
        for i in 0..messages {
            // SAFETY: the journal has room for JOURNAL_MESSAGES.
            unsafe { self.journal().add(i).cast::<u8>().write_volatile(0) };
        }
        // Last: until here a successor skips the applied ones by their number.
        self.words.progress().store(0, Ordering::SeqCst);
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

#[cfg(test)]
mod tests {
    use super::super::layout::{OLDEST, VERSION};
    use super::super::{Record, TableError};
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
        table.set(PageIdx(5), Record::Removed).unwrap();
        table.commit(1);
        table.begin();
        table.set(PageIdx(6), Record::Removed).unwrap();
        let successor = reopened(&table);
        assert_eq!(records(&successor), [(PageIdx(5), Record::Removed)]);
        assert_eq!(successor.unapplied().iter().map(|(i, m)| (*i, m.event)).collect::<Vec<_>>(), [(1, 0x16)]);
        successor.clear_journal(2);
        assert!(reopened(&successor).unapplied().is_empty());
    }

    #[test]
    fn a_child_that_was_made_is_not_half_made_when_the_journal_is_empty() {
        let mut table = Table::new(1, 2).unwrap();
        table.begin();
        table.forking(77, 0);
        assert_eq!(reopened(&table).half_forked(), Some(77));
        table.commit(1);
        let successor = reopened(&table);
        assert_eq!(successor.half_forked(), None);
        successor.clear_journal(super::super::JOURNAL_MESSAGES);
        assert_eq!(
            reopened(&successor).half_forked(),
            None,
            "the next annexd would make it again, and drop what it has"
        );
    }

    #[test]
    fn a_table_of_the_version_before_is_taken_over_unless_its_window_is_open() {
        let mut table = Table::new(1, 2).unwrap();
        table.set(PageIdx(5), Record::Evicted(SlotIdx(9))).unwrap();
        table.words.write(8, OLDEST);
        let successor = reopened(&table);
        assert_eq!((successor.words.read(8), records(&successor)), (VERSION, records(&table)));

        table.words.write(8, OLDEST);
        table.begin();
        table.save_window(&[0, 0, 0, 0, 0]);
        table.commit(1);
        let error = Table::open(nix::unistd::dup(table.fd()).unwrap()).unwrap_err();
        assert!(matches!(error, TableError::Version(OLDEST)), "{error}");
        assert_eq!(table.words.read(8), OLDEST);
    }

    #[test]
    fn a_table_of_another_version_is_refused_and_left_alone() {
        let table = Table::new(1, 2).unwrap();
        let other = VERSION + 1;
        table.words.write(8, other);
        let error = Table::open(nix::unistd::dup(table.fd()).unwrap()).unwrap_err();
        assert!(matches!(error, TableError::Version(v) if v == other), "{error}");
        assert_eq!(table.words.read(8), other);
    }
}
