//! The eviction under way, noted so that a successor can bring its pages back.
//!
//! - *Moving*: the stub may have moved any of the pages. A page that is in staging was moved; its
//!   record may still be the old one, unless the page is *settled*: then its record has been made
//!   right since its move was over, and may have changed in any way after that.
//! - *Moved*: the records name the slots, and the bytes are in staging. A page whose bytes go to
//!   another slot than noted first gets the new one noted before its record changes; the slot
//!   before is kept beside it, for whoever inherited that.
//!
//! The slots were reserved by this eviction, so no record outside it names one of them.

use super::layout::{INTENT, INTENT_PAGES};
use super::records::Table;
use crate::page::PageIdx;
use annex_shared::ids::SlotIdx;
use std::sync::atomic::{AtomicU32, Ordering};

const ENTRY: usize = 24;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    Moving,
    Moved,
}

/// A page to be moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Victim {
    pub page: PageIdx,
    pub slot: SlotIdx,
    /// The slot it had first, if it was given a better one.
    pub before: SlotIdx,
    /// Where it is in staging, in pages.
    pub staged_at: u64,
    /// Its move is over, and its record has been made right once.
    pub settled: bool,
}

/// What was under way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Intent {
    pub phase: Phase,
    pub victims: Vec<Victim>,
}

impl Intent {
    /// The page whose bytes belong into each slot that a record may name.
    pub fn slots(&self) -> std::collections::HashMap<SlotIdx, usize> {
        let mut slots: std::collections::HashMap<_, _> =
            self.victims.iter().enumerate().map(|(i, v)| (v.slot, i)).collect();
        // A slot that was given up may have become another page's; if not, somebody may still know
        // it by its first owner.
        for (i, victim) in self.victims.iter().enumerate() {
            slots.entry(victim.before).or_insert(i);
        }
        slots
    }
}

impl Table {
    /// Notes what is about to be moved. In force until [`Table::conclude`].
    pub fn intend(&self, victims: impl IntoIterator<Item = Victim>) {
        let mut pages = 0;
        for (i, victim) in victims.into_iter().take(INTENT_PAGES).enumerate() {
            let at = INTENT + 8 + i * ENTRY;
            self.words.write_u64(at, victim.page.0);
            self.words.write(at + 8, victim.slot.0);
            self.words.write(at + 12, victim.before.0);
            self.words.write(at + 16, victim.staged_at as u32);
            self.words.write(at + 20, victim.settled.into());
            pages = i + 1;
        }
        self.words.write(INTENT + 4, pages as u32);
        self.set_phase(1);
    }

    /// The moves are done and the records say so; the bytes are in staging still.
    pub fn intent_moved(&self) {
        self.set_phase(2);
    }

    /// The n-th page's record says where it is now: from here on messages may change it.
    pub fn intent_settled(&self, nth: usize) {
        self.words.write(INTENT + 8 + nth * ENTRY + 20, 1);
    }

    /// The n-th page's bytes will go to another slot than noted first.
    pub fn intend_better(&self, nth: usize, slot: SlotIdx) {
        self.words.write(INTENT + 8 + nth * ENTRY + 8, slot.0);
    }

    /// The bytes are in the pool, or back in the app.
    pub fn conclude(&self) {
        self.set_phase(0);
    }

    /// The eviction that was under way, if any.
    pub fn intent(&self) -> Option<Intent> {
        let phase = match self.words.read(INTENT) {
            1 => Phase::Moving,
            2 => Phase::Moved,
            _ => return None,
        };
        let pages = (self.words.read(INTENT + 4) as usize).min(INTENT_PAGES);
        let victim = |i: usize| {
            let at = INTENT + 8 + i * ENTRY;
            Victim {
                page: PageIdx(self.words.read_u64(at)),
                slot: SlotIdx(self.words.read(at + 8)),
                before: SlotIdx(self.words.read(at + 12)),
                staged_at: u64::from(self.words.read(at + 16)),
                settled: self.words.read(at + 20) != 0,
            }
        };
        Some(Intent { phase, victims: (0..pages).map(victim).collect() })
    }

    fn set_phase(&self, phase: u32) {
        // SAFETY: in bounds, 4-aligned, and atomic like every word of the table.
        let word = unsafe { &*self.words.at(INTENT).cast::<AtomicU32>() };
        word.store(phase, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn victim(page: u64, slot: u32) -> Victim {
        Victim {
            page: PageIdx(page),
            slot: SlotIdx(slot),
            before: SlotIdx(slot),
            staged_at: page - 100,
            settled: false,
        }
    }

    #[test]
    fn an_intent_is_found_until_it_is_concluded() {
        let table = Table::new(1, 1).unwrap();
        let victims = [victim(100, 7), victim(103, 8)];
        table.intend(victims);
        assert_eq!(table.intent(), Some(Intent { phase: Phase::Moving, victims: victims.to_vec() }));
        table.intent_settled(1);
        assert_eq!(table.intent().unwrap().victims.iter().map(|v| v.settled).collect::<Vec<_>>(), [false, true]);
        table.intent_moved();
        assert_eq!(table.intent().unwrap().phase, Phase::Moved);
        table.conclude();
        assert_eq!(table.intent(), None);
    }

    #[test]
    fn a_slot_given_up_belongs_to_its_new_page_or_else_to_its_first() {
        let table = Table::new(1, 1).unwrap();
        table.intend([victim(100, 7), victim(101, 8), victim(102, 9)]);
        table.intent_moved();
        table.intend_better(1, SlotIdx(7));
        let slots = table.intent().unwrap().slots();
        assert_eq!((slots[&SlotIdx(7)], slots[&SlotIdx(8)], slots[&SlotIdx(9)]), (1, 1, 2));
    }
}
