//! Posting operations, or having them wait for room or for an endpoint.

use super::end::End;
use super::state::LaneState;
use crate::io::inflight::{Pending, Table};
use annex_fabric::{Op, OpKind};
use std::time::Instant;

/// Posts an operation, or has it wait for room or for an endpoint.
pub(super) fn enqueue(lane: &mut LaneState, at: u32, now: Instant) {
    let op = lane.ops[at];
    let end = &mut lane.ends[usize::from(op.donor.0)];
    if !end.waiting.is_empty() || !end.usable() || !post(end, &mut lane.ops, at, now) {
        end.waiting.push(&mut lane.ops, at);
    }
}

pub(super) fn post_waiting(lane: &mut LaneState, at: usize, now: Instant) {
    let end = &mut lane.ends[at];
    while end.usable()
        && let Some(op) = end.waiting.front()
        && post(end, &mut lane.ops, op, now)
    {
        end.waiting.pop(&mut lane.ops);
    }
}

fn post(end: &mut End, ops: &mut Table<Pending>, at: u32, now: Instant) -> bool {
    let Some(endpoint) = &mut end.endpoint else { return false };
    let tag = ops.tag(at);
    let op = &mut ops[at];
    let kind = op.direction.kind();
    op.time = now;
    let posted = endpoint.post(Op { tag, kind, local: op.local, len: op.len, rkey: op.rkey, addr: op.addr }).is_ok();
    if posted {
        if end.outstanding == 0 {
            end.heard = Some(now);
        }
        end.outstanding += 1;
        end.posted = true;
        if kind == OpKind::Read {
            end.reads.push(ops, at);
        }
    }
    posted
}
