//! Spare pages of a lane's arena, into which a second attempt reads.
//!
//! # Whose bytes are whose
//! A READ that is under way may write its piece of the arena at any time until it completes. So a
//! piece is given to the lane's owner, or to anybody else, only when no operation on it is under
//! way: the one who loses the race keeps its piece until it completes, without a job (an *orphan*),
//! and then the piece goes back to the free list. If the winner read into spare pages, these become
//! the job's buffer, after the pages verified before were copied to them. The lane's arena is
//! larger than its owner asked for by the spare pages, so that the owner never misses any.

use super::state::LaneState;
use crate::core::PoolCore;
use crate::io::inflight::{NIL, Pending, Work};
use annex_shared::page::PAGE_SIZE;

/// Of a lane's pages, so many more are spare: a quarter, and at least and at most these.
const SPARE_PART: u32 = 4;
const SPARE_MIN: u32 = 16;
const SPARE_MAX: u32 = 256;

/// Pages to have in spare for a lane of so many.
pub(super) fn spare_pages(pages: u32, core: &PoolCore) -> u32 {
    let alone = core.config.replicas < 2 && core.spill.is_none();
    if alone { 0 } else { (pages / SPARE_PART).clamp(SPARE_MIN, SPARE_MAX) }
}

/// An attempt that brought nothing: its piece goes back, unless it is the job's own buffer.
pub(super) fn drop_spare(lane: &mut LaneState, op: &Pending) {
    if lane.jobs[op.job].buf.page != op.buf.0 {
        lane.buffers.return_spare(op.buf);
    }
}

/// An attempt brought verified pages: where it put them is the job's buffer from now on, and
/// what else is under way goes on alone.
pub(super) fn adopt(lane: &mut LaneState, op: &Pending) {
    let home = lane.jobs[op.job].buf.page;
    let Work::Read(read) = lane.jobs[op.job].work else { return };
    if home != op.buf.0 {
        move_home(lane, op.job, op.buf.0);
    }
    let mut home_is_busy = false;
    for other in read.attempts.into_iter().filter(|o| *o != NIL) {
        home_is_busy |= lane.ops[other].buf.0 == home;
        orphan(lane, other);
    }
    if home != op.buf.0 && !home_is_busy {
        lane.buffers.return_spare((home, op.buf.1));
    }
}

/// Makes another piece the job's buffer, with the pages that are verified already.
pub(super) fn move_home(lane: &mut LaneState, job: u32, page: u32) {
    let home = lane.jobs[job].buf.page;
    let Work::Read(read) = lane.jobs[job].work else { return };
    let verified = read.at as usize * PAGE_SIZE;
    // SAFETY: operations under way on either piece begin after the verified pages, and the two
    // pieces are disjoint.
    let (from, to) = unsafe {
        let from = lane.buffers.arena.bytes(home as usize * PAGE_SIZE, verified);
        (from, lane.buffers.arena.bytes_mut(page as usize * PAGE_SIZE, verified))
    };
    to.copy_from_slice(from);
    lane.jobs[job].buf.page = page;
}

/// The attempt goes on without its job, and keeps its piece of the arena until it completes.
pub(super) fn orphan(lane: &mut LaneState, op: u32) {
    let job = lane.ops[op].job;
    attempt_completed(lane, job, op);
    lane.ops[op].job = NIL;
}

pub(super) fn attempt_completed(lane: &mut LaneState, job: u32, op: u32) {
    if let Work::Read(read) = &mut lane.jobs[job].work {
        read.remove(op);
    }
}
