//! One copy of an extent, and those of one extent together, as values. What becomes of them is in
//! [`replicas`](crate::metadata::replicas).

use annex_shared::ids::{DonorId, Incarnation, Rkey, SlabId};

/// Places for replicas in an extent: those configured, at most four, and room for those on their
/// way in or out.
pub(crate) const PLACES: usize = 6;

const GENERATIONS: u32 = 1 << 12;

/// What a replica is good for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ReplicaState {
    /// The place was never used, or its replica was moved elsewhere.
    Vacant,
    Live,
    Lost,
    Away,
    Joining,
    Trailing,
}

impl ReplicaState {
    /// Its bytes count for something.
    pub fn is_kept(self) -> bool {
        self.is_there() || self == ReplicaState::Away
    }

    /// As far as is known its donor can be reached.
    pub fn is_there(self) -> bool {
        self.is_written() || self == ReplicaState::Trailing
    }

    /// The filler copies to it what it lacks.
    pub fn is_filled(self) -> bool {
        matches!(self, ReplicaState::Joining | ReplicaState::Trailing)
    }

    /// It takes every write.
    pub fn is_written(self) -> bool {
        matches!(self, ReplicaState::Live | ReplicaState::Joining)
    }

    pub fn name(self) -> &'static str {
        match self {
            ReplicaState::Vacant => "vacant",
            ReplicaState::Live => "live",
            ReplicaState::Lost => "lost",
            ReplicaState::Away => "away",
            ReplicaState::Joining => "joining",
            ReplicaState::Trailing => "backup",
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
    /// A new extent's replica; its place gives it the generation.
    pub fn live(donor: DonorId, slab: SlabId, incarnation: Incarnation, rkey: Rkey) -> Replica {
        Replica { donor, state: ReplicaState::Live, generation: 0, slab, incarnation, rkey }
    }

    /// As the extent table has it, but for the fields behind the word.
    pub fn word(&self) -> u32 {
        let state = match self.state {
            ReplicaState::Vacant => 0,
            ReplicaState::Live => 1,
            ReplicaState::Lost => 2,
            ReplicaState::Away => 3,
            ReplicaState::Joining => 4,
            ReplicaState::Trailing => 5,
        };
        u32::from(self.donor.0) | state << 16 | u32::from(self.generation) << 20
    }

    pub fn of_word(word: u32) -> Replica {
        let state = match word >> 16 & 0xf {
            1 => ReplicaState::Live,
            2 => ReplicaState::Lost,
            3 => ReplicaState::Away,
            4 => ReplicaState::Joining,
            5 => ReplicaState::Trailing,
            _ => ReplicaState::Vacant,
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
    pub items: [Replica; PLACES],
}

impl Replicas {
    /// Every place that was used, with its number.
    pub fn iter(&self) -> impl Iterator<Item = (u8, &Replica)> {
        (0..).zip(&self.items).filter(|(_, r)| r.state != ReplicaState::Vacant)
    }

    /// The replica in a place that was used.
    pub fn nth(&self, place: u8) -> Option<&Replica> {
        self.items.get(usize::from(place)).filter(|r| r.state != ReplicaState::Vacant)
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
