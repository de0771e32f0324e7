//! The slot table: for each 4 KiB place of the pool the checksum of what was last written to it and
//! how many page records refer to it. A memfd, so that it outlives annexd; and free maps on the
//! heap, recomputable from it.
//!
//! # Layout, version 2 (little-endian)
//! ```text
//! 0        CRC32C of slot 0, 1, 2, …        2^30 × u32
//! 5.5 GiB  references to slot 0, 1, 2, …    2^30 × 4 bits, low half of a byte first (see `counts`)
//! ```
//! Sparse: 4.5 bytes per slot of a leased extent, nothing for the rest. A slot number's meaning is
//! fixed by the extent table.
//!
//! Version 1 had counts of 16 bits from 4 GiB on. A table in which anything lies there, up to 5.5
//! GiB, is one of version 1: its counts are taken over when it is opened. Those of the last 2^28
//! slots, of a pool of more than 3 TiB, are not told from counts of version 2. All counts of leased
//! extents are made anew before they are believed, but which of these slots were in use is not
//! known then: one may be used again while a WRITE of the annexd before is under way (its checksum
//! tells), others rest or stay unused in vain.
//!
//! # Meaning of the count
//! 0 is free. `reserve` makes it 1; every further page record that shares the slot (a forked child)
//! and every operation in flight adds one.
//!
//! # Order of updates
//! `reserve` takes the free bit, then stores 1. `release` counts down, and whoever reaches 0 sets
//! the free bit, then adds to the extent's free count, last. Killed in between: counts are the
//! truth; the free maps are rebuilt from them, and a slot that no page record names is found by
//! comparing the counts with the page tables. The checksum is stored before the WRITE is posted and
//! before any page record names the slot.

mod counts;

use crate::metadata::extents::{ExtentTable, MAX_EXTENTS, SLOT_BITS};
use annex_host::mapped::{MapError, Mapped};
use annex_shared::ids::{ExtentId, SlotIdx};
use counts::Counts;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64};

const SLOTS: usize = 1 << SLOT_BITS;
const LEN: usize = SLOTS * 6;
const COUNTS_AT: usize = LEN - SLOTS / 2;
/// Where version 1 had its counts.
const OLD_COUNTS_AT: usize = SLOTS * 4;
/// Free maps are allocated for this many extents at a time.
const CHUNK: usize = 256;

/// Contiguous slots within one extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SlotRun {
    pub first: SlotIdx,
    pub count: u32,
}

impl SlotRun {
    /// The slots, in order.
    pub fn slots(self) -> impl Iterator<Item = SlotIdx> {
        (self.first.0..self.first.0.saturating_add(self.count)).map(SlotIdx)
    }
}

/// See the module's header.
pub(crate) struct SlotTable {
    map: Mapped,
    counts: Counts,
    free: Box<[OnceLock<Chunk>]>,
}

/// The free maps of some neighbouring extents, as far as those exist.
type Chunk = Box<[OnceLock<FreeMap>]>;

/// Which slots of one extent are free: a set bit is a free slot.
struct FreeMap {
    words: Box<[AtomicU64]>,
    /// The place after the run that was taken last: the search goes on there, so that it need not
    /// pass over what is full again and again.
    cursor: AtomicU32,
    /// May dip below zero for an instant: a slot can be taken between its bit's setting and this
    /// count's.
    count: AtomicI32,
}

impl SlotTable {
    pub fn create() -> Result<Self, MapError> {
        Ok(Self::from_map(Mapped::create("annex-slots", LEN)?))
    }

    /// Maps an existing table. `None` if the descriptor is not of this layout's size.
    pub fn open(fd: OwnedFd) -> Result<Option<Self>, MapError> {
        let map = Mapped::open("annex-slots", fd)?;
        if map.size() != LEN {
            return Ok(None);
        }
        let table = Self::from_map(map);
        if let Err(error) = table.counts.take_over(&table.map, OLD_COUNTS_AT, COUNTS_AT - OLD_COUNTS_AT) {
            tracing::warn!("failed to give back the memory of the slot table's old counts: {error}");
        }
        Ok(Some(table))
    }

    fn from_map(map: Mapped) -> Self {
        let free = (0..MAX_EXTENTS / CHUNK).map(|_| OnceLock::new()).collect();
        SlotTable { map, counts: Counts::at(COUNTS_AT), free }
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.map.fd()
    }

    /// Bytes of memory in use, free maps and great counts included.
    pub fn resident(&self) -> u64 {
        let chunks = self.free.iter().filter_map(OnceLock::get);
        let maps = chunks.flat_map(|c| c.iter()).filter_map(OnceLock::get);
        let chunk = CHUNK * size_of::<OnceLock<FreeMap>>();
        let chunks = self.free.iter().filter(|c| c.get().is_some()).count() * chunk;
        self.map.resident()
            + self.counts.resident()
            + chunks as u64
            + maps.map(|m| m.words.len() as u64 * 8).sum::<u64>()
    }

    /// Rebuilds an extent's free map from the counts (all free, for a new extent). Its checksums
    /// take memory as its slots are used: an extent that is held ready takes a ninth of what a full
    /// one does.
    pub fn adopt(&self, extent: ExtentId, slots: u32) {
        let map = self.map_of(extent).get_or_init(|| FreeMap {
            cursor: AtomicU32::new(0),
            words: (0..slots.div_ceil(64)).map(|_| AtomicU64::new(0)).collect(),
            count: AtomicI32::new(0),
        });
        let first = extent.0 * slots;
        let mut free = 0;
        for (i, word) in map.words.iter().enumerate() {
            let mut bits = 0;
            for bit in 0..64u32.min(slots - i as u32 * 64) {
                let slot = SlotIdx(first + i as u32 * 64 + bit);
                if self.counts.is_free(&self.map, slot) {
                    bits |= 1 << bit;
                    free += 1;
                }
            }
            word.store(bits, Relaxed);
        }
        map.count.store(free, Release);
    }

    /// Gives the table's memory for an extent back. No slot of it may be in use.
    pub fn abandon(&self, extent: ExtentId, slots: u32) {
        if let Some(map) = self.map_of(extent).get() {
            map.count.store(0, Relaxed);
            map.words.iter().for_each(|w| w.store(0, Relaxed));
        }
        for (at, len) in Self::ranges(extent, slots) {
            if let Err(error) = self.map.punch(at, len) {
                tracing::warn!("failed to give back the slot table's memory of {extent}: {error}");
            }
        }
    }

    /// Free slots of an extent.
    pub fn free_count(&self, extent: ExtentId) -> u32 {
        self.map_of(extent).get().map_or(0, |m| m.count.load(Acquire).max(0) as u32)
    }

    #[inline]
    pub fn checksum(&self, slot: SlotIdx) -> u32 {
        self.crc(slot).load(Acquire)
    }

    #[inline]
    pub fn set_checksum(&self, slot: SlotIdx, crc: u32) {
        self.crc(slot).store(crc, Release);
    }

    /// Which of the 64 slots from `64 * word` on are in use.
    pub fn used_bits(&self, word: u32) -> u64 {
        let used = |bit: u32| u64::from(!self.counts.is_free(&self.map, SlotIdx(word * 64 + bit))) << bit;
        (0..64).map(used).sum()
    }

    /// References to a slot.
    pub fn references(&self, slot: SlotIdx) -> u32 {
        self.counts.of(&self.map, slot)
    }

    /// Puts a count right, while nobody uses the table yet.
    pub fn set_references(&self, slot: SlotIdx, count: u32) {
        self.counts.set(&self.map, slot, count);
    }

    /// One more reference. False, and nothing done, if the slot is free: whoever asks has no right
    /// to it.
    #[inline]
    pub fn retain(&self, slot: SlotIdx) -> bool {
        Self::is_slot(slot) && self.counts.up(&self.map, slot)
    }

    /// One reference less; the last one frees the slot. False, and nothing done, if it was free
    /// already.
    #[inline]
    pub fn release(&self, table: &ExtentTable, slot: SlotIdx) -> bool {
        if !Self::is_slot(slot) {
            return false;
        }
        match self.counts.down(&self.map, slot) {
            None => false,
            Some(false) => true,
            Some(true) => {
                let Some((extent, offset)) = table.locate(slot) else { return false };
                let Some(map) = self.map_of(extent).get() else { return false };
                map.words[offset as usize / 64].fetch_or(1 << (offset % 64), AcqRel);
                map.count.fetch_add(1, Release);
                true
            }
        }
    }

    /// Takes up to `want` contiguous free slots of an extent: the next free run after the one that
    /// was taken last. The caller makes sure that one thread at a time takes slots (any may free
    /// them meanwhile).
    pub fn take(&self, extent: ExtentId, slots: u32, want: u32) -> Option<SlotRun> {
        let map = self.map_of(extent).get()?;
        let cursor = map.cursor.load(Relaxed).min(slots);
        let (at, len) = next_run(&map.words, cursor, slots, want).or_else(|| next_run(&map.words, 0, cursor, want))?;
        for offset in at..at + len {
            map.words[offset as usize / 64].fetch_and(!(1 << (offset % 64)), AcqRel);
            self.counts.begin(&self.map, SlotIdx(extent.0 * slots + offset));
        }
        map.cursor.store(at + len, Relaxed);
        map.count.fetch_sub(len as i32, AcqRel);
        Some(SlotRun { first: SlotIdx(extent.0 * slots + at), count: len })
    }

    /// Where an extent's checksums and counts lie: (offset, length) of each.
    fn ranges(extent: ExtentId, slots: u32) -> [(usize, usize); 2] {
        let (first, slots) = (extent.0 as usize * slots as usize, slots as usize);
        [(first * 4, slots * 4), (COUNTS_AT + first / 2, slots / 2)]
    }

    fn map_of(&self, extent: ExtentId) -> &OnceLock<FreeMap> {
        let i = extent.0 as usize % MAX_EXTENTS;
        let chunk = self.free[i / CHUNK].get_or_init(|| (0..CHUNK).map(|_| OnceLock::new()).collect());
        &chunk[i % CHUNK]
    }

    /// False for numbers that no slot has.
    #[inline]
    fn is_slot(slot: SlotIdx) -> bool {
        slot.0 >> SLOT_BITS == 0
    }

    #[inline]
    fn crc(&self, slot: SlotIdx) -> &AtomicU32 {
        self.map.u32((slot.0 as usize & (SLOTS - 1)) * 4)
    }
}

/// The first run of set bits in `from..to`, cut to `want`: (start, length).
fn next_run(words: &[AtomicU64], from: u32, to: u32, want: u32) -> Option<(u32, u32)> {
    // The bits from `at` on, moved down to bit 0.
    let bits = |at: u32| words[at as usize / 64].load(Acquire) >> (at % 64);
    let mut at = from;
    while at < to && bits(at) == 0 {
        at = (at / 64 + 1) * 64;
    }
    if at >= to || want == 0 {
        return None;
    }
    at += bits(at).trailing_zeros();
    let mut len = 0;
    while at + len < to && len < want {
        let next = at + len;
        let ones = bits(next).trailing_ones();
        len += ones;
        if ones == 0 || ones < 64 - next % 64 {
            break;
        }
    }
    let len = len.min(want).min(to.saturating_sub(at));
    (len > 0).then_some((at, len))
}

#[cfg(test)]
mod tests {
    use super::*;
    use annex_shared::ids::ClientId;
    use proptest::prelude::*;

    const PER_EXTENT: u32 = 256;

    fn tables() -> (ExtentTable, SlotTable) {
        let extents = ExtentTable::create(ClientId(1)).unwrap();
        extents.fix_slots_per_extent(PER_EXTENT);
        let slots = SlotTable::create().unwrap();
        slots.adopt(ExtentId(0), PER_EXTENT);
        slots.adopt(ExtentId(1), PER_EXTENT);
        (extents, slots)
    }

    #[test]
    fn references_from_many_threads_free_the_slot_exactly_once() {
        let (extents, slots) = tables();
        let run = slots.take(ExtentId(1), PER_EXTENT, 16).unwrap();
        std::thread::scope(|s| {
            for _ in 0..4 {
                s.spawn(|| {
                    for _ in 0..2000 {
                        assert!(run.slots().all(|slot| slots.retain(slot)));
                        assert!(run.slots().all(|slot| slots.release(&extents, slot)));
                    }
                });
            }
        });
        assert!(run.slots().all(|slot| slots.references(slot) == 1));
        assert_eq!(slots.free_count(ExtentId(1)), PER_EXTENT - 16);
        assert!(run.slots().all(|slot| slots.release(&extents, slot)));
        assert_eq!(slots.free_count(ExtentId(1)), PER_EXTENT);
        assert!(!slots.release(&extents, run.first), "a free slot was freed again");
        assert!(!slots.retain(run.first), "a free slot was brought back to life");
        let nonsense = SlotIdx(1 << SLOT_BITS | run.first.0);
        assert!(!slots.retain(nonsense) && !slots.release(&extents, nonsense));
    }

    #[test]
    fn a_slot_that_very_many_share_is_free_when_the_last_lets_go() {
        let (extents, slots) = tables();
        let slot = slots.take(ExtentId(0), PER_EXTENT, 1).unwrap().first;
        for _ in 0..70_000 {
            assert!(slots.retain(slot));
        }
        for left in (0..=70_000).rev() {
            assert!(slots.release(&extents, slot));
            assert_eq!(slots.references(slot), left);
        }
        assert_eq!(slots.free_count(ExtentId(0)), PER_EXTENT);
    }

    #[test]
    fn a_table_of_version_1_is_taken_over() {
        let (_, slots) = tables();
        slots.take(ExtentId(1), PER_EXTENT, 3).unwrap();
        let old = Mapped::create("annex-slots", LEN).unwrap();
        for (slot, count) in [(PER_EXTENT, 1), (PER_EXTENT + 1, 900), (PER_EXTENT + 2, 2)] {
            old.u16(OLD_COUNTS_AT + slot as usize * 2).store(count, Relaxed);
            old.u32(slot as usize * 4).store(slot, Relaxed);
        }
        let table = SlotTable::open(old.fd().try_clone_to_owned().unwrap()).unwrap().unwrap();
        table.adopt(ExtentId(1), PER_EXTENT);
        assert_eq!(table.free_count(ExtentId(1)), slots.free_count(ExtentId(1)));
        assert_eq!(table.checksum(SlotIdx(PER_EXTENT + 1)), PER_EXTENT + 1);
    }

    #[test]
    fn an_extent_given_back_takes_no_memory_and_comes_back_free() {
        let extents = ExtentTable::create(ClientId(1)).unwrap();
        extents.fix_slots_per_extent(16384);
        let slots = SlotTable::create().unwrap();
        slots.adopt(ExtentId(3), 16384);
        let ready = slots.resident();
        let run = slots.take(ExtentId(3), 16384, 16384).unwrap();
        run.slots().for_each(|s| slots.set_checksum(s, 7));
        run.slots().for_each(|s| assert!(slots.release(&extents, s)));
        let used = slots.resident();
        slots.abandon(ExtentId(3), 16384);
        assert_eq!([ready, used].map(|bytes| bytes - slots.resident()), [16384 / 2, 16384 * 9 / 2]);
        assert_eq!(slots.free_count(ExtentId(3)), 0);
        slots.adopt(ExtentId(3), 16384);
        assert_eq!(slots.free_count(ExtentId(3)), 16384);
        assert_eq!(slots.checksum(run.first), 0);
    }

    proptest! {
        #[test]
        fn free_maps_recomputed_from_the_counts_are_those_that_were_kept(
            steps in prop::collection::vec((any::<bool>(), 1u32..40, any::<prop::sample::Index>()), 1..60)
        ) {
            let (extents, slots) = tables();
            let mut held: Vec<SlotIdx> = Vec::new();
            for (take, n, which) in steps {
                if take {
                    if let Some(run) = slots.take(ExtentId(1), PER_EXTENT, n) {
                        held.extend(run.slots());
                    }
                } else if !held.is_empty() {
                    let slot = held.swap_remove(which.index(held.len()));
                    prop_assert!(slots.release(&extents, slot));
                }
            }
            let next = SlotTable::open(slots.fd().try_clone_to_owned().unwrap()).unwrap().unwrap();
            next.adopt(ExtentId(1), PER_EXTENT);
            prop_assert_eq!(next.free_count(ExtentId(1)), PER_EXTENT - held.len() as u32);
            prop_assert_eq!(next.free_count(ExtentId(1)), slots.free_count(ExtentId(1)));
            let bits = |t: &SlotTable| -> Vec<u64> {
                t.map_of(ExtentId(1)).get().unwrap().words.iter().map(|w| w.load(Relaxed)).collect()
            };
            prop_assert_eq!(bits(&next), bits(&slots));
        }

        #[test]
        fn the_run_found_is_the_next_one_cut_to_what_is_wanted(
            words in prop::collection::vec(prop_oneof![any::<u64>(), Just(0), Just(u64::MAX)], 1..5),
            want in 1u32..140,
            bounds in any::<(prop::sample::Index, prop::sample::Index)>(),
        ) {
            let bits: Vec<bool> = words.iter().flat_map(|w| (0..64).map(move |b| w >> b & 1 == 1)).collect();
            let (a, b) = (bounds.0.index(bits.len() + 1), bounds.1.index(bits.len() + 1));
            let (from, to) = (a.min(b), a.max(b));
            let start = (from..to).find(|at| bits[*at]);
            let expected = start.map(|at| {
                let len = bits[at..to].iter().take_while(|b| **b).count() as u32;
                (at as u32, len.min(want))
            });
            let words: Vec<AtomicU64> = words.into_iter().map(AtomicU64::new).collect();
            prop_assert_eq!(next_run(&words, from as u32, to as u32, want), expected);
        }
    }
}
