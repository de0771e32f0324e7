//! What moves a lane forward: completions, fresh endpoints, and replicas that changed their state.

use super::end::End;
use super::state::LaneState;
use super::{hedge, posting, read, silence, spare, write};
use crate::coordinator::news::News;
use crate::io::inflight::{Direction, NIL};
use crate::io::mailbox::Delivery;
use annex_fabric::{Completion, Transport};
use annex_shared::ids::DonorId;
use nix::sys::epoll::{EpollEvent, EpollFlags};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

pub(super) fn poll_end(lane: &mut LaneState, at: usize, idle_too: bool, now: Instant) {
    let end = &mut lane.ends[at];
    let Some(endpoint) = &mut end.endpoint else { return };
    if end.outstanding == 0 && !idle_too && end.next.is_none() {
        return;
    }
    let mut scratch = std::mem::take(&mut lane.scratch);
    endpoint.poll(&mut scratch);
    for completion in scratch.drain(..) {
        complete(lane, at, completion, now);
    }
    lane.scratch = scratch;
    let end = &mut lane.ends[at];
    if end.outstanding == 0 && (end.next.is_some() || end.endpoint.as_ref().is_some_and(|e| e.is_broken())) {
        replace(lane, at);
    }
}

fn complete(lane: &mut LaneState, end_at: usize, completion: Completion, now: Instant) {
    let Some(at) = lane.ops.by_tag(completion.tag) else { return };
    let end = &mut lane.ends[end_at];
    end.outstanding = end.outstanding.saturating_sub(1);
    end.heard = Some(now);
    end.reads.remove(&mut lane.ops, at);
    let op = lane.ops[at];
    let Some(donor) = lane.core.donor(op.donor) else { return };
    let over = end.endpoint.as_ref().map_or(Transport::Tcp, |e| e.transport());
    match (op.direction, completion.result) {
        (_, Ok(())) => {
            let took = now.saturating_duration_since(op.time);
            let ns = took.as_nanos() as u64;
            donor.stats.observe(ns);
            donor.traffic.done(over, op.direction.kind(), op.len, took);
            if op.direction == Direction::Read {
                end.learn(took);
                donor.stats.reading.observe(took, now);
            }
        }
        (_, Err(kind)) => {
            donor.traffic.failed(over, kind);
            donor.stats.errors.fetch_add(1, Relaxed);
            end.latency_ns = end.latency_ns.saturating_mul(2).min(1_000_000_000);
        }
    }
    match (op.direction, completion.result) {
        (Direction::Read, result) => {
            donor.stats.reads.fetch_add(u64::from(result.is_ok()), Relaxed);
            lane.ops.remove(at);
            if op.job == NIL {
                // Its job went on without it. Now its piece of the arena is nobody's.
                lane.buffers.return_spare(op.buf);
            } else {
                spare::attempt_completed(lane, op.job, at);
                match result {
                    Ok(()) => read::verify(lane, op, now),
                    Err(kind) => read::read_failed(lane, op, kind, now),
                }
                hedge::attempt_ended(lane, op.job, now);
            }
        }
        (Direction::Write, Ok(())) => {
            donor.stats.writes.fetch_add(1, Relaxed);
            lane.ops.remove(at);
            write::settle(lane, op.part, Some(op.index));
        }
        (Direction::Write, Err(kind)) => write::write_failed(lane, at, kind, now),
    }
    if lane.ops.room() == 1 {
        unstall(lane, now);
    }
}

/// A fresh endpoint came.
pub(super) fn receive(lane: &mut LaneState, delivery: Delivery) {
    let at = usize::from(delivery.donor.0);
    if at >= lane.ends.len() {
        // A donor that was added after the lane was made.
        lane.ends.resize_with(at + 1, End::default);
    }
    let end = &mut lane.ends[at];
    end.next = Some(delivery.endpoint);
    if end.outstanding == 0 {
        replace(lane, usize::from(delivery.donor.0));
    }
}

/// Puts the next endpoint in the old one's place, or asks for one.
fn replace(lane: &mut LaneState, at: usize) {
    let end = &mut lane.ends[at];
    let old = end.endpoint.take();
    let traffic = lane.core.donor(DonorId(at as u16)).map(|donor| &donor.traffic);
    if let (Some(old), Some(traffic)) = (&old, traffic) {
        traffic.disconnected(old.transport());
    }
    if let Some(fd) = old.as_ref().and_then(|e| e.event_fd())
        && let Err(error) = lane.epoll.delete(fd)
    {
        tracing::error!("failed to stop watching an endpoint of donor{at}: {error}");
    }
    end.posted = false;
    let next = end.next.take();
    let donor = DonorId(at as u16);
    match next {
        Some(mut endpoint) => {
            if lane.past_caches {
                endpoint.write_past_caches();
            }
            if let Some(fd) = endpoint.event_fd()
                && let Err(error) = lane.epoll.add(fd, EpollEvent::new(EpollFlags::EPOLLIN, 0))
            {
                tracing::error!("failed to watch an endpoint of donor{at}: {error}");
            }
            // Until measured: shared memory before RDMA before TCP, and the disk last.
            end.latency_ns = match endpoint.transport() {
                Transport::Shm => 5_000,
                Transport::Verbs => 15_000,
                Transport::Tcp => 50_000,
                Transport::File => 500_000,
            };
            if let Some(traffic) = traffic {
                traffic.connected(endpoint.transport());
            }
            end.endpoint = Some(endpoint);
            lane.is_served_here = lane.ends.iter().flat_map(|end| &end.endpoint).any(|e| e.is_served_here());
            if let Some(old) = old {
                lane.core.tell(News::EndpointRetired { endpoint: old });
            }
        }
        None => {
            lane.core.tell(News::EndpointBroken { lane: lane.id, donor, endpoint: old });
            redistribute(lane, at, Instant::now());
        }
    }
}

/// Some replica changed its state: what waits for it is settled or goes elsewhere.
pub(super) fn sweep(lane: &mut LaneState, now: Instant) {
    lane.seen_changes = lane.core.changes();
    silence::listen(lane, now);
    for at in 0..lane.ends.len() {
        redistribute(lane, at, now);
    }
    for i in (0..lane.deferred.len()).rev() {
        if lane.is_given_up(&lane.ops[lane.deferred[i]]) {
            let op = lane.deferred.swap_remove(i);
            keep_or_drop(lane, op, now);
        }
    }
    unstall(lane, now);
}

/// What waits for an end looks again whether it should: reads go elsewhere when the end is
/// gone, writes end when the replica is lost.
fn redistribute(lane: &mut LaneState, at: usize, now: Instant) {
    let mut queue = std::mem::take(&mut lane.ends[at].waiting);
    while let Some(op) = queue.pop(&mut lane.ops) {
        keep_or_drop(lane, op, now);
    }
}

fn keep_or_drop(lane: &mut LaneState, at: u32, now: Instant) {
    let op = lane.ops[at];
    let given_up = lane.is_given_up(&op);
    match op.direction {
        Direction::Write if given_up => {
            lane.ops.remove(at);
            write::settle(lane, op.part, None);
        }
        Direction::Read if op.job == NIL => {
            lane.ops.remove(at);
            lane.buffers.return_spare(op.buf);
        }
        Direction::Read if given_up || !lane.ends[usize::from(op.donor.0)].usable() => {
            lane.ops.remove(at);
            spare::attempt_completed(lane, op.job, at);
            spare::drop_spare(lane, &op);
            read::read_on(lane, op.job, now);
            hedge::attempt_ended(lane, op.job, now);
        }
        _ => lane.ends[usize::from(op.donor.0)].waiting.push(&mut lane.ops, at),
    }
}

pub(super) fn retry_deferred(lane: &mut LaneState, now: Instant) {
    for i in (0..lane.deferred.len()).rev() {
        if lane.ops[lane.deferred[i]].time <= now {
            let op = lane.deferred.swap_remove(i);
            posting::enqueue(lane, op, now);
        }
    }
}

/// Reads that found no endpoint look again.
pub(super) fn unstall(lane: &mut LaneState, now: Instant) {
    for _ in 0..lane.stalled.len() {
        let job = lane.stalled.swap_remove(0);
        read::read_on(lane, job, now);
    }
}
