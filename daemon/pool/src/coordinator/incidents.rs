//! What the pool as a whole goes through, told when it begins and when it is over: copies that are
//! missing, and room that is.

use crate::core::PoolCore;
use annex_host::event;
use annex_host::events::POOL;
use annex_shared::api::format_bytes;
use annex_shared::page::PAGE_SIZE;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// A pool that waits for the answer of a donor is not full. By then what it lacks is known as well.
/// Nor has one room in which a slot is free for a moment.
const SETTLES: Duration = Duration::from_secs(1);

/// What is under way now.
#[derive(Default)]
pub(crate) struct Incidents {
    /// Pages that had been copied when copies began to be missing.
    degraded: Option<u64>,
    full: bool,
    /// When it was seen to be full: first and last.
    seen_full: Option<(Instant, Instant)>,
}

impl Incidents {
    /// `whole`: the book knows of nothing that lacks a copy.
    pub fn look(&mut self, core: &PoolCore, whole: bool, now: Instant) {
        let degraded = if whole { 0 } else { degraded_extents(core) };
        let copied = core.counts.copied.load(Relaxed);
        match self.degraded {
            None if degraded > 0 => {
                self.degraded = Some(copied);
                event!(INFO, RepairBegun of POOL, "{degraded} extents with pages lack a copy");
            }
            Some(before) if degraded == 0 => {
                self.degraded = None;
                let bytes = format_bytes((copied - before) * PAGE_SIZE as u64);
                event!(INFO, RepairDone of POOL, "every extent with pages has all its copies again; {bytes} were copied");
            }
            _ => {}
        }
        let full = core.is_full();
        self.seen_full = match self.seen_full {
            seen if full => Some((seen.map_or(now, |(first, _)| first), now)),
            seen => seen.filter(|(_, last)| now.duration_since(*last) < SETTLES),
        };
        let full = match self.seen_full {
            Some((first, _)) => self.full || (full && now.duration_since(first) >= SETTLES),
            None => false,
        };
        match full {
            true if !self.full => event!(WARN, PoolFull of POOL, "the pool is full: {}", core.lack()),
            false if self.full => event!(INFO, PoolHasRoom of POOL, "the pool has room again"),
            _ => {}
        }
        self.full = full;
    }
}

/// Of those that have pages.
fn degraded_extents(core: &PoolCore) -> usize {
    let slots = core.extents.slots_per_extent().unwrap_or(0);
    let lacks = |replicas: usize| replicas < usize::from(core.config.replicas);
    let live = core.extents.live();
    live.filter(|(extent, replicas)| lacks(replicas.live()) && core.slots.free_count(*extent) < slots).count()
}
