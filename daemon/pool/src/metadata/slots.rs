//! The slot table: for each 4 KiB place of the pool what vouches for the bytes that were last
//! written to it, and how many page records refer to it. A memfd, so that it outlives annexd; and
//! free maps on the heap, recomputable from it.
//!
//! # Layout, version 3 (little-endian)
//! ```text
//! 0           magic "annexslt"                          8
//! 8           key that vouches for pages (see `keys`)   32
//! 40          key that seals pages                      32
//! 72          the version that was drawn last           u64
//! 80          1: pages may be sealed                    u32
//! 4096        references to slot 0, 1, 2, …             2^30 × 4 bits, low half of a byte first
//! 512 MiB +   tag of slot 0, 1, 2, …                    2^30 × u64
//! 8.5 GiB +   version of slot 0, 1, 2, …                2^30 × u64
//! ```
//! Sparse: 8.5 bytes per slot of a leased extent, 16.5 if pages are sealed, nothing for the rest. A
//! slot number's meaning is fixed by the extent table.
//!
//! Version 2 had a CRC32C of 32 bits for each slot, and no keys. [`older`] copies such a table: a
//! tag whose upper half is all ones is a CRC32C, until its slot is written anew.
//!
//! # Meaning of the count
//! 0 is free. `reserve` makes it 1; every further page record that shares the slot (a forked child)
//! and every operation in flight adds one.
//!
//! # Meaning of the version
//! 0: the slot's bytes are not sealed. Else they are, under a number that no other write had: it is
//! drawn, and stands in the table, before anything is encrypted with it. So no kill, no reuse of a
//! slot and no return of an extent makes one come twice.
//!
//! # Order of updates
//! `reserve` takes the free bit, then stores 1. `release` counts down, and whoever reaches 0 sets
//! the free bit, then adds to the extent's free count, last. Killed in between: counts are the
//! truth; the free maps are rebuilt from them, and a slot that no page record names is found by
//! comparing the counts with the page tables. Version and tag are stored before the WRITE is posted
//! and before any page record names the slot.

mod counts;
mod keys;
mod layout;
mod older;

use crate::metadata::extents::{ExtentTable, MAX_EXTENTS, SLOT_BITS, TableError};
use annex_host::failpoint::failpoint;
use annex_host::mapped::Mapped;
use annex_shared::ids::{ExtentId, SlotIdx};
use annex_shared::page::{PAGE_SIZE, checksum};
use aws_lc_rs::rand;
use counts::Counts;
use keys::PageKeys;
use layout::{COUNTS_AT, DRAWN_AT, IS_CRC, KEY, LEN, MAGIC, SEALED_AT, SEALING_KEY_AT, SLOTS};
use layout::{TAGS_AT, VERSIONS_AT, VOUCHING_KEY_AT};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64};

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
    keys: PageKeys,
    /// Whether what is written from now on is sealed.
    seals: bool,
    /// Whether anything that is in the pool may be sealed.
    has_sealed: bool,
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
    pub fn create() -> Result<Self, TableError> {
        let map = Mapped::create("annex-slots", LEN)?;
        for at in (VOUCHING_KEY_AT..VOUCHING_KEY_AT + 2 * KEY).step_by(8) {
            let mut random = [0; 8];
            rand::fill(&mut random).map_err(|_| TableError::Random)?;
            map.u64(at).store(u64::from_ne_bytes(random), Relaxed);
        }
        map.u64(0).store(MAGIC, Release);
        Ok(Self::from_map(map))
    }

    /// Maps an existing table, or a copy of it if it is of version 2.
    pub fn open(fd: OwnedFd) -> Result<Self, TableError> {
        let map = Mapped::open("annex-slots", fd)?;
        match map.size() {
            LEN if map.u64(0).load(Acquire) == MAGIC => Ok(Self::from_map(map)),
            older::LEN => {
                let table = Self::create()?;
                older::copy(&map, &table.map);
                Ok(table)
            }
            _ => Err(TableError::Damaged("its slot table is of no layout that this annexd knows")),
        }
    }

    fn from_map(map: Mapped) -> Self {
        let key = |at: usize| {
            let mut key = [0; KEY];
            for (i, word) in key.chunks_exact_mut(8).enumerate() {
                word.copy_from_slice(&map.u64(at + i * 8).load(Relaxed).to_ne_bytes());
            }
            key
        };
        let keys = PageKeys::new(&key(VOUCHING_KEY_AT), &key(SEALING_KEY_AT));
        let free = (0..MAX_EXTENTS / CHUNK).map(|_| OnceLock::new()).collect();
        let has_sealed = map.u32(SEALED_AT).load(Relaxed) != 0;
        SlotTable { map, counts: Counts::at(COUNTS_AT), keys, seals: false, has_sealed, free }
    }

    /// Whether pages are sealed that are written from now on.
    pub fn set_sealing(&mut self, seals: bool) {
        self.seals = seals;
        if seals {
            self.has_sealed = true;
            self.map.u32(SEALED_AT).store(1, Release);
        }
    }

    pub fn seals(&self) -> bool {
        self.seals
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

    /// Rebuilds an extent's free map from the counts (all free, for a new extent). Its tags
    /// take memory as its slots are used: an extent that is held ready takes a 17th of what a full
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

    /// Makes pages ready to be written to a run: seals them if pages are sealed, and vouches for
    /// them as they are then. Whoever reads one of these slots from now on is content with nothing
    /// else.
    pub fn prepare(&self, run: SlotRun, pages: &mut [u8]) {
        let drawn = self.seals.then(|| self.draw(run.count));
        failpoint("versions-drawn");
        for ((slot, page), i) in run.slots().zip(pages.chunks_exact_mut(PAGE_SIZE)).zip(0..) {
            let version = drawn.map_or(0, |first| first + i);
            if self.has_sealed {
                self.version(slot).store(version, Relaxed);
            }
            if version != 0 {
                self.keys.turn(version, page);
                failpoint("page-sealed");
            }
            self.tag(slot).store(self.keys.tag(version, page), Release);
        }
    }

    /// Whether these bytes are those that were last written to a slot, as they lie on donors.
    #[inline]
    pub fn is_right(&self, slot: SlotIdx, bytes: &[u8]) -> bool {
        self.is_right_under(self.version_of(slot), slot, bytes)
    }

    /// Opens what a donor gave for a slot. False, and nothing done: that is not what was last
    /// written to it.
    #[inline]
    pub fn open_page(&self, slot: SlotIdx, page: &mut [u8]) -> bool {
        let version = self.version_of(slot);
        let is_right = self.is_right_under(version, slot, page);
        if is_right && version != 0 {
            self.keys.turn(version, page);
        }
        is_right
    }

    /// Whether a page is what was last written to a slot.
    pub fn holds(&self, slot: SlotIdx, page: &[u8]) -> bool {
        let version = self.version_of(slot);
        if version == 0 {
            return self.is_right_under(version, slot, page);
        }
        let mut sealed = [0; PAGE_SIZE];
        sealed.copy_from_slice(page);
        self.keys.turn(version, &mut sealed);
        self.is_right_under(version, slot, &sealed)
    }

    /// Undoes what [`SlotTable::prepare`] did to pages: they are as they were given.
    pub fn take_back(&self, run: SlotRun, pages: &mut [u8]) {
        for (slot, page) in run.slots().zip(pages.chunks_exact_mut(PAGE_SIZE)) {
            match self.version_of(slot) {
                0 => {}
                version => self.keys.turn(version, page),
            }
        }
    }

    /// Whether a slot's bytes can be read only as a whole.
    #[inline]
    pub fn is_sealed(&self, slot: SlotIdx) -> bool {
        self.version_of(slot) != 0
    }

    /// The tag is of one version: of two that are mixed up by a write nothing is right.
    #[inline]
    fn is_right_under(&self, version: u64, slot: SlotIdx, bytes: &[u8]) -> bool {
        let tag = self.tag(slot).load(Acquire);
        if tag & IS_CRC == IS_CRC {
            return version == 0 && checksum(bytes) == tag as u32;
        }
        self.keys.tag(version, bytes) == tag
    }

    /// The first of so many versions that nobody has drawn yet.
    fn draw(&self, count: u32) -> u64 {
        self.map.u64(DRAWN_AT).fetch_add(count.into(), Relaxed) + 1
    }

    /// 0 without a look, and without memory for it, while no page was ever sealed.
    #[inline]
    fn version_of(&self, slot: SlotIdx) -> u64 {
        if self.has_sealed { self.version(slot).load(Acquire) } else { 0 }
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

    /// Where an extent's counts, tags and versions lie: (offset, length) of each.
    fn ranges(extent: ExtentId, slots: u32) -> [(usize, usize); 3] {
        let (first, slots) = (extent.0 as usize * slots as usize, slots as usize);
        let words = |at| (at + first * 8, slots * 8);
        [(COUNTS_AT + first / 2, slots / 2), words(TAGS_AT), words(VERSIONS_AT)]
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
    fn tag(&self, slot: SlotIdx) -> &AtomicU64 {
        self.map.u64(TAGS_AT + (slot.0 as usize & (SLOTS - 1)) * 8)
    }

    #[inline]
    fn version(&self, slot: SlotIdx) -> &AtomicU64 {
        self.map.u64(VERSIONS_AT + (slot.0 as usize & (SLOTS - 1)) * 8)
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
mod tests;
