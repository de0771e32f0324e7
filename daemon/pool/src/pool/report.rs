//! What a user should know of the pool's health: what is being repaired, how long it will take, and
//! what is wrong, as the listings tell it.

use super::Pool;
use crate::donor::view::{Donor, DonorView};
use crate::error::PoolError;
use crate::lack::Lack;
use crate::metadata::replica::{Replica, ReplicaState};
use annex_shared::api::{DonorState, PoolInfo, format_bytes};
use annex_shared::page::PAGE_SIZE;
use std::sync::atomic::Ordering::Relaxed;

impl Pool {
    /// Whether enough donors are up to place R replicas, or else a spill file. The error says which
    /// are missing and why.
    pub fn is_usable(&self) -> Result<(), PoolError> {
        if self.spill_is_up() { Ok(()) } else { self.has_enough_donors() }
    }

    pub(crate) fn has_enough_donors(&self) -> Result<(), PoolError> {
        let replicas = self.core.config.replicas;
        let used = self.core.donors().filter(|d| self.is_real(d) && d.config.lock().is_some());
        let views: Vec<DonorView> = used.map(|d| d.view.lock().clone()).collect();
        if views.is_empty() {
            return Err(PoolError::NoDonors);
        }
        let up = views.iter().filter(|v| v.state == DonorState::Up).count();
        if up >= usize::from(replicas) {
            return Ok(());
        }
        let down = views.iter().filter(|v| v.state != DonorState::Up);
        let mut missing: Vec<String> = down.map(|v| format!("donor {}: {}", v.name, v.why)).collect();
        if views.len() < usize::from(replicas) {
            missing.push(format!("only {} configured: add donors or lower replicas", views.len()));
        }
        Err(PoolError::TooFewDonors { up, needed: replicas.into(), replicas, missing: missing.join("; ") })
    }

    /// What a user should know and might not notice.
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        if let Err(error) = self.has_enough_donors() {
            warnings.push(error.to_string());
        }
        for donor in self.donors() {
            if donor.state == DonorState::Lost {
                warnings.push(format!("donor {} is lost: {}", donor.name, donor.why));
            }
            if donor.checksum_errors > 0 {
                let n = donor.checksum_errors;
                warnings.push(format!("donor {} gave wrong bytes {n} times (caught by checksum)", donor.name));
            }
        }
        warnings.extend(self.core.donors().filter_map(|donor| self.core.lease_warning(donor)));
        let info = self.info();
        if info.lost_extents > 0 {
            warnings.push(format!("{} extents have no replica left: their pages can't be read", info.lost_extents));
        }
        if info.waiting_extents > 0 {
            let (n, at_most) = (info.waiting_extents, self.core.config.last_copy_lost_after);
            warnings.push(format!(
                "{n} extents have no replica within reach: programs that touch their pages wait, for {at_most} at most, until a donor is back"
            ));
        }
        if info.degraded_extents > 0 {
            let (n, replicas) = (info.degraded_extents, self.core.config.replicas);
            warnings.push(format!("{n} extents have fewer than {replicas} replicas: another loss may lose pages"));
        }
        if info.repair_left > 0 {
            let left = format_bytes(info.repair_left);
            let eta = info.repair_eta_s;
            warnings.push(format!("repair is under way: {left} to copy, {eta} s at the configured rate"));
        }
        if info.lost_pages > 0 {
            let n = info.lost_pages;
            warnings.push(format!("{n} pages are lost: no replica has them, and programs that touch them get SIGBUS"));
        }
        if info.crowded_extents > 0 {
            let n = info.crowded_extents;
            warnings
                .push(format!("{n} extents have two replicas on one host or rack: another donor elsewhere is needed"));
        }
        self.warn_of_spill(&info, &mut warnings);
        if info.stuck_replicas > 0 {
            let n = info.stuck_replicas;
            warnings.push(format!(
                "{n} copies are to leave their donor, and nobody else has room for them: raise capacity on another donor, or add one (annex donors add HOST:PORT)"
            ));
        }
        // Where donors are missing, that was said.
        if info.full && self.has_enough_donors().is_ok() {
            warnings.push(format!("the pool is full: {}; programs keep their pages until then", info.lack));
        }
        let configs = self.core.donors().filter_map(|d| d.config.lock().clone());
        for config in configs.filter(|d| d.faults.is_some()) {
            warnings.push(format!("donor {} runs with injected faults, for tests", config.label()));
        }
        warnings
    }

    pub(crate) fn tell_repair(&self, info: &mut PoolInfo) {
        let core = &self.core;
        let wanted = usize::from(core.config.replicas);
        let mut pages = 0;
        for (extent, replicas) in core.extents.live() {
            let mut kept = 0;
            let used = self.used_bytes(extent);
            let is_on_donor = |r: &Replica| r.state.is_kept() && !core.is_spill(r.donor);
            let on_donors = replicas.iter().filter(|(_, r)| is_on_donor(r)).count();
            let is_backed_up = replicas.iter().any(|(_, r)| r.state.is_kept() && core.is_spill(r.donor));
            if core.spill.is_some() && wanted == 1 && !is_backed_up {
                info.backup_lag += used;
            }
            for (index, replica) in replicas.iter().filter(|(_, r)| r.state.is_kept()) {
                kept += 1;
                if core.is_spill(replica.donor) && on_donors < wanted {
                    info.spilled += used;
                }
                if replica.state == ReplicaState::Live {
                    continue;
                }
                let missed = core.extents.missed_count(extent, index, |word, bits| bits & core.slots.used_bits(word));
                match replica.state {
                    ReplicaState::Backup => {
                        info.backup_lag += u64::from(missed) * PAGE_SIZE as u64;
                        continue;
                    }
                    ReplicaState::Syncing => info.syncing_replicas += 1,
                    _ => info.stale_replicas += 1,
                }
                pages += u64::from(missed);
            }
            // What only the spill file has waits for donors, not for time.
            if kept == on_donors {
                pages += wanted.saturating_sub(kept) as u64 * (used / PAGE_SIZE as u64);
            }
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
        info.lost_pages = counts.lost_pages.load(Relaxed);
        info.crowded_extents = counts.crowded.load(Relaxed);
        info.moving_replicas = counts.moving.load(Relaxed);
        info.stuck_replicas = counts.stuck.load(Relaxed);
    }

    /// True if the spill file can take pages now.
    pub fn spill_is_up(&self) -> bool {
        self.core.spill_is_up()
    }

    /// Why programs get no slots now, and what to do about it.
    pub fn why_no_room(&self) -> String {
        self.lack().to_string()
    }

    pub(crate) fn lack(&self) -> Lack {
        match self.is_kept_for_kv() {
            true => Lack {
                what: "what is left is kept for the KV API".to_owned(),
                remedy: "lower pool_min in [kv], or add a donor".to_owned(),
            },
            false => self.core.lack(),
        }
    }

    /// Donors that are none are not counted where donors are.
    pub(crate) fn is_real(&self, donor: &Donor) -> bool {
        !self.core.is_spill(donor.id)
    }

    pub(crate) fn warn_of_spill(&self, info: &PoolInfo, warnings: &mut Vec<String>) {
        if info.spilled > 0 {
            let spilled = format_bytes(info.spilled);
            warnings.push(format!(
                "the last tier is in use: {spilled} of pages lie in the spill file, since too few donors have room or are up; they move when that changes"
            ));
        }
        if self.core.spill.is_some() && !self.spill_is_up() {
            let why = self.core.spill.and_then(|id| self.core.donor(id)).map(|d| d.view.lock().why.clone());
            warnings.push(format!("the spill file can't be used: {}", why.unwrap_or_default()));
        }
    }
}
