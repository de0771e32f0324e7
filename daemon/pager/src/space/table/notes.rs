//! What a successor must know of work under way that no record shows: installs, forks, suspects,
//! the window.

use super::layout::{
    CHANGES, FORKING, INHERITED, INSTALL, SUSPECT_RANGES, SUSPECTS, WINDOW, WINDOW_ROOM, WINDOW_WORDS,
};
use super::records::Table;
use crate::page::PageIdx;

impl Table {
    /// Notes that these pages are about to be installed, until [`Table::installed`].
    pub fn installing(&self, first: PageIdx, pages: u64) {
        self.words.write_u64(INSTALL, first.0);
        self.words.write(INSTALL + 8, pages as u32);
    }

    pub fn installed(&self) {
        self.words.write(INSTALL + 8, 0);
    }

    /// Pages whose install was under way when their annexd ended: those that are evicted by their
    /// records may be there.
    pub fn half_installed(&self) -> impl Iterator<Item = PageIdx> + use<> {
        let first = self.words.read_u64(INSTALL);
        let pages = u64::from(self.words.read(INSTALL + 8));
        (first..first + pages).map(PageIdx)
    }

    /// Notes which child is being made of the FORK in the journal's place `index`.
    pub fn forking(&self, child: u64, index: usize) {
        // Outside the transaction: a successor that undoes it must find the half-made child.
        self.words.put(FORKING + 8, 0);
        self.words.put(FORKING, child as u32);
        self.words.put(FORKING + 4, (child >> 32) as u32);
        self.words.put(FORKING + 8, index as u32 + 1);
    }

    /// The child is made, and the FORK applied.
    pub fn forked(&self) {
        self.words.put(FORKING + 8, 0);
    }

    /// The child that was being made of the first message that is still to be applied.
    pub fn half_forked(&self) -> Option<u64> {
        let index = self.words.read(FORKING + 8);
        (index != 0 && index as usize == self.applied() + 1).then(|| self.words.read_u64(FORKING))
    }

    /// How many changes have been applied.
    pub fn changes(&self) -> u64 {
        self.words.read_u64(CHANGES)
    }

    /// Notes the suspects (see `space`), as ranges of first page and length. False: more than there
    /// is room for.
    pub fn note_suspects(&self, ranges: &[(PageIdx, u32)]) -> bool {
        self.words.write(SUSPECTS, 0);
        for (i, (first, pages)) in ranges.iter().take(SUSPECT_RANGES).enumerate() {
            self.words.write_u64(SUSPECTS + 8 + i * 16, first.0);
            self.words.write(SUSPECTS + 16 + i * 16, *pages);
        }
        self.words.write(SUSPECTS, ranges.len().min(SUSPECT_RANGES) as u32);
        ranges.len() <= SUSPECT_RANGES
    }

    pub fn suspects(&self) -> impl Iterator<Item = PageIdx> + '_ {
        let ranges = (0..(self.words.read(SUSPECTS) as usize).min(SUSPECT_RANGES)).map(|i| SUSPECTS + 8 + i * 16);
        ranges.flat_map(|at| {
            let first = self.words.read_u64(at);
            (first..first + u64::from(self.words.read(at + 8))).map(PageIdx)
        })
    }

    /// Numbers the change that is being applied; part of its transaction, so that it has the same
    /// number when it is applied again.
    pub fn count_change(&self) -> u64 {
        let number = self.words.read_u64(CHANGES) + 1;
        self.words.write_u64(CHANGES, number);
        number
    }

    /// Whether this space has what its parent, or one of that's, had changed before the fork.
    pub fn has_inherited_from(&self, ancestor: u64) -> bool {
        self.words.read_u64(INHERITED) == ancestor
    }

    pub fn inherit_from(&self, ancestor: u64) {
        self.words.write_u64(INHERITED, ancestor);
    }

    /// Saves the window; part of the transaction.
    pub fn save_window(&self, words: &[u32]) {
        let fits = words.len() <= WINDOW_ROOM;
        for (i, word) in words.iter().enumerate().take_while(|_| fits) {
            self.words.write(WINDOW + i * 4, *word);
        }
        self.words.write(WINDOW_WORDS, if fits { words.len() as u32 } else { u32::MAX });
    }

    /// The saved window; `None` if it was too large to be saved.
    pub fn saved_window(&self) -> Option<Vec<u32>> {
        let words = self.words.read(WINDOW_WORDS) as usize;
        (words <= WINDOW_ROOM).then(|| (0..words).map(|i| self.words.read(WINDOW + i * 4)).collect())
    }

    pub fn has_window(&self) -> bool {
        self.words.read(WINDOW_WORDS) != 0
    }
}
