//! What listings and metrics show: donors, slabs, and the pool as a whole.

use super::Pool;
use crate::donor::traffic::Traffic;
use crate::donor::view::Donor;
use annex_shared::api::{CertificateInfo, DonorInfo, DonorState, PoolInfo, SlabInfo, TransportInfo};
use annex_shared::ids::{ExtentId, SlotIdx};
use annex_shared::page::PAGE_SIZE;
use rustls::pki_types::UnixTime;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

/// Why a donor is not used whose connection stands.
const SILENT: &str = "neither its memory nor its agent answers: writes go on without it until they do";

impl Pool {
    pub fn donors(&self) -> Vec<DonorInfo> {
        let mut used = BTreeMap::new();
        for (extent, replicas) in self.core.extents.live() {
            let bytes = self.used_bytes(extent);
            for (_, replica) in replicas.iter().filter(|(_, r)| r.state.is_kept()) {
                *used.entry(replica.donor).or_insert(0) += bytes;
            }
        }
        let info = |donor: &Donor| shown(donor, used.get(&donor.id).copied().unwrap_or(0));
        // One that was removed is shown as long as something of it is left.
        let is_shown = |d: &&Donor| d.config.lock().is_some() || used.contains_key(&d.id);
        self.core.donors().filter(is_shown).map(info).collect()
    }

    /// What went over each transport since annexd started, to donors that were removed as well.
    pub fn traffic(&self) -> Vec<TransportInfo> {
        let all: Vec<&Traffic> = self.core.donors().map(|donor| &donor.traffic).collect();
        Traffic::together(&all)
    }

    /// Bytes that slots take on each donor, by its name.
    pub fn bytes_by_donor(&self, slots: impl Iterator<Item = SlotIdx>) -> BTreeMap<String, u64> {
        let mut extents = BTreeMap::new();
        for (extent, _) in slots.filter_map(|slot| self.core.extents.locate(slot)) {
            *extents.entry(extent).or_insert(0) += PAGE_SIZE as u64;
        }
        let mut donors = BTreeMap::new();
        for (extent, bytes) in extents {
            let Some(replicas) = self.core.extents.replicas(extent) else { continue };
            for (_, replica) in replicas.iter().filter(|(_, r)| r.state.is_kept()) {
                let name = self.core.donor(replica.donor).map(|donor| donor.view.lock().name.clone());
                *donors.entry(name.unwrap_or_default()).or_insert(0) += bytes;
            }
        }
        donors
    }

    pub fn slabs(&self) -> Vec<SlabInfo> {
        let size = u64::from(self.core.extents.slots_per_extent().unwrap_or(0)) * PAGE_SIZE as u64;
        let mut slabs = Vec::new();
        for (extent, replicas) in self.core.extents.live() {
            let used = self.used_bytes(extent);
            for (n, replica) in replicas.iter() {
                let Some(donor) = self.core.donor(replica.donor) else { continue };
                let view = donor.view.lock();
                slabs.push(SlabInfo {
                    donor: view.name.clone(),
                    slab: replica.slab.0,
                    extent: extent.0,
                    replica: n,
                    size,
                    used,
                    transport: view.transport,
                    state: replica.state.name().to_owned(),
                });
            }
        }
        slabs
    }

    /// This host's certificate; `None` without `[tls]`.
    pub fn certificate(&self) -> Option<CertificateInfo> {
        self.identity.as_ref().map(|identity| identity.certificate(UnixTime::now()))
    }

    pub fn info(&self) -> PoolInfo {
        let mut info = PoolInfo::default();
        let extent_bytes = u64::from(self.core.extents.slots_per_extent().unwrap_or(0)) * PAGE_SIZE as u64;
        for (extent, replicas) in self.core.extents.live() {
            info.extents += 1;
            info.capacity += extent_bytes;
            let used = self.used_bytes(extent);
            info.used += used;
            match replicas.live() {
                0 if !replicas.is_kept() => info.lost_extents += 1,
                n if n < usize::from(self.core.config.replicas) => {
                    info.degraded_extents += 1;
                    info.waiting_extents += u32::from(n == 0);
                    info.last_copy_extents += u32::from(n == 1 && used > 0);
                }
                _ => {}
            }
        }
        info.sealed = self.core.slots.seals();
        self.tell_repair(&mut info);
        let is_spilled_to = self.core.spill.is_some_and(|id| !self.core.extents.leases(id).is_empty());
        info.spill_file = self.spill.as_ref().map(|spill| spill.path().to_owned()).filter(|_| is_spilled_to);
        info.spill_trouble = self.spill.as_ref().and_then(|spill| spill.trouble()).unwrap_or_default();
        // What is kept for the KV API is no room for programs.
        info.full = self.core.is_full() || self.is_kept_for_kv();
        if info.full {
            let lack = self.lack();
            (info.lack, info.lack_remedy) = (lack.to_string(), lack.remedy);
        }
        info
    }

    /// Memory that the pool's tables really take, in bytes.
    pub fn metadata_bytes(&self) -> u64 {
        self.core.extents.resident() + self.core.slots.resident()
    }

    pub(crate) fn used_bytes(&self, extent: ExtentId) -> u64 {
        let slots = self.core.extents.slots_per_extent().unwrap_or(0);
        u64::from(slots.saturating_sub(self.core.slots.free_count(extent))) * PAGE_SIZE as u64
    }
}

/// A donor with so many bytes of ours.
pub(super) fn shown(donor: &Donor, used: u64) -> DonorInfo {
    let view = donor.view.lock().clone();
    let (state, why) = match view.state {
        // Its control connection may take long to be given up.
        DonorState::Up if donor.silent.load(Relaxed) => (DonorState::Connecting, SILENT.to_owned()),
        state => (state, view.why),
    };
    DonorInfo {
        name: view.name,
        address: donor.address.clone(),
        state,
        transport: view.transport,
        why,
        encrypted: view.encrypted,
        slabs_held: view.held,
        slabs_free: view.free,
        slabs_capacity: view.capacity,
        used,
        reads: donor.stats.reads.load(Relaxed),
        writes: donor.stats.writes.load(Relaxed),
        errors: donor.stats.errors.load(Relaxed),
        checksum_errors: donor.stats.checksum_errors.load(Relaxed),
        healed: donor.stats.healed.load(Relaxed),
        draining: view.draining,
        read_us: donor.stats.reading.mean_us(Instant::now()),
        refusal: view.refusal.map_or_else(String::new, |refusal| format!("it {refusal}")),
        rdma_failed: view.rdma_failed,
        traffic: donor.traffic.info(),
    }
}
