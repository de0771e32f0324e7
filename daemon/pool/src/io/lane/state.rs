//! What a lane has, and what every subject of it needs.

use super::end::End;
use super::timer::Timer;
use crate::coordinator::news::News;
use crate::core::PoolCore;
use crate::io::buffer::Buffers;
use crate::io::inflight::{Job, PartState, Pending, Table};
use crate::io::mailbox::Mailbox;
use crate::io::request::Done;
use crate::metadata::slots::SlotRun;
use annex_fabric::{Completion, MAX_OP_LEN};
use annex_shared::ids::ExtentId;
use annex_shared::page::PAGE_SIZE;
use nix::sys::epoll::Epoll;
use std::sync::Arc;
use std::time::Instant;

/// The most pages one fabric operation moves.
pub(super) const MAX_OP_PAGES: u32 = MAX_OP_LEN / PAGE_SIZE as u32;

/// Why a replica is stale to which an operation was refused. That alone does not mean that the
/// lease is over: a device that is being taken away refuses in the same words. The agent's list of
/// what it holds decides.
pub(super) const ACCESS_REFUSED: &str = "access to it was refused: its agent is asked whether it holds it still";

/// What a lane has. Each subject of the lane works on it.
pub(super) struct LaneState {
    pub id: u32,
    pub core: Arc<PoolCore>,
    pub mailbox: Arc<Mailbox>,
    pub ends: Vec<End>,
    pub epoll: Epoll,
    pub buffers: Buffers,
    pub timer: Timer,
    pub jobs: Table<Job>,
    pub parts: Table<PartState>,
    pub ops: Table<Pending>,
    pub finished: Vec<Done>,
    /// Writes to try again later.
    pub deferred: Vec<u32>,
    /// Reads for which no live replica has an endpoint now.
    pub stalled: Vec<u32>,
    pub scratch: Vec<Completion>,
    pub seen_changes: u64,
    pub idle_check: Instant,
    pub is_served_here: bool,
    pub reads: u32,
    /// Wrong bytes are told to the repair thread (which does not tell itself).
    pub reports: bool,
    pub past_caches: bool,
}

impl LaneState {
    /// The extent that holds all of a run.
    pub fn one_extent(&self, run: SlotRun) -> Option<(ExtentId, u32)> {
        let (extent, offset) = self.core.extents.locate(run.first)?;
        let slots = self.core.extents.slots_per_extent()?;
        (run.count <= slots - offset).then_some((extent, offset))
    }

    /// Retains a whole run or nothing of it.
    pub fn retain(&self, run: SlotRun) -> bool {
        let got = run.slots().take_while(|s| self.core.retain(*s)).count() as u32;
        if got < run.count {
            tracing::error!("an operation on {} + {got}, which is free", run.first);
            self.core.release_run(SlotRun { first: run.first, count: got });
        }
        got == run.count
    }

    /// Nothing is to be posted to it any more.
    pub fn is_given_up(&self, op: &Pending) -> bool {
        let replica = self.core.extents.replica(op.extent, op.index);
        !replica.state.is_there() || replica.generation != op.generation
    }

    pub fn mark_stale(&self, op: &Pending, why: &'static str) {
        if self.core.mark_stale(op.extent, op.index, op.generation) {
            self.core.tell(News::ReplicaStale { extent: op.extent, index: op.index, generation: op.generation, why });
        }
    }
}
