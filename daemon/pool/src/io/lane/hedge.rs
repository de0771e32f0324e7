//! Reads that take too long get company: the same read from another replica, into spare pages of
//! the arena. The first verified answer wins.
//!
//! What too long is, and what is done about it, is decided in `io::hedging`. Whose bytes are whose
//! while two are asked is told in `spare`.

use super::state::LaneState;
use super::{read, spare};
use crate::io::hedging::{Choice, Late, Patience, Verdict};
use crate::io::inflight::{NIL, Work};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

/// When an attempt is late.
fn due(lane: &LaneState, op: u32) -> Instant {
    let patience = Patience { most: lane.core.config.read_timeout.0, least: lane.core.config.hedge_after.0 };
    let attempt = &lane.ops[op];
    patience.due(attempt.time, lane.ends[usize::from(attempt.donor.0)].quantile.late_ns())
}

/// Gives company to reads whose time is up.
pub(super) fn hedge(lane: &mut LaneState, now: Instant) {
    lane.timer.quiet(now);
    for at in 0..lane.ends.len() {
        while let Some(op) = lane.ends[at].reads.oldest().filter(|op| now >= due(lane, *op)) {
            second(lane, op, now);
        }
    }
}

/// An attempt of this job has ended. The one that is left, if it is late, has no company any more:
/// it gets other company.
pub(super) fn attempt_ended(lane: &mut LaneState, job: u32, now: Instant) {
    let Some(Work::Read(read)) = lane.jobs.get(job).map(|job| job.work) else { return };
    let [left, NIL] = read.attempts else { return };
    if left != NIL && now >= due(lane, left) {
        second(lane, left, now);
    }
}

fn second(lane: &mut LaneState, op: u32, now: Instant) {
    // Off the list of those that may become late: company comes once, while it lasts.
    lane.ends[usize::from(lane.ops[op].donor.0)].reads.remove(&mut lane.ops, op);
    let job = lane.ops[op].job;
    if job == NIL {
        return;
    }
    let Work::Read(read) = lane.jobs[job].work else { return };
    let Some((extent, _)) = lane.one_extent(read.run) else { return };
    let late = Late {
        is_bound: read.only.is_some(),
        has_company: read.attempts[1] != NIL,
        is_youngest: read.attempts[1] == op || read.attempts[1] == NIL,
        live: lane.core.extents.replicas(extent).map_or(0, |r| r.live()),
        has_spare: lane.jobs[job].buf.pages <= lane.buffers.spare,
    };
    let verdict = late.verdict();
    if verdict == Verdict::Wait {
        return;
    }
    let end = &mut lane.ends[usize::from(lane.ops[op].donor.0)];
    let waited = now.saturating_duration_since(lane.ops[op].time).as_nanos() as u64;
    end.latency_ns = end.latency_ns.max(waited);
    match verdict {
        Verdict::Wait | Verdict::NoRoom => return,
        Verdict::Accompany => {}
        Verdict::Relieve => {
            let (first, second) = (lane.ops[read.attempts[0]].buf, lane.ops[read.attempts[1]].buf);
            if lane.jobs[job].buf.page == first.0 {
                spare::move_home(lane, job, second.0);
            }
            spare::orphan(lane, read.attempts[0]);
        }
    }
    let Work::Read(read) = lane.jobs[job].work else { return };
    if let Choice::Replica(_) = read::attempt(lane, job, &read, now) {
        lane.core.counts.hedged.fetch_add(1, Relaxed);
    }
}

/// Has the owner woken when the next read's time is up.
pub(super) fn set_timer(lane: &mut LaneState) {
    let oldest = lane.ends.iter().filter_map(|end| end.reads.oldest());
    if let Some(at) = oldest.map(|op| due(lane, op)).min() {
        let now = Instant::now();
        lane.timer.set(at.max(now), now);
    }
}
