//! The extent table: where the replicas of every extent lie. A memfd, so that it outlives annexd.
//!
//! # Layout, version 5 (little-endian, offsets in bytes)
//! ```text
//! 0         magic "annexext"                       8
//! 8         version                                u32
//! 12        slots per extent, 0 = not known yet    u32   (a power of two)
//! 16        donor entries                          u32   = 256
//! 20        extent entries                         u32   = 65536
//! 24        client id                              u64
//! 32        extent entries ever used               u32   (those from here on read as free)
//! 4096      donor entries, 256 bytes each:
//!             +0 bytes of the address, 0 = unused   u32
//!             +4 origin: 0 configured, 1 added at run time   u32
//!             +8 the address, padded with zeros     240
//!             +248 the key that its certificate had last (see `KeyMark`), 0 = none   u64
//! 69632     extent entries, 256 bytes each:
//!             +0 state: 0 free, 1 live, 2 returning u32
//!             +16 six entries for replicas, 32 bytes each (see `replicas`):
//!                +0 donor (16 bits) | state << 16 (4 bits) | generation << 20 (12 bits)   u32
//!                +4 slab                            u32
//!                +8 agent's incarnation             u64
//!                +16 rkey                           u64
//!                +24 copying: first offset (u32) | slots << 32   u64
//! 16846848  missed bits of entry 0, one per slot of the pool   2^30 bits
//!           then those of entries 1 to 5
//! ```
//! Version 5 says that the slot table beside it is of version 3, version 4 that it is of version 2.
//! Version 4 becomes version 5 when it is taken over.
//!
//! # Order of updates
//! - *A donor's entry* is written before any replica names it: origin and address first, its length
//!   last. Its key is written when it has said welcome, before anything is leased from it.
//! - *A new extent*: the number of entries used first if it grows, then its replicas, then state
//!   `live` with release ordering. Killed before: the entry is free, and the slabs are found in the
//!   agents' `held` lists as nobody's and given back.
//! - *A replica's changes* are told in `replicas`.
//! - *A returned extent*: state `returning`, then its slot-table pages are punched out, then the
//!   slabs are given back, then state `free`. `returning` found at a take-over counts as free. No
//!   slot of it is in use at that time.
//!
//! The coordinator alone writes, except for what `replicas` allows lanes and the repair thread.
//! Everybody reads without locks.

use crate::metadata::replica::{REPLICA_ENTRIES, Replica, Replicas};
use annex_host::mapped::{MapError, Mapped};
use annex_identity::certificate::KeyId;
use annex_shared::ids::{ClientId, DonorId, ExtentId, Incarnation, SlotIdx};
use annex_shared::wire::Lease;
use std::num::NonZero;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicU64};

pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"annexext");
const VERSION: u32 = 5;
/// The oldest one that is laid out alike.
const ALIKE: u32 = 4;
pub(crate) const DONORS: usize = 256;
pub(crate) const DONOR_AT: usize = 4096;
pub(crate) const DONOR_LEN: usize = 256;
/// Where a donor's entry has the mark of its key.
const KEY_AT: usize = 248;
pub(crate) const EXTENT_AT: usize = DONOR_AT + DONORS * DONOR_LEN;
const EXTENT_LEN: usize = 256;
const REPLICA_AT: usize = 16;
const REPLICA_LEN: usize = 32;
const MISSED_AT: usize = EXTENT_AT + MAX_EXTENTS * EXTENT_LEN;
/// Bytes of one entry's missed bits.
const MISSED_LEN: usize = (1 << SLOT_BITS) / 8;
const LEN: usize = MISSED_AT + REPLICA_ENTRIES * MISSED_LEN;

const FREE: u32 = 0;
pub(crate) const LIVE: u32 = 1;
const RETURNING: u32 = 2;

pub(crate) use annex_shared::api::SPILL;
/// The most extents a pool can have.
pub(crate) const MAX_EXTENTS: usize = 65536;
/// Slot numbers have this many bits.
pub(crate) const SLOT_BITS: u32 = 30;

/// The extent table could not be taken over.
#[derive(Debug, thiserror::Error)]
pub enum TableError {
    #[error(transparent)]
    Map(#[from] MapError),
    #[error("the pool's saved state is not an annex extent table")]
    Magic,
    #[error(
        "the pool's saved state has layout version {0}, this annexd knows {VERSION}: start the version that wrote it"
    )]
    Version(u32),
    #[error("the pool's saved state is damaged: {0}")]
    Damaged(&'static str),
    #[error("the system gave no random numbers for the pool's keys")]
    Random,
}

/// The first eight bytes of a donor's key id: enough to tell its key from all others that a CA has
/// signed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KeyMark(NonZero<u64>);

impl KeyMark {
    pub fn of(key: &KeyId) -> Option<KeyMark> {
        let bytes = key.as_ref().first_chunk()?;
        NonZero::new(u64::from_le_bytes(*bytes)).map(KeyMark)
    }
}

/// The version in a table's head.
fn layout_version(map: &Mapped) -> Result<u32, TableError> {
    if map.size() < 4096 || map.u64(0).load(Acquire) != MAGIC {
        return Err(TableError::Magic);
    }
    Ok(map.u32(8).load(Relaxed))
}

/// See the module's header.
#[derive(Debug)]
pub(crate) struct ExtentTable {
    map: Mapped,
}

impl ExtentTable {
    pub fn create(client: ClientId) -> Result<Self, TableError> {
        let map = Mapped::create("annex-extents", LEN)?;
        map.u32(8).store(VERSION, Relaxed);
        map.u32(16).store(DONORS as u32, Relaxed);
        map.u32(20).store(MAX_EXTENTS as u32, Relaxed);
        map.u64(24).store(client.0, Relaxed);
        map.u64(0).store(MAGIC, Release);
        Ok(ExtentTable { map })
    }

    /// Takes the table of the annexd before over.
    pub fn open(fd: OwnedFd) -> Result<Self, TableError> {
        Self::from_map(Mapped::open("annex-extents", fd)?)
    }

    fn from_map(map: Mapped) -> Result<Self, TableError> {
        let table = match layout_version(&map)? {
            ALIKE..=VERSION if map.size() == LEN => ExtentTable { map },
            ALIKE..=VERSION => return Err(TableError::Damaged("its length is not the layout's")),
            other => return Err(TableError::Version(other)),
        };
        table.map.u32(8).store(VERSION, Relaxed);
        table.recover()?;
        Ok(table)
    }

    /// Puts right what an annexd that was killed left half done. Nobody else uses the table.
    pub(crate) fn recover(&self) -> Result<(), TableError> {
        let per_extent = self.map.u32(12).load(Relaxed);
        if per_extent != 0 && !per_extent.is_power_of_two() {
            return Err(TableError::Damaged("its slots per extent are not a power of two"));
        }
        for extent in self.ids().filter(|e| self.state(*e).load(Relaxed) == RETURNING) {
            self.state(extent).store(FREE, Relaxed);
        }
        self.settle_in();
        Ok(())
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.map.fd()
    }

    pub fn resident(&self) -> u64 {
        self.map.resident()
    }

    pub fn client(&self) -> ClientId {
        ClientId(self.map.u64(24).load(Relaxed))
    }

    /// Fixes the number of slots per extent, once. False if it is fixed to another number already.
    pub fn fix_slots_per_extent(&self, slots: u32) -> bool {
        match self.map.u32(12).compare_exchange(0, slots, Release, Acquire) {
            Ok(_) => true,
            Err(fixed) => fixed == slots,
        }
    }

    /// Slots per extent; `None` until a donor has told its slab size.
    #[inline]
    pub fn slots_per_extent(&self) -> Option<u32> {
        let slots = self.map.u32(12).load(Acquire);
        (slots != 0).then_some(slots)
    }

    /// The extent of a slot and the slot's offset in it; `None` if the number can't be one.
    #[inline]
    pub fn locate(&self, slot: SlotIdx) -> Option<(ExtentId, u32)> {
        let slots = self.map.u32(12).load(Acquire);
        if slots == 0 || slot.0 >> SLOT_BITS != 0 {
            return None;
        }
        let extent = slot.0 >> slots.trailing_zeros();
        ((extent as usize) < MAX_EXTENTS).then_some((ExtentId(extent), slot.0 & (slots - 1)))
    }

    /// How many extents slot numbers can name.
    pub fn max_extents(&self) -> u32 {
        let per_extent = self.slots_per_extent().unwrap_or(1 << 14);
        ((1u64 << SLOT_BITS) / u64::from(per_extent)).min(MAX_EXTENTS as u64) as u32
    }

    /// The entry of the donor with this address, made if there is none. `None` if the table is
    /// full.
    pub fn donor(&self, address: &str, at_run_time: bool) -> Option<DonorId> {
        if let Some(known) = self.donors().find(|(_, a)| a == address) {
            let at = DONOR_AT + usize::from(known.0.0) * DONOR_LEN;
            self.map.u32(at + 4).store(u32::from(at_run_time), Relaxed);
            return Some(known.0);
        }
        let free = (0..DONORS).find(|i| self.map.u32(DONOR_AT + i * DONOR_LEN).load(Relaxed) == 0)?;
        let at = DONOR_AT + free * DONOR_LEN;
        for (i, chunk) in address.as_bytes().chunks(8).enumerate() {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.map.u64(at + 8 + i * 8).store(u64::from_le_bytes(word), Relaxed);
        }
        self.map.u32(at + 4).store(u32::from(at_run_time), Relaxed);
        self.map.u32(at).store(address.len() as u32, Release);
        Some(DonorId(free as u16))
    }

    /// The spill file's entry, made if there is none.
    pub fn spill(&self) -> Option<DonorId> {
        self.donor(SPILL, false)
    }

    /// True for a donor that no configuration file need name.
    pub fn is_added_at_run_time(&self, donor: DonorId) -> bool {
        self.map.u32(DONOR_AT + usize::from(donor.0) * DONOR_LEN + 4).load(Relaxed) == 1
    }

    /// All donors ever named, with their addresses.
    pub fn donors(&self) -> impl Iterator<Item = (DonorId, String)> {
        (0..DONORS).filter_map(|i| {
            let at = DONOR_AT + i * DONOR_LEN;
            let len = (self.map.u32(at).load(Acquire) as usize).min(crate::config::MAX_ADDRESS);
            let words = (0..len.div_ceil(8)).map(|w| self.map.u64(at + 8 + w * 8).load(Relaxed));
            let bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).take(len).collect();
            (len > 0).then(|| (DonorId(i as u16), String::from_utf8_lossy(&bytes).into_owned()))
        })
    }

    /// The key that a donor's certificate has now.
    pub fn set_key(&self, donor: DonorId, key: KeyMark) {
        self.map.u64(DONOR_AT + usize::from(donor.0) * DONOR_LEN + KEY_AT).store(key.0.get(), Relaxed);
    }

    /// The keys of those donors on which something is kept.
    pub fn keys(&self) -> Vec<KeyMark> {
        let key = |(id, _): (DonorId, String)| {
            let word = self.map.u64(DONOR_AT + usize::from(id.0) * DONOR_LEN + KEY_AT).load(Relaxed);
            NonZero::new(word).filter(|_| !self.leases(id).is_empty()).map(KeyMark)
        };
        self.donors().filter_map(key).collect()
    }

    /// What is kept on a donor, with the incarnation it is of.
    pub fn leases(&self, donor: DonorId) -> Vec<(Incarnation, Lease)> {
        let lease = |r: &Replica| (r.incarnation, Lease { slab: r.slab, rkey: r.rkey });
        let kept = |r: &Replica| r.donor == donor && r.state.is_kept();
        let on_it = |r: Replicas| r.iter().filter(|(_, r)| kept(r)).map(|(_, r)| lease(r)).collect::<Vec<_>>();
        self.live().flat_map(|(_, replicas)| on_it(replicas)).collect()
    }

    /// Makes a free entry live, with one replica in each entry from the first on.
    pub fn publish(&self, extent: ExtentId, replicas: &[Replica]) {
        self.map.u32(32).fetch_max(extent.0 + 1, Relaxed);
        for n in 0..REPLICA_ENTRIES as u8 {
            self.found(extent, n, replicas.get(usize::from(n)));
        }
        self.state(extent).store(LIVE, Release);
    }

    /// Marks an extent as about to be given back.
    pub fn begin_return(&self, extent: ExtentId) {
        self.state(extent).store(RETURNING, Release);
    }

    /// Frees the entry.
    pub fn free(&self, extent: ExtentId) {
        self.state(extent).store(FREE, Release);
    }

    #[inline]
    pub fn is_live(&self, extent: ExtentId) -> bool {
        (extent.0 as usize) < MAX_EXTENTS && self.state(extent).load(Acquire) == LIVE
    }

    pub(crate) fn ids(&self) -> impl Iterator<Item = ExtentId> + use<> {
        (0..self.map.u32(32).load(Relaxed).min(self.max_extents())).map(ExtentId)
    }

    #[inline]
    fn state(&self, extent: ExtentId) -> &AtomicU32 {
        self.map.u32(EXTENT_AT + extent.0 as usize * EXTENT_LEN)
    }

    /// A 4-byte field of an entry.
    #[inline]
    pub(crate) fn narrow(&self, extent: ExtentId, index: u8, at: usize) -> &AtomicU32 {
        #[cfg(test)]
        accessed();
        self.map.u32(Self::entry(extent, index) + at)
    }

    /// An 8-byte field of an entry.
    #[inline]
    pub(crate) fn wide(&self, extent: ExtentId, index: u8, at: usize) -> &AtomicU64 {
        #[cfg(test)]
        accessed();
        self.map.u64(Self::entry(extent, index) + at)
    }

    /// 64 missed bits of an entry: those of the slots from `64 * word` on.
    #[inline]
    pub(crate) fn missed_word(&self, index: u8, word: u32) -> &AtomicU64 {
        #[cfg(test)]
        accessed();
        self.map.u64(MISSED_AT + usize::from(index) * MISSED_LEN + word as usize * 8)
    }

    #[inline]
    fn entry(extent: ExtentId, index: u8) -> usize {
        EXTENT_AT + extent.0 as usize * EXTENT_LEN + REPLICA_AT + usize::from(index) * REPLICA_LEN
    }

    /// What an annexd that starts now would find of one extent: a copy, taken over.
    #[cfg(test)]
    pub(crate) fn image(&self, extent: ExtentId) -> ExtentTable {
        let copy = Mapped::create("test", LEN).unwrap();
        let entry = EXTENT_AT + extent.0 as usize * EXTENT_LEN;
        let slots = self.slots_per_extent().unwrap() as usize;
        let bits = |n: usize| MISSED_AT + n * MISSED_LEN + extent.0 as usize * slots / 8;
        let mut ranges = vec![(0, 64), (entry, entry + EXTENT_LEN)];
        ranges.extend((0..REPLICA_ENTRIES).map(|n| (bits(n), bits(n) + slots / 8)));
        for at in ranges.into_iter().flat_map(|(from, to)| (from..to).step_by(8)) {
            copy.u64(at).store(self.map.u64(at).load(Relaxed), Relaxed);
        }
        ExtentTable::from_map(copy).unwrap()
    }

    /// As if it had just been made, for as many slots per extent. It must have named no donor.
    #[cfg(test)]
    pub(crate) fn wipe(&self) {
        let slots = self.slots_per_extent().unwrap() as usize;
        let used = self.ids().count();
        for at in (0..used * EXTENT_LEN).step_by(8) {
            self.map.u64(EXTENT_AT + at).store(0, Relaxed);
        }
        let words = || 0..(used * slots).div_ceil(64) as u32;
        (0..REPLICA_ENTRIES as u8).for_each(|n| words().for_each(|w| self.missed_word(n, w).store(0, Relaxed)));
        self.map.u32(32).store(0, Relaxed);
    }
}

#[cfg(test)]
type Hook = Box<dyn FnMut()>;

#[cfg(test)]
thread_local! {
    static HOOK: std::cell::RefCell<Option<Hook>> = const { std::cell::RefCell::new(None) };
    /// There is a hook: all that an access costs when there is none.
    static IS_HOOKED: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// Has a test look at the table before each access to a replica's fields or bits by this thread.
#[cfg(test)]
pub(crate) fn on_access(hook: Option<Hook>) {
    IS_HOOKED.set(hook.is_some());
    HOOK.set(hook);
}

#[cfg(test)]
#[inline]
fn accessed() {
    if IS_HOOKED.get() {
        run_hook();
    }
}

#[cfg(test)]
#[cold]
fn run_hook() {
    // Taken out while it runs, since it looks at tables itself.
    if let Some(mut hook) = HOOK.take() {
        hook();
        HOOK.set(Some(hook));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metadata::replica::ReplicaState;
    use annex_shared::ids::{Rkey, SlabId};

    fn replica(donor: u16) -> Replica {
        Replica::live(DonorId(donor), SlabId(3), Incarnation(9), Rkey(77))
    }

    impl ExtentTable {
        /// Every word that is not zero, with its offset.
        fn contents(&self) -> Vec<(usize, u64)> {
            let words = self.map.touched(0, LEN).into_iter().flat_map(|page| (page..page + 4096).step_by(8));
            words.map(|at| (at, self.map.u64(at).load(Relaxed))).filter(|(_, word)| *word != 0).collect()
        }
    }

    fn reopened(table: &ExtentTable) -> ExtentTable {
        ExtentTable::open(table.fd().try_clone_to_owned().unwrap()).unwrap()
    }

    #[test]
    fn another_annexd_finds_what_the_last_one_wrote() {
        let table = ExtentTable::create(ClientId(42)).unwrap();
        assert!(table.fix_slots_per_extent(256));
        assert!(!table.fix_slots_per_extent(512));
        let a = table.donor("10.0.0.1:7411", false).unwrap();
        let b = table.donor("a-rather-long-host-name.example.org:7411", true).unwrap();
        table.publish(ExtentId(5), &[replica(a.0), replica(b.0)]);
        let generation = table.replica(ExtentId(5), 1).generation;
        assert!(table.mark_lost(ExtentId(5), 1, generation));
        assert!(!table.mark_lost(ExtentId(5), 1, generation));

        let next = reopened(&table);
        assert_eq!(next.client(), ClientId(42));
        assert!(next.is_added_at_run_time(b) && !next.is_added_at_run_time(a));
        assert_eq!(next.donor("a-rather-long-host-name.example.org:7411", true), Some(b));
        let found: Vec<_> = next.live().collect();
        assert_eq!(found.len(), 1);
        let first = found[0].1.nth(0).unwrap();
        assert_eq!((first.donor, first.slab, first.rkey), (a, SlabId(3), Rkey(77)));
        assert_eq!(found[0].1.live(), 1);
        assert_eq!(found[0].1.nth(1).unwrap().state, ReplicaState::Lost);
        assert_eq!(next.locate(SlotIdx(5 * 256 + 7)), Some((ExtentId(5), 7)));
    }

    /// The simulation's schedules take turns with one table.
    #[test]
    fn nothing_is_left_in_a_wiped_table() {
        let table = ExtentTable::create(ClientId(1)).unwrap();
        table.fix_slots_per_extent(16);
        let before = table.contents();
        table.publish(ExtentId(2), &[replica(0), replica(1)]);
        table.publish(ExtentId(4), &[replica(1)]);
        table.add_replica(ExtentId(2), 5, &replica(2), ReplicaState::Syncing).unwrap();
        table.begin_copy(ExtentId(2), 5, 3, 8, &mut Vec::new());
        table.mark(ExtentId(4), 0, 15, 1);
        table.begin_return(ExtentId(4));
        assert_ne!(table.contents(), before);
        table.wipe();
        assert_eq!(table.contents(), before);
    }

    #[test]
    fn a_kill_in_the_middle_of_a_return_leaves_the_entry_free() {
        let table = ExtentTable::create(ClientId(1)).unwrap();
        table.fix_slots_per_extent(256);
        table.publish(ExtentId(0), &[replica(0)]);
        table.begin_return(ExtentId(0));
        assert!(table.replicas(ExtentId(0)).is_none());
        assert_eq!(reopened(&table).live().count(), 0);
    }

    #[test]
    fn foreign_and_newer_state_is_refused_with_words_and_left_alone() {
        let foreign = Mapped::create("test", LEN).unwrap();
        let error = ExtentTable::from_map(foreign).unwrap_err();
        assert!(matches!(error, TableError::Magic));
        let table = ExtentTable::create(ClientId(1)).unwrap();
        table.fix_slots_per_extent(256);
        table.publish(ExtentId(0), &[replica(0)]);
        table.begin_return(ExtentId(0));
        table.map.u32(8).store(9, Relaxed);
        let error = ExtentTable::open(table.fd().try_clone_to_owned().unwrap()).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the pool's saved state has layout version 9, this annexd knows 5: start the version that wrote it"
        );
        assert_eq!(table.state(ExtentId(0)).load(Relaxed), RETURNING);
    }

    #[test]
    fn a_table_of_version_4_is_of_the_present_one_once_taken_over() {
        let table = ExtentTable::create(ClientId(1)).unwrap();
        table.fix_slots_per_extent(256);
        table.publish(ExtentId(0), &[replica(0)]);
        table.map.u32(8).store(4, Relaxed);
        let next = reopened(&table);
        assert_eq!((next.live().count(), next.map.u32(8).load(Relaxed)), (1, VERSION));
    }
}
