//! What a change does to the records of a space, and how it becomes one transaction.

use crate::events::ambiguous_unmap::AmbiguousUnmap;
use crate::page::{PageIdx, Range};
use crate::space::{Core, Record, Shared, TableFull};

impl Core {
    /// Ends the transaction of a change: the window is saved with it, and what it let go of is
    /// released.
    pub(crate) fn commit(&mut self, applied: usize, shared: &Shared) {
        // What is still to be moved may lie in something else now.
        self.moves.iter_mut().for_each(|moves| moves.give_up());
        self.save_window();
        self.table.commit(applied);
        self.released.drain(..).for_each(|slot| shared.pool.release(slot));
    }

    /// Commits what has become of the window, apart from any change.
    pub(crate) fn keep_window(&mut self, shared: &Shared) {
        self.table.begin();
        let applied = self.table.applied();
        self.commit(applied, shared);
    }

    pub(crate) fn save_window(&self) {
        let words = self.window.save();
        if !words.is_empty() || self.table.has_window() {
            self.table.save_window(&words);
        }
    }

    /// Nothing is evicted from this space any more; what is evicted can still be brought back.
    pub(crate) fn freeze(&mut self) {
        self.frozen = true;
        self.table.freeze();
    }

    pub(crate) fn let_go(&mut self, records: Vec<(PageIdx, Record, u8)>) {
        self.released.extend(records.iter().filter_map(|(_, record, _)| record.slot()));
    }

    /// The program throws away what the range holds.
    pub(crate) fn remove(&mut self, range: Range) {
        self.clear(range);
        if self.set_all(range.0, range.1, Record::Removed).is_err() {
            // What can't be marked must not be evicted; nothing is then.
            self.freeze();
        }
    }

    /// Clears the records of a range.
    pub(crate) fn clear(&mut self, (from, to): Range) {
        self.table.clear(from, to, |slot| self.released.push(slot));
    }

    /// Takes the records of a range out of the table, with their references.
    pub(crate) fn take(&mut self, range: Range) -> Vec<(PageIdx, Record, u8)> {
        let mut taken = Vec::new();
        self.table.walk(range.0, range.1, |page, record| taken.push((page, record, self.table.policy(page))));
        for (page, ..) in &taken {
            let _ = self.table.set(*page, Record::None);
        }
        taken
    }

    /// Takes what leaves a range for another address: what is displaced there, else what the table
    /// has, with what is ambiguous of that.
    pub(crate) fn leave(&mut self, range: Range, to: PageIdx) -> (Vec<(PageIdx, Record, u8)>, Vec<AmbiguousUnmap>) {
        let (mut leaving, rest) = self.window.vacate(range);
        let mut carried = Vec::new();
        for part in rest {
            leaving.extend(self.take(part));
            carried.extend(self.window.carry(part, range.0, to));
        }
        (leaving, carried)
    }

    /// The range is not what it was: nothing is known of it but its records.
    pub(crate) fn forget(&mut self, (from, to): Range) {
        self.regions.cut(from.addr(), to.addr());
        let pinned: Vec<PageIdx> = self.pins.range(from..to).copied().collect();
        for page in pinned {
            self.pins.remove(&page);
        }
    }

    pub(crate) fn set_all(&mut self, from: PageIdx, to: PageIdx, record: Record) -> Result<(), TableFull> {
        for page in (from.0..to.0).map(PageIdx) {
            self.table.set(page, record)?;
        }
        Ok(())
    }
}
