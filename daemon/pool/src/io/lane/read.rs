//! A read's way: choose a replica, verify what it brought, go on from the first page that is not
//! good.

use super::end::End;
use super::state::{ACCESS_REFUSED, LaneState, MAX_OP_PAGES};
use super::{posting, spare};
use crate::error::IoError;
use crate::io::hedging::{Asked, Choice, ReadSource};
use crate::io::inflight::{Direction, NIL, Pending, ReadWork, Work};
use crate::io::request::Done;
use crate::metadata::replica::{REPLICA_ENTRIES, Replica, ReplicaState, Replicas};
use crate::repair::task::Task;
use annex_fabric::ErrorKind;
use annex_shared::ids::{ExtentId, RemoteAddr, SlotIdx};
use annex_shared::page::PAGE_SIZE;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

/// Every so many reads the second-best replica is taken, so that its latency stays known.
const PROBE_EVERY: u32 = 512;
/// Pages on the list of those to heal at most. What does not fit is found by the scrubber.
const MAX_HEALS: u32 = 256;

/// The next attempt of a read, or its end.
pub(super) fn read_on(lane: &mut LaneState, job: u32, now: Instant) {
    let Work::Read(read) = lane.jobs[job].work else { return };
    if read.is_under_way() {
        return;
    }
    if read.at == read.run.count {
        return finish_read(lane, job, Ok(()));
    }
    match attempt(lane, job, &read, now) {
        Choice::Replica(_) => {}
        Choice::Wait => lane.stalled.push(job),
        Choice::None if read.mismatch => finish_read(lane, job, Err(IoError::Corrupt)),
        Choice::None => finish_read(lane, job, Err(IoError::Lost)),
    }
}

/// Starts an attempt on the best replica that has none under way. The second one of a job reads
/// into spare pages.
pub(super) fn attempt(lane: &mut LaneState, job: u32, read: &ReadWork, now: Instant) -> Choice {
    let Some((extent, offset)) = lane.one_extent(read.run) else { return Choice::None };
    let Some(replicas) = lane.core.extents.replicas(extent) else { return Choice::None };
    let busy = read.attempts.map(|op| if op == NIL { None } else { Some(lane.ops[op].index) });
    let asked = Asked { busy, ..read.asked() };
    let filled = filled(lane, extent, &replicas, offset + read.at);
    let open = |(n, r): &(u8, &Replica)| asked.may_ask(*n, r.state, filled[usize::from(*n)]);
    let choice = match choose(lane, &asked, replicas.iter().filter(open)) {
        Choice::Replica(n) => n,
        // What is stale or syncing may be live again soon; the coordinator sees to it that this
        // ends.
        Choice::None if read.only.is_none() && may_come(lane, extent, &replicas, offset + read.at, read.mismatch) => {
            return Choice::Wait;
        }
        other => return other,
    };
    let Some(replica) = replicas.nth(choice) else { return Choice::None };
    let home = (lane.jobs[job].buf.page, lane.jobs[job].buf.pages);
    let buf = match read.is_under_way() {
        false => home,
        true => match lane.buffers.take_spare(home.1) {
            Some(page) => (page, home.1),
            None => return Choice::Wait,
        },
    };
    let pages = (read.run.count - read.at).min(MAX_OP_PAGES);
    // A disk is read by whole pages, and a sealed page is opened as a whole.
    let is_whole = lane.core.is_spill(replica.donor) || lane.core.slots.is_sealed(read.run.first);
    let piece = read.piece.filter(|_| !is_whole);
    let (from, len) = piece.unwrap_or((0, pages * PAGE_SIZE as u32));
    let pending = Pending {
        direction: Direction::Read,
        job,
        part: NIL,
        extent,
        donor: replica.donor,
        index: choice,
        generation: replica.generation,
        trouble: 0,
        len,
        local: (buf.0 + read.at) as usize * PAGE_SIZE + from as usize,
        rkey: replica.rkey,
        addr: RemoteAddr(u64::from(offset + read.at) * PAGE_SIZE as u64 + u64::from(from)),
        time: now,
        next: NIL,
        buf,
        older: NIL,
        newer: NIL,
        is_posted: false,
    };
    let Some(op) = lane.ops.insert(pending) else {
        // The table is full of writes: this read goes on when one of them is done.
        if buf != home {
            lane.buffers.return_spare(buf);
        }
        return Choice::Wait;
    };
    if let Work::Read(read) = &mut lane.jobs[job].work {
        read.add(op);
    }
    posting::enqueue(lane, op, now);
    Choice::Replica(choice)
}

/// Which replicas are those that are being filled, have the slot all the same, and may be
/// asked for it: those in the spill file, and, while nobody is live, all.
fn filled(lane: &LaneState, extent: ExtentId, replicas: &Replicas, at: u32) -> [bool; REPLICA_ENTRIES] {
    let nobody_else = replicas.live() == 0;
    let may_be_asked = |r: &Replica| r.state.is_filled() && (nobody_else || lane.core.is_spill(r.donor));
    let mut filled = [false; REPLICA_ENTRIES];
    for (n, _) in replicas.iter().filter(|(_, r)| may_be_asked(r)) {
        filled[usize::from(n)] = lane.core.extents.has(extent, n, at);
    }
    filled
}

/// A replica that can't be read now may bring the page: one that has it, though those that can
/// be read do not, or any if there are none of those. Not for the repair thread to wait for: it
/// is the one that makes syncing replicas live.
fn may_come(lane: &LaneState, extent: ExtentId, replicas: &Replicas, at: u32, mismatch: bool) -> bool {
    let is_coming = replicas.has(ReplicaState::Stale) || replicas.has(ReplicaState::Syncing);
    let has_it = |(n, r): (u8, &Replica)| {
        matches!(r.state, ReplicaState::Stale | ReplicaState::Syncing)
            && lane.core.extents.next_missed(extent, n, at) != Some(at)
    };
    lane.reports && is_coming && ((!mismatch && replicas.live() == 0) || replicas.iter().any(has_it))
}

/// The best of the replicas that are open to a read.
pub(super) fn choose<'a>(lane: &mut LaneState, asked: &Asked, open: impl Iterator<Item = (u8, &'a Replica)>) -> Choice {
    let is_probe = counts_as_probe(lane);
    best(lane, asked, open, is_probe)
}

/// Counts a read; true for the few that ask the second-best.
pub(super) fn counts_as_probe(lane: &mut LaneState) -> bool {
    lane.reads = lane.reads.wrapping_add(1);
    lane.reads.is_multiple_of(PROBE_EVERY)
}

/// The same, which may be done as often as one likes: the reads that are probes are counted by
/// whoever reads.
pub(super) fn best<'a>(
    lane: &LaneState,
    asked: &Asked,
    open: impl Iterator<Item = (u8, &'a Replica)>,
    is_probe: bool,
) -> Choice {
    let candidate = |(index, replica): (u8, &Replica)| {
        let end = lane.ends.get(usize::from(replica.donor.0));
        ReadSource {
            index,
            is_usable: end.is_some_and(End::usable),
            is_spill: lane.core.is_spill(replica.donor),
            latency_ns: end.map_or(0, |e| e.latency_ns),
            outstanding: end.map_or(0, |e| e.outstanding),
        }
    };
    asked.choose(open.map(candidate), is_probe)
}

/// Checks what a READ brought, opens it, and goes on from the first bad page.
pub(super) fn verify(lane: &mut LaneState, op: Pending, now: Instant) {
    let Work::Read(read) = lane.jobs[op.job].work else { return };
    if read.piece.is_some() && op.len < PAGE_SIZE as u32 {
        spare::adopt(lane, &op);
        return finish_read(lane, op.job, Ok(()));
    }
    let pages = op.len / PAGE_SIZE as u32;
    // SAFETY: the READ into this range is complete, and the job holds the buffer, so nothing
    // else moves it.
    let bytes = unsafe { lane.buffers.arena.bytes_mut(op.local, op.len as usize) };
    let first = read.run.first.0 + read.at;
    let good = take_in(lane, SlotIdx(first), bytes);
    if good > 0 {
        spare::adopt(lane, &op);
    } else {
        spare::drop_spare(lane, &op);
    }
    let Work::Read(read) = &mut lane.jobs[op.job].work else { return };
    if good > 0 {
        read.at += good as u32;
        read.tries = [0; REPLICA_ENTRIES];
        read.mismatch = false;
        read.good = Some(op.index);
    }
    if (good as u32) < pages {
        read.tries[usize::from(op.index)] += 1;
        read.mismatch = true;
        read.good = None;
        // The repair thread also looks at pages that are just being written for the first time:
        // those are not wrong.
        if lane.reports
            && let Some(donor) = lane.core.donor(op.donor)
        {
            donor.stats.checksum_errors.fetch_add(1, Relaxed);
        }
        report(lane, SlotIdx(first + good as u32), &op);
    }
    read_on(lane, op.job, now);
}

/// How many pages from the first on are those that were written. They are opened, but for the
/// repair thread, which copies pages as they lie on donors.
fn take_in(lane: &LaneState, first: SlotIdx, pages: &mut [u8]) -> usize {
    let slots = &lane.core.slots;
    let is_good = |(slot, page): &mut (u32, &mut [u8])| match lane.reports {
        true => slots.open_page(SlotIdx(*slot), page),
        false => slots.is_right(SlotIdx(*slot), page),
    };
    let mut pages = (first.0..).zip(pages.chunks_exact_mut(PAGE_SIZE));
    let mut good = 0;
    while pages.next().is_some_and(|mut page| is_good(&mut page)) {
        good += 1;
    }
    good
}

/// Has the repair thread look at a replica's page.
fn report(lane: &LaneState, slot: SlotIdx, op: &Pending) {
    if !lane.reports || lane.core.counts.heals.fetch_add(1, Relaxed) >= MAX_HEALS {
        if lane.reports {
            lane.core.counts.heals.fetch_sub(1, Relaxed);
        }
        return;
    }
    lane.core.mend(Task::Heal { slot, index: op.index, generation: op.generation });
}

pub(super) fn read_failed(lane: &mut LaneState, op: Pending, kind: ErrorKind, now: Instant) {
    spare::drop_spare(lane, &op);
    let Work::Read(read) = &mut lane.jobs[op.job].work else { return };
    read.good = None;
    read.tries[usize::from(op.index)] += 1;
    match kind {
        ErrorKind::RemoteAccess => lane.mark_stale(&op, ACCESS_REFUSED),
        // Retried, since another attempt may still be writing into the job's buffer; it can't
        // succeed.
        ErrorKind::LocalProtection => tracing::error!("a read of {} pages is outside its lane's arena", op.buf.1),
        ErrorKind::RemoteOperation | ErrorKind::RetryExceeded | ErrorKind::Flushed => {}
    }
    read_on(lane, op.job, now);
}

fn finish_read(lane: &mut LaneState, job: u32, result: Result<(), IoError>) {
    let Some(job) = lane.jobs.remove(job) else { return };
    if let Work::Read(read) = job.work {
        lane.core.release_run(read.run);
    }
    lane.finished.push(Done { token: job.token, buf: job.buf, result });
}
