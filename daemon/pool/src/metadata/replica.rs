//! One copy of an extent, and those of one extent together, as values. What becomes of them is in
//! [`replicas`](crate::metadata::replicas).

use annex_shared::ids::{DonorId, Incarnation, Rkey, SlabId};

/// Places for replicas in an extent: those configured, at most four, and room for those on their
/// way in or out.
pub(crate) const REPLICA_ENTRIES: usize = 6;

const GENERATIONS: u32 = 1 << 12;

/// What a replica is good for.
///
/// ```text
///            added                     filled
///  unused ─────────────▶ syncing ────────────────────▶ live
///    ▲                    ▲ │ ▲       fell behind       │ │
///    │ removed            │ │ └─────────────────────────┘ │
///    │             resync │ │ out of reach                │ out of reach, or a write failed
///    │                    │ ▼                             │
///    └── any state       stale ◀──────────────────────────┘
///
///  any state ──▶ lost: the entry is free for another replica, as an unused one is
///  backup ◀──▶ syncing, live: a backup while some donor's replica is live, written while none is
///  backup ◀──▶ stale: as above
/// ```
///
/// *Draining* is no state but a mark of the coordinator's on any of them (`coordinator::book`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ReplicaState {
    /// The entry was never used, or its replica was removed after its bytes were copied elsewhere.
    Unused,
    /// It has every write that was reported done. Read and written.
    Live,
    /// Never read again. The entry is free for another replica.
    Lost,
    /// Neither read nor written. Its bytes may come back. What it misses is marked.
    Stale,
    /// Written, and read only while nobody is live, for what it has. What it lacks is marked and
    /// being copied.
    Syncing,
    /// A copy in the spill file that no lane writes. Each write marks what it misses, and the
    /// repair thread copies that from the donor, again and again. What is not marked may be read
    /// when no live replica can be.
    Backup,
}

impl ReplicaState {
    /// Its bytes count for something.
    pub fn is_kept(self) -> bool {
        self.is_there() || self == ReplicaState::Stale
    }

    /// As far as is known its donor can be reached.
    pub fn is_there(self) -> bool {
        self.is_written() || self == ReplicaState::Backup
    }

    /// The filler copies to it what it lacks.
    pub fn is_filled(self) -> bool {
        matches!(self, ReplicaState::Syncing | ReplicaState::Backup)
    }

    /// It takes every write.
    pub fn is_written(self) -> bool {
        matches!(self, ReplicaState::Live | ReplicaState::Syncing)
    }

    pub fn name(self) -> &'static str {
        match self {
            ReplicaState::Unused => "unused",
            ReplicaState::Live => "live",
            ReplicaState::Lost => "lost",
            ReplicaState::Stale => "stale",
            ReplicaState::Syncing => "syncing",
            ReplicaState::Backup => "backup",
        }
    }
}

/// One copy of an extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Replica {
    pub donor: DonorId,
    pub state: ReplicaState,
    pub generation: u16,
    pub slab: SlabId,
    pub incarnation: Incarnation,
    pub rkey: Rkey,
}

impl Replica {
    /// A new extent's replica; its entry gives it the generation.
    pub fn live(donor: DonorId, slab: SlabId, incarnation: Incarnation, rkey: Rkey) -> Replica {
        Replica { donor, state: ReplicaState::Live, generation: 0, slab, incarnation, rkey }
    }

    /// As the extent table has it, but for the fields behind the word.
    pub fn word(&self) -> u32 {
        let state = match self.state {
            ReplicaState::Unused => 0,
            ReplicaState::Live => 1,
            ReplicaState::Lost => 2,
            ReplicaState::Stale => 3,
            ReplicaState::Syncing => 4,
            ReplicaState::Backup => 5,
        };
        u32::from(self.donor.0) | state << 16 | u32::from(self.generation) << 20
    }

    pub fn of_word(word: u32) -> Replica {
        let state = match word >> 16 & 0xf {
            1 => ReplicaState::Live,
            2 => ReplicaState::Lost,
            3 => ReplicaState::Stale,
            4 => ReplicaState::Syncing,
            5 => ReplicaState::Backup,
            _ => ReplicaState::Unused,
        };
        let generation = (word >> 20) as u16;
        Replica {
            donor: DonorId(word as u16),
            state,
            generation,
            slab: SlabId(0),
            incarnation: Incarnation(0),
            rkey: Rkey(0),
        }
    }

    pub fn next_generation(self) -> u16 {
        ((u32::from(self.generation) + 1) % GENERATIONS) as u16
    }
}

/// The replicas of one extent, by value: small enough to copy on the fault path.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Replicas {
    pub items: [Replica; REPLICA_ENTRIES],
}

impl Replicas {
    /// Every entry that was used, with its number.
    pub fn iter(&self) -> impl Iterator<Item = (u8, &Replica)> {
        (0..).zip(&self.items).filter(|(_, r)| r.state != ReplicaState::Unused)
    }

    /// The replica in an entry that was used.
    pub fn nth(&self, index: u8) -> Option<&Replica> {
        self.items.get(usize::from(index)).filter(|r| r.state != ReplicaState::Unused)
    }

    pub fn live(&self) -> usize {
        self.iter().filter(|(_, r)| r.state == ReplicaState::Live).count()
    }

    /// Some bytes are there, or may come back.
    pub fn is_kept(&self) -> bool {
        self.items.iter().any(|r| r.state.is_kept())
    }

    pub fn has(&self, state: ReplicaState) -> bool {
        self.items.iter().any(|r| r.state == state)
    }
}
