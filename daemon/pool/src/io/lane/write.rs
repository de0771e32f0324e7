//! A write's way: every part to every live and syncing replica, again until it is there or the
//! replica is given up.

use super::posting;
use super::state::{ACCESS_REFUSED, LaneState, MAX_OP_PAGES};
use crate::coordinator::news::News;
use crate::error::IoError;
use crate::io::inflight::{Direction, NIL, PartState, Pending, Work};
use crate::io::request::Done;
use crate::metadata::replica::{REPLICA_ENTRIES, Replica};
use crate::metadata::replicas::Took;
use crate::metadata::slots::SlotRun;
use annex_fabric::ErrorKind;
use annex_shared::ids::{ExtentId, RemoteAddr};
use annex_shared::page::PAGE_SIZE;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::fence;
use std::time::{Duration, Instant};

/// A write's trouble on one replica may add up to this before the replica counts as stale.
const WRITE_TROUBLE: u8 = 32;
/// What an error adds to it: eight refusals, eight time-outs, or 32 times swept away by another
/// operation's failure.
const TROUBLE_OWN: u8 = 4;
const TROUBLE_FLUSHED: u8 = 1;
/// A refused write is tried again after this, doubled each time.
const RETRY_AFTER: Duration = Duration::from_millis(1);

pub(super) fn write_part(lane: &mut LaneState, job: u32, run: SlotRun, local: usize, now: Instant) {
    let Some((extent, offset)) = lane.one_extent(run) else { return };
    // SAFETY: the job holds the buffer and nothing was posted on this range yet.
    let pages = unsafe { lane.buffers.arena.bytes_mut(local, run.count as usize * PAGE_SIZE) };
    lane.core.slots.prepare(run, pages);
    // Who fills a replica that is published after this look sees the new tags. See
    // `replicas`.
    fence(SeqCst);
    let Some(part) = new_part(lane, job, extent, run, local) else { return };
    if let Some(replicas) = lane.core.extents.replicas(extent) {
        for (n, replica) in replicas.iter().filter(|(_, r)| r.state.is_written()) {
            post_part(lane, part, n, replica, offset, now);
        }
    }
    settle(lane, part, None);
}

pub(super) fn heal_part(
    lane: &mut LaneState,
    job: u32,
    run: SlotRun,
    local: usize,
    index: u8,
    generation: u16,
    now: Instant,
) {
    let Some((extent, at)) = lane.one_extent(run) else { return };
    let Some(part) = new_part(lane, job, extent, run, local) else { return };
    lane.parts[part].heals = true;
    let replica = lane.core.extents.replica(extent, index);
    if replica.state.is_there() && replica.generation == generation {
        post_part(lane, part, index, &replica, at, now);
    }
    settle(lane, part, None);
}

/// One more operation is counted as pending, for the caller to settle when it has added all:
/// the part must not settle before.
fn new_part(lane: &mut LaneState, job: u32, extent: ExtentId, run: SlotRun, local: usize) -> Option<u32> {
    let Work::Write(work) = &mut lane.jobs[job].work else { return None };
    let part = lane.parts.insert(PartState {
        job,
        next: work.parts,
        extent,
        run,
        local,
        pending: 1,
        to: [None; REPLICA_ENTRIES],
        done: [0; REPLICA_ENTRIES],
        chunks: run.count.div_ceil(MAX_OP_PAGES) as u16,
        unknown: false,
        heals: false,
    })?;
    work.parts = part;
    Some(part)
}

/// Posts all of a part to one replica. `first` is the offset of its first slot in the extent.
fn post_part(lane: &mut LaneState, part: u32, n: u8, replica: &Replica, first: u32, now: Instant) {
    let PartState { job, extent, run, chunks, local, .. } = lane.parts[part];
    lane.parts[part].to[usize::from(n)] = Some(replica.generation);
    for chunk in 0..u32::from(chunks) {
        let at = chunk * MAX_OP_PAGES;
        let pending = Pending {
            direction: Direction::Write,
            job,
            part,
            extent,
            donor: replica.donor,
            index: n,
            generation: replica.generation,
            trouble: 0,
            len: (run.count - at).min(MAX_OP_PAGES) * PAGE_SIZE as u32,
            local: local + at as usize * PAGE_SIZE,
            rkey: replica.rkey,
            addr: RemoteAddr(u64::from(first + at) * PAGE_SIZE as u64),
            time: now,
            next: NIL,
            buf: (0, 0),
            older: NIL,
            newer: NIL,
            is_posted: false,
        };
        // Room was checked for one replica more than configured. If there are still more,
        // settling marks what this one misses.
        let Some(op) = lane.ops.insert(pending) else { return };
        lane.parts[part].pending += 1;
        posting::enqueue(lane, op, now);
    }
}

pub(super) fn write_failed(lane: &mut LaneState, at: u32, kind: ErrorKind, now: Instant) {
    let op = lane.ops[at];
    let trouble = match kind {
        ErrorKind::RemoteAccess => {
            lane.mark_stale(&op, ACCESS_REFUSED);
            WRITE_TROUBLE
        }
        ErrorKind::LocalProtection => {
            if let Work::Write(work) = &mut lane.jobs[op.job].work {
                work.error = Some(IoError::Misuse);
            }
            WRITE_TROUBLE
        }
        ErrorKind::RemoteOperation => TROUBLE_OWN,
        // It had all its time and gave no answer: who waits for the next attempt waits as long
        // again.
        ErrorKind::RetryExceeded if now.saturating_duration_since(op.time) >= lane.core.config.op_timeout.0 => {
            lane.core.tell(News::Hung { donor: op.donor });
            WRITE_TROUBLE
        }
        ErrorKind::RetryExceeded => TROUBLE_OWN,
        ErrorKind::Flushed => TROUBLE_FLUSHED,
    };
    if kind.is_fatal() {
        lane.parts[op.part].unknown = true;
    }
    let trouble = op.trouble.saturating_add(trouble);
    lane.ops[at].trouble = trouble;
    if lane.is_given_up(&op) || trouble >= WRITE_TROUBLE {
        if kind != ErrorKind::LocalProtection {
            lane.mark_stale(&op, "writes to it keep failing");
        }
        lane.ops.remove(at);
        settle(lane, op.part, None);
    } else if kind == ErrorKind::RemoteOperation {
        lane.ops[at].time = now + RETRY_AFTER * (1 << (trouble / TROUBLE_OWN).min(8));
        lane.deferred.push(at);
    } else {
        lane.ends[usize::from(op.donor.0)].waiting.push(&mut lane.ops, at);
    }
}

/// The second look of a write: whoever lacks it is marked. True if a live replica has it.
fn look_again(lane: &LaneState, state: &PartState, took: &Took) -> bool {
    let Some((_, first)) = lane.one_extent(state.run) else { return false };
    let settled = lane.core.extents.settle(state.extent, first, state.run.count, took);
    if settled.fell_behind != 0 {
        lane.core.changed();
        lane.core.tell(News::FellBehind { extent: state.extent, indexes: settled.fell_behind });
    }
    settled.held
}

/// One operation of a part is completed: done on a replica, or given up with it.
pub(super) fn settle(lane: &mut LaneState, part: u32, done_on: Option<u8>) {
    let state = &mut lane.parts[part];
    if let Some(n) = done_on {
        state.done[usize::from(n)] += 1;
    }
    state.pending -= 1;
    if state.pending > 0 {
        return;
    }
    let state = *state;
    let mut took = state.to;
    for (took, done) in took.iter_mut().zip(state.done) {
        *took = took.filter(|_| done == state.chunks);
    }
    let held = if state.heals { took != [None; REPLICA_ENTRIES] } else { look_again(lane, &state, &took) };
    let Work::Write(work) = &mut lane.jobs[state.job].work else { return };
    if !held {
        work.error.get_or_insert(IoError::Lost);
    }
    work.parts_left -= 1;
    if work.parts_left > 0 {
        return;
    }
    let Some(job) = lane.jobs.remove(state.job) else { return };
    let Work::Write(work) = job.work else { return };
    let mut next = work.parts;
    while let Some(part) = lane.parts.remove(next) {
        if work.error.is_some() && !part.heals {
            // SAFETY: all operations of the job are completed, and it still holds the buffer.
            let pages = unsafe { lane.buffers.arena.bytes_mut(part.local, part.run.count as usize * PAGE_SIZE) };
            lane.core.slots.take_back(part.run, pages);
        }
        // A write that was swept away may still reach the donor. Its slots are kept from reuse
        // until it can't any more.
        match part.unknown {
            true if work.error.is_some() && !part.heals => lane.core.tell(News::Discard(part.run)),
            true => lane.core.tell(News::Quarantine(part.run)),
            false => lane.core.release_run(part.run),
        }
        next = part.next;
    }
    lane.finished.push(Done { token: job.token, buf: job.buf, result: work.error.map_or(Ok(()), Err) });
}
