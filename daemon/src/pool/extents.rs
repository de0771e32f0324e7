//! The extent table: where the replicas of every extent lie. A memfd, so that it outlives annexd.
//!
//! # Layout, version 1 (little-endian, offsets in bytes)
//! ```text
//! 0        magic "annexext"                       8
//! 8        version = 1                            u32
//! 12       slots per extent, 0 = not known yet    u32   (a power of two)
//! 16       donor entries                          u32   = 256
//! 20       extent entries                         u32   = 65536
//! 24       client id                              u64
//! 32       extent entries ever used               u32   (those from here on read as free without being touched)
//! 4096     donor entries, 256 bytes each:
//!            +0 bytes of the address, 0 = unused   u32
//!            +8 the address, padded with zeros     240
//! 69632    extent entries, 128 bytes each:
//!            +0 state: 0 free, 1 live, 2 returning u32
//!            +4 replicas                           u32   1..=4
//!            +8 unused                             8
//!            +16 replica entries, 24 bytes each:
//!               +0 donor (low 16 bits) | state << 16 (0 none, 1 live, 2 lost)   u32
//!               +4 slab                            u32
//!               +8 agent's incarnation             u64
//!               +16 rkey                           u64
//! ```
//!
//! # Order of updates
//! - *A donor's entry* is written before any replica names it: address first, its length last.
//! - *A new extent*: the number of entries used first if it grows, then its replicas, then the count, then state `live` with release ordering. Killed before: the entry is free, and the
//!   slabs are found in the agents' `held` lists as nobody's and given back.
//! - *A lost replica*: one store turns `live` into `lost`. Nothing ever turns it back. It happens before any write is reported done
//!   that the replica did not take, so that a reader never trusts a replica that missed a write.
//! - *A returned extent*: state `returning`, then its slot-table pages are punched out, then the slabs are given back, then state
//!   `free`. `returning` found at a take-over counts as free. No slot of it is in use at that time.
//!
//! The keeper alone writes, except for `lost`, which a lane may store too. Everybody reads without locks.

use super::config::MAX_REPLICAS;
use super::mapped::{MapError, Mapped};
use annex_shared::ids::{ClientId, DonorId, ExtentId, Incarnation, Rkey, SlabId, SlotIdx};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

const MAGIC: u64 = u64::from_le_bytes(*b"annexext");
const VERSION: u32 = 1;
const DONORS: usize = 256;
const DONOR_AT: usize = 4096;
const DONOR_LEN: usize = 256;
const EXTENT_AT: usize = DONOR_AT + DONORS * DONOR_LEN;
const EXTENT_LEN: usize = 128;
const REPLICA_AT: usize = 16;
const REPLICA_LEN: usize = 24;
const LEN: usize = EXTENT_AT + MAX_EXTENTS * EXTENT_LEN;

const FREE: u32 = 0;
const LIVE: u32 = 1;
const RETURNING: u32 = 2;

/// The most extents a pool can have.
pub(super) const MAX_EXTENTS: usize = 65536;
/// Slot numbers have this many bits.
pub(super) const SLOT_BITS: u32 = 30;

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
}

/// Whether a replica may be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReplicaState {
    Live,
    /// Missed a write or is gone: never read again.
    Lost,
}

/// One copy of an extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Replica {
    pub donor: DonorId,
    pub state: ReplicaState,
    pub slab: SlabId,
    pub incarnation: Incarnation,
    pub rkey: Rkey,
}

/// The replicas of one extent, by value: small enough to copy on the fault path.
#[derive(Clone, Copy, Debug)]
pub(super) struct Replicas {
    items: [Replica; MAX_REPLICAS],
    count: u8,
}

impl Replicas {
    pub fn iter(&self) -> impl Iterator<Item = (u8, &Replica)> {
        (0..self.count).zip(&self.items)
    }

    /// The replica with this number.
    pub fn nth(&self, replica: u8) -> Option<&Replica> {
        self.items[..usize::from(self.count)].get(usize::from(replica))
    }

    pub fn live(&self) -> usize {
        self.iter().filter(|(_, r)| r.state == ReplicaState::Live).count()
    }
}

/// See the module's header.
#[derive(Debug)]
pub(super) struct ExtentTable {
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

    pub fn open(fd: OwnedFd) -> Result<Self, TableError> {
        let map = Mapped::open("annex-extents", fd)?;
        if map.len() < 4096 || map.u64(0).load(Acquire) != MAGIC {
            return Err(TableError::Magic);
        }
        let version = map.u32(8).load(Relaxed);
        if version != VERSION {
            return Err(TableError::Version(version));
        }
        if map.len() != LEN {
            return Err(TableError::Damaged("its length is not the layout's"));
        }
        let table = ExtentTable { map };
        let per_extent = table.map.u32(12).load(Relaxed);
        if per_extent != 0 && !per_extent.is_power_of_two() {
            return Err(TableError::Damaged("its slots per extent are not a power of two"));
        }
        for extent in table.ids().filter(|e| table.field(*e, 0).load(Relaxed) == RETURNING) {
            table.field(extent, 0).store(FREE, Relaxed);
        }
        Ok(table)
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

    /// The extent of a slot and the slot's place in it; `None` if the number can't be one.
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

    /// The entry of the donor with this address, made if there is none. `None` if the table is full.
    pub fn donor(&self, address: &str) -> Option<DonorId> {
        if let Some(known) = self.donors().find(|(_, a)| a == address) {
            return Some(known.0);
        }
        let free = (0..DONORS).find(|i| self.map.u32(DONOR_AT + i * DONOR_LEN).load(Relaxed) == 0)?;
        let at = DONOR_AT + free * DONOR_LEN;
        for (i, chunk) in address.as_bytes().chunks(8).enumerate() {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.map.u64(at + 8 + i * 8).store(u64::from_le_bytes(word), Relaxed);
        }
        self.map.u32(at).store(address.len() as u32, Release);
        Some(DonorId(free as u16))
    }

    /// All donors ever named, with their addresses.
    pub fn donors(&self) -> impl Iterator<Item = (DonorId, String)> {
        (0..DONORS).filter_map(|i| {
            let at = DONOR_AT + i * DONOR_LEN;
            let len = (self.map.u32(at).load(Acquire) as usize).min(super::config::MAX_ADDRESS);
            let words = (0..len.div_ceil(8)).map(|w| self.map.u64(at + 8 + w * 8).load(Relaxed));
            let bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).take(len).collect();
            (len > 0).then(|| (DonorId(i as u16), String::from_utf8_lossy(&bytes).into_owned()))
        })
    }

    /// Makes a free entry live.
    pub fn publish(&self, extent: ExtentId, replicas: &[Replica]) {
        self.map.u32(32).fetch_max(extent.0 + 1, Relaxed);
        for (i, replica) in replicas.iter().take(MAX_REPLICAS).enumerate() {
            let at = REPLICA_AT + i * REPLICA_LEN;
            self.field(extent, at).store(tag(replica.donor, replica.state), Relaxed);
            self.field(extent, at + 4).store(replica.slab.0, Relaxed);
            self.wide(extent, at + 8).store(replica.incarnation.0, Relaxed);
            self.wide(extent, at + 16).store(replica.rkey.0, Relaxed);
        }
        self.field(extent, 4).store(replicas.len().min(MAX_REPLICAS) as u32, Relaxed);
        self.field(extent, 0).store(LIVE, Release);
    }

    /// Marks an extent as about to be given back.
    pub fn begin_return(&self, extent: ExtentId) {
        self.field(extent, 0).store(RETURNING, Release);
    }

    /// Frees the entry.
    pub fn free(&self, extent: ExtentId) {
        self.field(extent, 0).store(FREE, Release);
    }

    /// Marks a replica as never to be read again. True if it was live.
    pub fn lose(&self, extent: ExtentId, replica: u8) -> bool {
        let word = self.field(extent, REPLICA_AT + usize::from(replica) * REPLICA_LEN);
        let live = word.load(Acquire);
        live >> 16 == 1 && word.compare_exchange(live, (live & 0xffff) | 2 << 16, Release, Relaxed).is_ok()
    }

    /// The replicas of a live extent.
    #[inline]
    pub fn replicas(&self, extent: ExtentId) -> Option<Replicas> {
        if self.field(extent, 0).load(Acquire) != LIVE {
            return None;
        }
        let count = self.field(extent, 4).load(Relaxed).min(MAX_REPLICAS as u32) as u8;
        let items = std::array::from_fn(|i| {
            let at = REPLICA_AT + i * REPLICA_LEN;
            let word = self.field(extent, at).load(Acquire);
            Replica {
                donor: DonorId(word as u16),
                state: if word >> 16 == 1 { ReplicaState::Live } else { ReplicaState::Lost },
                slab: SlabId(self.field(extent, at + 4).load(Relaxed)),
                incarnation: Incarnation(self.wide(extent, at + 8).load(Relaxed)),
                rkey: Rkey(self.wide(extent, at + 16).load(Relaxed)),
            }
        });
        Some(Replicas { items, count })
    }

    /// The live extents.
    pub fn live(&self) -> impl Iterator<Item = (ExtentId, Replicas)> {
        self.ids().filter_map(|e| self.replicas(e).map(|r| (e, r)))
    }

    fn ids(&self) -> impl Iterator<Item = ExtentId> + use<> {
        (0..self.map.u32(32).load(Relaxed).min(self.max_extents())).map(ExtentId)
    }

    #[inline]
    fn field(&self, extent: ExtentId, at: usize) -> &std::sync::atomic::AtomicU32 {
        self.map.u32(EXTENT_AT + extent.0 as usize * EXTENT_LEN + at)
    }

    #[inline]
    fn wide(&self, extent: ExtentId, at: usize) -> &std::sync::atomic::AtomicU64 {
        self.map.u64(EXTENT_AT + extent.0 as usize * EXTENT_LEN + at)
    }
}

fn tag(donor: DonorId, state: ReplicaState) -> u32 {
    u32::from(donor.0) | if state == ReplicaState::Live { 1 << 16 } else { 2 << 16 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replica(donor: u16) -> Replica {
        let state = ReplicaState::Live;
        Replica { donor: DonorId(donor), state, slab: SlabId(3), incarnation: Incarnation(9), rkey: Rkey(77) }
    }

    fn reopened(table: &ExtentTable) -> ExtentTable {
        ExtentTable::open(table.fd().try_clone_to_owned().unwrap()).unwrap()
    }

    #[test]
    fn another_annexd_finds_what_the_last_one_wrote() {
        let table = ExtentTable::create(ClientId(42)).unwrap();
        assert!(table.fix_slots_per_extent(256));
        assert!(!table.fix_slots_per_extent(512));
        let a = table.donor("10.0.0.1:7411").unwrap();
        let b = table.donor("a-rather-long-host-name.example.org:7411").unwrap();
        table.publish(ExtentId(5), &[replica(a.0), replica(b.0)]);
        assert!(table.lose(ExtentId(5), 1));
        assert!(!table.lose(ExtentId(5), 1));

        let next = reopened(&table);
        assert_eq!(next.client(), ClientId(42));
        assert_eq!(next.donor("a-rather-long-host-name.example.org:7411"), Some(b));
        let found: Vec<_> = next.live().collect();
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].1.nth(0), Some(&replica(a.0)));
        assert_eq!(found[0].1.live(), 1);
        assert_eq!(next.locate(SlotIdx(5 * 256 + 7)), Some((ExtentId(5), 7)));
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
    fn foreign_and_newer_state_is_refused_with_words() {
        let foreign = Mapped::create("test", LEN).unwrap();
        let error = ExtentTable::open(foreign.fd().try_clone_to_owned().unwrap()).unwrap_err();
        assert!(matches!(error, TableError::Magic));
        let table = ExtentTable::create(ClientId(1)).unwrap();
        table.map.u32(8).store(9, Relaxed);
        let error = ExtentTable::open(table.fd().try_clone_to_owned().unwrap()).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the pool's saved state has layout version 9, this annexd knows 1: start the version that wrote it"
        );
    }
}
