//! What goes into the book, and what comes out.

use crate::metadata::replica::ReplicaState;
use annex_shared::ids::{DonorId, ExtentId, Incarnation};
use annex_shared::wire::Lease;
use std::time::Duration;

/// How long the spill file may be out of reach before what lies there counts as lost. Disks try for
/// long before they give up, and nobody else has the bytes.
const SPILL_LOST_AFTER: Duration = Duration::from_secs(120);

/// What the book needs to know of the configuration.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    pub replicas: usize,
    /// How long a donor may be out of reach before writes go on without it.
    pub away_after: Duration,
    pub lost_after: Duration,
    /// The same for what no live replica has.
    pub last_copy_lost_after: Duration,
    pub idle_return: Duration,
    /// The most extents to hold.
    pub max_extents: u32,
    pub slots_per_extent: u32,
    /// Move replicas from full donors to empty ones.
    pub rebalance: bool,
    /// The donor that is the spill file.
    pub spill: Option<DonorId>,
}

/// What an extent is good for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Grade {
    /// As many donors have it as there should be.
    Whole,
    /// The spill file has it, since too few donors have.
    LastTier,
    /// It lacks a replica.
    Degraded,
}

/// What the coordinator is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Ask the donor for one slab.
    Lease(DonorId),
    /// Have the agent answer now, not at the next renewal: until it is heard, what is stale there
    /// stays stale.
    Ask(DonorId),
    /// It does not answer at all: give up what is under way there. Or it does again.
    Silent(DonorId, bool),
    /// Give slabs back.
    Return(DonorId, Vec<Lease>),
    /// Make the extent known and let pages be put there.
    Publish(ExtentId, Vec<LeasedReplica>),
    /// Mark the replica as lost.
    MarkLost { extent: ExtentId, index: u8, why: &'static str },
    /// Mark it as stale: neither read nor written until it syncs again.
    MarkStale { extent: ExtentId, index: u8, why: &'static str },
    /// Put a replica without content there, in the state named, and have it filled.
    Add { extent: ExtentId, index: u8, leased: LeasedReplica },
    /// What was stale is written again, or follows as a backup, under this lease; what it missed is
    /// to be copied. Or a backup is written from now on, or the other way round. Then say
    /// [`super::Book::resync_began`].
    Resync { extent: ExtentId, index: u8, leased: LeasedReplica },
    /// If nobody has what this syncing replica lacks, make it live as it is, and say
    /// [`super::Book::synced`].
    Promote { extent: ExtentId, index: u8 },
    /// Its bytes are elsewhere now: forget it unless fewer others are live than there should be,
    /// and say [`super::Book::replica_removed`].
    Remove { extent: ExtentId, index: u8 },
    /// It is as good as that from now on; it was published as whole.
    Grade(ExtentId, Grade),
    /// If it is still empty, take the extent away and say [`super::Book::retired`].
    Retire(ExtentId),
    /// All replicas on the donor are lost, but for those that nobody else has.
    Abandon(DonorId),
    /// Nothing is left on a donor that was to be removed.
    DonorRemoved(DonorId),
}

/// A replica of an extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LeasedReplica {
    pub donor: DonorId,
    pub incarnation: Incarnation,
    pub lease: Lease,
    pub state: ReplicaState,
}

/// What a donor says of itself at its welcome.
#[derive(Clone, Debug)]
pub(crate) struct DonorUp {
    pub incarnation: Incarnation,
    /// The incarnation before, if the bytes of what is held came through.
    pub resumed: Option<Incarnation>,
    pub host: Option<String>,
    pub rack: Option<String>,
    pub held: Vec<Lease>,
    pub free: u32,
}

/// How the pool's room stands.
#[derive(Clone, Debug, Default)]
pub(crate) struct Headroom {
    /// Free pages in whole extents.
    pub free: u64,
    /// Free pages in extents of the last tier.
    pub spilled: u64,
    /// Free pages in degraded extents that have a live replica.
    pub degraded: u64,
    /// Pages asked for and not had.
    pub wanted: u64,
    /// Pages taken in about the last second.
    pub taken: u64,
    /// Extents without a used slot.
    pub empty: Vec<ExtentId>,
}

impl Rules {
    pub fn lost_after(&self, donor: DonorId) -> Duration {
        if self.spill == Some(donor) { self.lost_after.max(SPILL_LOST_AFTER) } else { self.lost_after }
    }
}
