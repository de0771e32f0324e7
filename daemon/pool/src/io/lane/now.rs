//! Reads that are completed when the call returns: on donors whose memory is this host's. No job,
//! no operation under way, nobody to wait for.

use super::read;
use super::state::LaneState;
use crate::io::hedging::Choice;
use crate::io::inflight::ReadWork;
use crate::metadata::replica::{Replica, ReplicaState};
use crate::metadata::slots::SlotRun;
use annex_fabric::{Op, OpKind};
use annex_shared::ids::{RemoteAddr, SlotIdx};
use annex_shared::page::PAGE_SIZE;
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;

/// A whole page.
const PAGE: Range<u32> = 0..PAGE_SIZE as u32;

/// See [`super::Lane::read_now`].
pub(super) fn read_now<T>(
    lane: &mut LaneState,
    slot: SlotIdx,
    piece: Range<u32>,
    take: impl FnOnce(&[u8]) -> Option<T>,
) -> Option<T> {
    if piece.is_empty() || piece.end > PAGE_SIZE as u32 {
        return None;
    }
    let bytes = piece.start as usize..piece.end as usize;
    if lane.core.slots.is_sealed(slot) {
        return read_page_now(lane, slot, |page| take(&page[bytes]));
    }
    let buf = lane.buffers.alloc(1)?;
    let read = read_into(lane, slot, &piece, buf.page() * PAGE_SIZE + bytes.start);
    let taken = read.and_then(|()| take(&lane.buffers.bytes(&buf)[bytes]));
    lane.buffers.give_back(buf);
    taken
}

/// Reads a page here and now, and has `take` look at it if it is as it was written. Otherwise
/// as [`super::Lane::read_now`].
pub(super) fn read_page_now<T>(
    lane: &mut LaneState,
    slot: SlotIdx,
    take: impl FnOnce(&[u8]) -> Option<T>,
) -> Option<T> {
    let mut buf = lane.buffers.alloc(1)?;
    let read = read_into(lane, slot, &PAGE, buf.page() * PAGE_SIZE);
    let page = lane.buffers.bytes_mut(&mut buf);
    let taken = read.filter(|()| lane.core.slots.open_page(slot, page)).and_then(|()| take(page));
    lane.buffers.give_back(buf);
    taken
}

fn read_into(lane: &mut LaneState, slot: SlotIdx, piece: &Range<u32>, local: usize) -> Option<()> {
    let is_probe = read::counts_as_probe(lane);
    let (replica, addr) = nearest(lane, slot, piece, is_probe)?;
    let len = piece.end - piece.start;
    let op = Op { tag: 0, kind: OpKind::Read, local, len, rkey: replica.rkey, addr };
    let end = lane.ends.get_mut(usize::from(replica.donor.0))?;
    let endpoint = end.endpoint.as_mut()?;
    // One that fails is not counted: it is tried again in a way that is.
    let took = endpoint.read_now(&op)?.ok()?;
    let over = endpoint.transport();
    end.learn(took);
    if let Some(donor) = lane.core.donor(replica.donor) {
        donor.stats.observe(took.as_nanos() as u64);
        donor.stats.reads.fetch_add(1, Relaxed);
        donor.traffic.done(over, OpKind::Read, len, took);
    }
    Some(())
}

/// Says that some bytes of a slot will be read here and now, soon: what can be brought nearer
/// is. Nothing depends on it.
pub(super) fn prefetch_hint(lane: &mut LaneState, slot: SlotIdx, piece: &Range<u32>) {
    let Some((replica, addr)) = nearest(lane, slot, piece, false) else { return };
    let endpoint = lane.ends.get_mut(usize::from(replica.donor.0)).and_then(|end| end.endpoint.as_mut());
    if let Some(endpoint) = endpoint {
        endpoint.prefetch_hint(replica.rkey, addr, piece.end - piece.start);
    }
}

/// The replica that a slot's bytes are read from first, and where they are there.
fn nearest(lane: &LaneState, slot: SlotIdx, piece: &Range<u32>, is_probe: bool) -> Option<(Replica, RemoteAddr)> {
    let (extent, offset) = lane.core.extents.locate(slot)?;
    let replicas = lane.core.extents.replicas(extent)?;
    let is_live = |(_, replica): &(u8, &Replica)| replica.state == ReplicaState::Live;
    let read = ReadWork::new(SlotRun { first: slot, count: 1 });
    let choice = read::best(lane, &read.asked(), replicas.iter().filter(is_live), is_probe);
    let Choice::Replica(choice) = choice else { return None };
    let addr = RemoteAddr(u64::from(offset) * PAGE_SIZE as u64 + u64::from(piece.start));
    Some((*replicas.nth(choice)?, addr))
}
