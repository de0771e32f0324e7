//! How many references each slot has: four bits each, and what doesn't fit into them on the heap.
//!
//! 0 is free, 1 to 14 are so many, [`MANY`] is 15 and whatever `more` has beyond. Nearly all slots
//! have one or two; a page that hundreds of forked children share has more. What is on the heap
//! dies with annexd, which is no loss: the next one counts all references anew before it uses any
//! (`recount`).
//!
//! Any number of threads count up and down at once. A slot with fewer than 15 references is counted
//! by compare-and-swap on the byte that it shares with its neighbour; one with 15 or more only by
//! who holds the lock of `more`, so that it leaves that state exactly when nothing is left beyond.

use annex_host::mapped::Mapped;
use annex_shared::ids::SlotIdx;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::atomic::AtomicU8;
use std::sync::atomic::Ordering::{AcqRel, Acquire};

const MANY: u8 = 15;

/// The counts that lie in a table from some offset on.
pub(super) struct Counts {
    at: usize,
    more: Mutex<HashMap<SlotIdx, u32>>,
}

/// Where a slot's count is.
#[derive(Clone, Copy)]
struct Cell<'a> {
    byte: &'a AtomicU8,
    shift: u32,
}

impl Cell<'_> {
    fn load(self) -> u8 {
        self.byte.load(Acquire) >> self.shift & 0xf
    }

    /// From one count to another. False: it is no longer what it was taken for.
    fn change(self, from: u8, to: u8) -> bool {
        let put = |byte: u8| (byte >> self.shift & 0xf == from).then(|| byte & !(0xf << self.shift) | to << self.shift);
        self.byte.fetch_update(AcqRel, Acquire, put).is_ok()
    }

    fn store(self, to: u8) {
        // Never refused: every count is what it is taken for.
        let _ = self.byte.fetch_update(AcqRel, Acquire, |byte| Some(byte & !(0xf << self.shift) | to << self.shift));
    }
}

impl Counts {
    pub fn at(at: usize) -> Counts {
        Counts { at, more: Mutex::default() }
    }

    fn cell<'a>(&self, map: &'a Mapped, slot: SlotIdx) -> Cell<'a> {
        Cell { byte: map.u8(self.at + slot.0 as usize / 2), shift: slot.0 % 2 * 4 }
    }

    pub fn is_free(&self, map: &Mapped, slot: SlotIdx) -> bool {
        self.cell(map, slot).load() == 0
    }

    pub fn of(&self, map: &Mapped, slot: SlotIdx) -> u32 {
        match self.cell(map, slot).load() {
            MANY => u32::from(MANY) + self.more.lock().get(&slot).copied().unwrap_or(0),
            few => few.into(),
        }
    }

    /// The first reference to a free slot.
    pub fn begin(&self, map: &Mapped, slot: SlotIdx) {
        self.cell(map, slot).store(1);
    }

    /// Nobody counts this slot meanwhile.
    pub fn set(&self, map: &Mapped, slot: SlotIdx, count: u32) {
        let cell = self.cell(map, slot);
        let few = count.min(MANY.into()) as u8;
        if few == MANY || cell.load() == MANY {
            let mut more = self.more.lock();
            match count.saturating_sub(MANY.into()) {
                0 => more.remove(&slot),
                beyond => more.insert(slot, beyond),
            };
        }
        cell.store(few);
    }

    /// Bytes of memory that the counts take beyond the table.
    pub fn resident(&self) -> u64 {
        // A hash table has a byte of its own for each place.
        (self.more.lock().capacity() * (size_of::<(SlotIdx, u32)>() + 1)) as u64
    }

    /// One more. False, and nothing done, for a free slot.
    pub fn up(&self, map: &Mapped, slot: SlotIdx) -> bool {
        let cell = self.cell(map, slot);
        loop {
            match cell.load() {
                0 => return false,
                MANY => {
                    let mut more = self.more.lock();
                    if cell.load() == MANY {
                        *more.entry(slot).or_default() += 1;
                        return true;
                    }
                }
                few if cell.change(few, few + 1) => return true,
                _ => {}
            }
        }
    }

    /// One less: whether it was the last. `None`, and nothing done, for a free slot.
    pub fn down(&self, map: &Mapped, slot: SlotIdx) -> Option<bool> {
        let cell = self.cell(map, slot);
        loop {
            match cell.load() {
                0 => return None,
                MANY => {
                    let mut more = self.more.lock();
                    if cell.load() != MANY {
                        continue;
                    }
                    match more.get_mut(&slot) {
                        Some(beyond) if *beyond > 1 => *beyond -= 1,
                        Some(_) => drop(more.remove(&slot)),
                        // Nobody else counts it down while we have the lock, and up it can't go
                        // without.
                        None => cell.store(MANY - 1),
                    }
                    return Some(false);
                }
                few if cell.change(few, few - 1) => return Some(few == 1),
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;
    use std::sync::atomic::Ordering::Relaxed;
    use std::time::Duration;

    fn counts() -> (Mapped, Counts) {
        (Mapped::create("test", 1 << 20).unwrap(), Counts::at(4096))
    }

    #[test]
    fn a_slot_with_any_number_of_references_is_freed_with_the_last() {
        let (map, counts) = counts();
        let slot = SlotIdx(7);
        assert!(!counts.up(&map, slot) && counts.down(&map, slot).is_none(), "it is free");
        counts.set(&map, slot, 1);
        assert!((1..70_000).all(|_| counts.up(&map, slot)));
        assert_eq!(counts.of(&map, slot), 70_000);
        assert!((1..70_000).all(|_| counts.down(&map, slot) == Some(false)));
        assert_eq!(counts.down(&map, slot), Some(true));
        assert!(counts.is_free(&map, slot) && counts.more.lock().is_empty());
    }

    #[test]
    fn neighbours_are_counted_from_many_threads_at_once() {
        let (map, counts) = counts();
        let slots = [10, 11, 12, 13].map(SlotIdx);
        slots.iter().zip([1, 13, 14, 16]).for_each(|(slot, count)| counts.set(&map, *slot, count));
        std::thread::scope(|scope| {
            for thread in 0..4u32 {
                let (map, counts) = (&map, &counts);
                scope.spawn(move || {
                    for round in 0..20_000 {
                        let held = 1 + (round + thread) % 5;
                        for slot in slots {
                            (0..held).for_each(|_| assert!(counts.up(map, slot)));
                            (0..held).for_each(|_| assert_eq!(counts.down(map, slot), Some(false)));
                        }
                    }
                });
            }
        });
        assert_eq!(slots.map(|slot| counts.of(&map, slot)), [1, 13, 14, 16]);
    }

    /// What counts while another thread is the last to leave what is beyond four bits must find
    /// that out when it is let in.
    #[test]
    fn a_count_that_has_become_few_while_it_was_waited_for_is_one_of_few() {
        let (map, counts) = counts();
        let slot = SlotIdx(20);
        for (up, comes_to) in [(true, 15), (false, 13)] {
            counts.set(&map, slot, MANY.into());
            let more = counts.more.lock();
            std::thread::scope(|scope| {
                let waits = scope.spawn(|| {
                    if up { assert!(counts.up(&map, slot)) } else { assert_eq!(counts.down(&map, slot), Some(false)) }
                });
                // It has long seen that the slot has many, and waits.
                std::thread::sleep(Duration::from_millis(50));
                assert!(!waits.is_finished());
                counts.cell(&map, slot).store(MANY - 1);
                drop(more);
            });
            assert_eq!((counts.of(&map, slot), counts.more.lock().len()), (comes_to, 0));
        }
    }

    /// The byte is shared: a slot's first reference must not undo what is counted next to it.
    #[test]
    fn a_slot_begins_beside_one_that_is_counted() {
        let (map, counts) = counts();
        let (begun, neighbour) = (SlotIdx(30), SlotIdx(31));
        counts.set(&map, neighbour, 3);
        let is_done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_done.load(Relaxed) {
                    counts.begin(&map, begun);
                    assert_eq!(counts.down(&map, begun), Some(true));
                }
            });
            let counted =
                (0..1_000_000).all(|_| counts.up(&map, neighbour) && counts.down(&map, neighbour) == Some(false));
            is_done.store(true, Relaxed);
            assert!(counted);
        });
        assert_eq!([begun, neighbour].map(|slot| counts.of(&map, slot)), [0, 3]);
    }
}
