//! What is being repaired and how long it will take, as the listings tell it.

use super::Pool;
use super::replicas::ReplicaState;
use annex_shared::api::PoolInfo;
use annex_shared::page::PAGE_SIZE;
use std::sync::atomic::Ordering::Relaxed;

impl Pool {
    pub(super) fn tell_repair(&self, info: &mut PoolInfo) {
        let core = &self.core;
        let wanted = usize::from(core.config.replicas);
        let mut pages = 0;
        for (extent, replicas) in core.extents.live() {
            let mut kept = 0;
            for (place, replica) in replicas.iter().filter(|(_, r)| r.state.is_kept()) {
                kept += 1;
                if replica.state == ReplicaState::Live {
                    continue;
                }
                let missed = core.extents.missed_count(extent, place, |word, bits| bits & core.slots.used_bits(word));
                pages += u64::from(missed);
                match replica.state {
                    ReplicaState::Joining => info.joining_replicas += 1,
                    _ => info.away_replicas += 1,
                }
            }
            pages += wanted.saturating_sub(kept) as u64 * (self.used_bytes(extent) / PAGE_SIZE as u64);
        }
        info.repair_left = pages * PAGE_SIZE as u64;
        info.repair_eta_s = match core.config.repair_rate.0 {
            0 => 0,
            rate => info.repair_left.div_ceil(rate),
        };
        let counts = &core.counts;
        info.repaired = counts.copied.load(Relaxed) * PAGE_SIZE as u64;
        info.healed_pages = counts.healed.load(Relaxed);
        info.scrubbed_pages = counts.scrubbed.load(Relaxed);
        info.hedged_reads = counts.hedged.load(Relaxed);
        info.gone_pages = counts.gone.load(Relaxed);
        info.crowded_extents = counts.crowded.load(Relaxed);
        info.moving_replicas = counts.moving.load(Relaxed);
    }
}
