//! What the coordinator is told by the other threads of the pool.

use super::book::DonorUp;
use crate::metadata::slots::SlotRun;
use annex_fabric::Endpoint;
use annex_shared::ids::{DonorId, ExtentId, SlabId};
use annex_shared::wire::Lease;
use std::time::{Duration, Instant};

/// What the coordinator is told.
pub(crate) enum News {
    // From donor threads.
    Up {
        donor: DonorId,
        slots_per_extent: u32,
        ttl: Duration,
        said: DonorUp,
    },
    Down {
        donor: DonorId,
    },
    Closing {
        donor: DonorId,
        grace: Duration,
    },
    Recalled {
        donor: DonorId,
        slabs: Vec<SlabId>,
        deadline: Instant,
    },
    Leased {
        donor: DonorId,
        leases: Vec<Lease>,
    },
    LeaseRefused {
        donor: DonorId,
    },
    Renewed {
        donor: DonorId,
        held: Vec<SlabId>,
        free: u32,
        /// When it was asked: what it said is not older.
        asked: Instant,
    },
    // From lanes.
    LaneOpened(u32),
    EndpointBroken {
        lane: u32,
        donor: DonorId,
        endpoint: Option<Box<dyn Endpoint>>,
    },
    /// One that was replaced; dropped here since closing may take a moment.
    EndpointRetired {
        endpoint: Box<dyn Endpoint>,
    },
    ReplicaStale {
        extent: ExtentId,
        index: u8,
        generation: u16,
        why: &'static str,
    },
    /// These replicas (by bit) were live without a write; they are syncing now.
    FellBehind {
        extent: ExtentId,
        indexes: u8,
    },
    /// Operations are under way there, and nothing came back for long.
    Late {
        donor: DonorId,
    },
    /// An operation had all its time and got no answer.
    Hung {
        donor: DonorId,
    },
    // From the repair thread.
    /// A syncing replica lacks nothing, as far as can be seen.
    Filled {
        extent: ExtentId,
        index: u8,
        generation: u16,
    },
    /// Release these after the quarantine.
    Quarantine(SlotRun),
    /// The same, and what they hold is nobody's: a write that failed, whose bytes its owner has
    /// taken back.
    Discard(SlotRun),
    // From `reserve`.
    Taken,
    Wanted,
    // From the pool.
    DonorAdded {
        donor: DonorId,
    },
    DonorRemoved {
        donor: DonorId,
    },
    Stop {
        give_back: bool,
    },
}
