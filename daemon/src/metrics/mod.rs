//! annexd's metrics: a pure function from what the status, the pool and the KV API tell to values.
//!
//! Nothing is counted for metrics alone. Labels are bounded: apps and donors are shown one by one
//! up to [`APPS_SHOWN`] and [`DONORS_SHOWN`]; all others have fixed values.

pub mod catalogue;

use annex_metrics::{Histogram, Snapshot};
use annex_shared::api::{AppInfo, DonorInfo, DonorState, KvInfo, Limit, SlabInfo, Status, TransportInfo};
use annex_shared::condition::ConditionKind;
use annex_shared::event::EventKind;
use annex_shared::transport::Transport;
use catalogue as c;
use std::collections::BTreeSet;

/// Apps that are shown one by one: those with most memory.
pub const APPS_SHOWN: usize = 200;
/// Donors that are shown one by one.
pub const DONORS_SHOWN: usize = 256;

/// What is shown.
pub struct Sources<'a> {
    pub status: &'a Status,
    pub slabs: &'a [SlabInfo],
    pub traffic: &'a [TransportInfo],
    /// The default if there is no KV API.
    pub kv: &'a KvInfo,
    pub events: &'a [(EventKind, u64)],
}

/// Every metric of [`catalogue`].
pub fn snapshot(sources: &Sources<'_>) -> Snapshot {
    let mut all = Snapshot::of(c::ALL);
    let status = sources.status;
    daemon(&mut all, status);
    for (event, count) in sources.events {
        all.add(&c::EVENTS, &[event.name()], *count);
    }
    pool(&mut all, status, sources.slabs);
    donors(&mut all, &status.donors);
    fabric(&mut all, sources.traffic);
    apps(&mut all, &status.apps);
    kv(&mut all, sources.kv);
    all
}

fn daemon(all: &mut Snapshot, status: &Status) {
    all.add(&c::BUILD, &[&status.version, &status.kernel], 1u64);
    all.add(&c::UPTIME, &[], status.uptime_s);
    all.add(&c::CPU, &[], status.cpu_s);
    all.add(&c::HEALTH, &[], u32::from(status.severity().exit_code()));
    for kind in ConditionKind::ALL {
        all.add(&c::CONDITION, &[kind.name()], status.conditions.iter().any(|condition| condition.kind == *kind));
    }
    if let Some(certificate) = &status.certificate {
        all.add(&c::CERTIFICATE, &[&certificate.name], certificate.expires);
    }
    all.add(&c::FAULT_WORKERS, &[], status.workers.fault_workers);
    all.add(&c::EVICTORS, &[], status.workers.evictors);
}

fn pool(all: &mut Snapshot, status: &Status, slabs: &[SlabInfo]) {
    let pool = &status.pool;
    all.add(&c::POOL_CAPACITY, &[], pool.capacity);
    all.add(&c::POOL_USED, &[], pool.used);
    all.add(&c::POOL_FULL, &[], pool.full);
    all.add(&c::POOL_SPILLED, &[], pool.spilled);
    all.add(&c::POOL_BACKUP_LAG, &[], pool.backup_lag);
    for (state, n) in [
        ("all", pool.extents),
        ("degraded", pool.degraded_extents),
        ("last_copy", pool.last_copy_extents),
        ("waiting", pool.waiting_extents),
        ("lost", pool.lost_extents),
    ] {
        all.add(&c::EXTENTS, &[state], n);
    }
    all.add(&c::EXTENTS_CROWDED, &[], pool.crowded_extents);
    for state in ["live", "syncing", "stale", "backup", "lost"] {
        all.add(&c::REPLICAS, &[state], slabs.iter().filter(|slab| slab.state == state).count());
    }
    all.add(&c::REPLICAS_MOVING, &[], pool.moving_replicas);
    all.add(&c::REPLICAS_STUCK, &[], pool.stuck_replicas);
    all.add(&c::REPAIR_LEFT, &[], pool.repair_left);
    all.add(&c::REPAIR_ETA, &[], pool.repair_eta_s);
    all.add(&c::REPAIRED, &[], pool.repaired);
    all.add(&c::HEALED, &[], pool.healed_pages);
    all.add(&c::SCRUBBED, &[], pool.scrubbed_pages);
    all.add(&c::HEDGED, &[], pool.hedged_reads);
    all.add(&c::LOST_PAGES, &[], pool.lost_pages);
}

fn donors(all: &mut Snapshot, donors: &[DonorInfo]) {
    for (name, state) in [("up", DonorState::Up), ("connecting", DonorState::Connecting), ("lost", DonorState::Lost)] {
        all.add(&c::DONORS, &[name], donors.iter().filter(|donor| donor.state == state).count());
    }
    let mut names = Names::default();
    for donor in donors.iter().take(DONORS_SHOWN) {
        let name = &names.unique(&donor.name, &donor.address);
        all.add(&c::DONOR_UP, &[name], donor.state == DonorState::Up);
        all.add(&c::DONOR_USED, &[name], donor.used);
        for (state, n) in [("held", donor.slabs_held), ("free", donor.slabs_free), ("capacity", donor.slabs_capacity)] {
            all.add(&c::DONOR_SLABS, &[name, state], n);
        }
        all.add(&c::DONOR_OPERATIONS, &[name, "read"], donor.reads);
        all.add(&c::DONOR_OPERATIONS, &[name, "write"], donor.writes);
        all.add(&c::DONOR_ERRORS, &[name], donor.errors);
        all.add(&c::DONOR_CHECKSUMS, &[name], donor.checksum_errors);
    }
}

fn fabric(all: &mut Snapshot, traffic: &[TransportInfo]) {
    for over in traffic {
        let transport = over.transport.to_string();
        let rdma = over.transport == Transport::Verbs;
        for done in &over.operations {
            let labels = [transport.as_str(), &done.operation];
            let latency = Histogram::of_microseconds(&done.latency_us, done.latency_sum_us);
            all.add(&c::OPERATIONS, &labels, done.count);
            all.add(&c::BYTES, &labels, done.bytes);
            all.add(&c::LATENCY, &labels, latency.clone());
            if rdma {
                all.add(&c::RDMA_OPERATIONS, &labels[1..], done.count);
                all.add(&c::RDMA_BYTES, &labels[1..], done.bytes);
                all.add(&c::RDMA_LATENCY, &labels[1..], latency);
            }
        }
        for (status, n) in &over.errors {
            all.add(&c::ERRORS, &[&transport, status], *n);
            if rdma {
                all.add(&c::RDMA_ERRORS, &[status], *n);
            }
        }
        all.add(&c::CONNECTIONS, &[&transport], over.connections);
        if rdma {
            all.add(&c::RDMA_CONNECTIONS, &[], over.connections);
        }
    }
}

fn apps(all: &mut Snapshot, apps: &[AppInfo]) {
    all.add(&c::APPS, &[], apps.len());
    let mut shown: Vec<&AppInfo> = apps.iter().collect();
    shown.sort_by_key(|app| (std::cmp::Reverse(app.resident + app.evicted), app.id));
    let mut names = Names::default();
    for app in shown.into_iter().take(APPS_SHOWN) {
        // One that has ended and is about to go may have the name of a new one.
        let unique = names.unique(&app.name, &app.id.to_string());
        let name = [unique.as_str()];
        let faults = &app.faults;
        all.add(&c::APP_RESIDENT, &name, app.resident);
        all.add(&c::APP_POOL, &name, app.evicted);
        all.add(&c::APP_LIMIT, &name, limit(app));
        all.add(&c::APP_AUTO, &name, app.auto.is_some());
        if let Some(auto) = &app.auto {
            all.add(&c::APP_TARGET, &name, auto.target);
        }
        all.add(&c::APP_PROCESSES, &name, app.pids.len());
        all.add(&c::APP_FAULTS, &[&unique, "pool"], faults.major);
        all.add(&c::APP_FAULTS, &[&unique, "zero"], faults.zero);
        all.add(&c::APP_LATENCY, &name, Histogram::of_microseconds(&faults.latency_us, faults.latency_sum_us));
        all.add(&c::APP_WAITED, &name, faults.latency_sum_us / 1e6);
        all.add(&c::APP_EVICTED, &name, app.pages_evicted);
        all.add(&c::APP_CLEAN, &name, app.pages_clean);
        all.add(&c::APP_ZERO, &name, app.pages_zero);
        all.add(&c::APP_IN, &name, app.pages_in);
        all.add(&c::APP_PREFETCHED, &name, app.pages_prefetched);
    }
}

/// Prometheus takes nothing of a page on which one label value stands twice.
#[derive(Default)]
struct Names(BTreeSet<String>);

impl Names {
    fn unique(&mut self, name: &str, other: &str) -> String {
        let mut unique = name.to_owned();
        while !self.0.insert(unique.clone()) {
            unique = format!("{unique} ({other})");
        }
        unique
    }
}

/// What may stay resident, in bytes.
pub(crate) fn limit(app: &AppInfo) -> u64 {
    match app.local {
        Limit::Bytes(bytes) => bytes,
        Limit::Percent(percent) => {
            let total = u128::from(app.resident) + u128::from(app.evicted);
            u64::try_from(total * u128::from(percent) / 100).unwrap_or(u64::MAX)
        }
    }
}

fn kv(all: &mut Snapshot, kv: &KvInfo) {
    all.add(&c::KV_UP, &[], kv.enabled);
    if !kv.enabled {
        return;
    }
    all.add(&c::KV_LOADED, &[], kv.loaded as f64 / 1000.0);
    for (metric, value) in [
        (&c::KV_KEYS, kv.keys),
        (&c::KV_USED, kv.used),
        (&c::KV_HELD, kv.held),
        (&c::KV_LIMIT, kv.limit),
        (&c::KV_POOL_MIN, kv.pool_min),
        (&c::KV_POOL_MAX, kv.pool_max),
        (&c::KV_INDEX, kv.local),
        (&c::KV_CACHE, kv.cached),
        (&c::KV_HITS, kv.hits),
        (&c::KV_MISSES, kv.misses),
        (&c::KV_CACHE_HITS, kv.cache_hits),
        (&c::KV_EXPIRED, kv.expired),
        (&c::KV_EVICTED, kv.evicted),
        (&c::KV_LOST, kv.lost),
        (&c::KV_CLIENTS, kv.clients),
        (&c::KV_CLIENT_MEMORY, kv.client_memory),
        (&c::KV_CLIENT_LIMIT, kv.client_memory_limit),
        (&c::KV_CLIENTS_EVICTED, kv.clients_evicted),
    ] {
        all.add(metric, &[], value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use annex_shared::api::AutoInfo;
    use serde_json::json;

    fn status(apps: Vec<AppInfo>, donors: &serde_json::Value) -> Status {
        let mut status: Status = serde_json::from_value(json!({"version": "1", "pid": 1, "uptime_s": 7,
            "kernel": "6.12", "replicas": 2, "donors": donors, "cpu_s": 1.5, "apps": [], "warnings": [],
            "pool": {"capacity": 64 << 20, "used": 1 << 20, "extents": 3, "degraded_extents": 1, "lost_extents": 0,
                "full": true},
            "conditions": [{"kind": "full", "severity": "degraded", "message": "full"}],
            "workers": {"fault_workers": 1, "wait": "block", "evictors": 1}, "overhead_per_page": null}))
        .unwrap();
        status.apps = apps;
        status
    }

    fn donor(name: &str, address: &str) -> serde_json::Value {
        json!({"name": name, "address": address, "state": "up", "transport": "tcp", "why": "", "slabs_held": 2,
            "slabs_free": 1, "slabs_capacity": 3, "used": 4096, "reads": 5, "writes": 6, "errors": 1,
            "checksum_errors": 0})
    }

    fn app(id: u64, name: &str, resident: u64) -> AppInfo {
        serde_json::from_value(json!({"id": id, "name": name, "pids": [1, 2], "uid": 0, "local": "25%",
            "resident": resident, "evicted": 3 << 20, "state": "running", "note": "", "pages_evicted": 9,
            "pages_clean": 1, "pages_zero": 2,
            "faults": {"major": 4, "zero": 5, "p50_us": 1.0, "p99_us": 1.0, "max_us": 1.0,
                "latency_us": [[16, 4]], "latency_sum_us": 50.0}}))
        .unwrap()
    }

    fn text_of(status: &Status, kv: &KvInfo) -> String {
        let slabs: Vec<SlabInfo> = serde_json::from_value(json!([{"donor": "d1", "slab": 1, "extent": 1, "replica": 0,
            "size": 1, "used": 1, "transport": "tcp", "state": "live"}]))
        .unwrap();
        let traffic: Vec<TransportInfo> = serde_json::from_value(json!([{"transport": "verbs", "connections": 2,
            "reads": 3, "writes": 0, "bytes_read": 12288, "bytes_written": 0, "errors": {"IBV_WC_RETRY_EXC_ERR": 1},
            "p50_us": 1.0, "p99_us": 1.0, "max_us": 1.0, "latency_us": [], "operations": [{"operation": "read",
                "count": 3, "bytes": 12288, "latency_us": [[8, 2], [16, 1]], "latency_sum_us": 20.0}]}]))
        .unwrap();
        let events = [(EventKind::DonorAway, 2)];
        snapshot(&Sources { status, slabs: &slabs, traffic: &traffic, kv, events: &events }).text()
    }

    fn has(text: &str, line: &str) {
        assert!(text.lines().any(|l| l == line), "{line} is missing:\n{text}");
    }

    #[test]
    fn values_are_those_of_the_status() {
        let donors = json!([donor("d1", "10.0.0.1:1"), donor("d1", "10.0.0.2:1")]);
        let auto = AutoInfo { target: 0.005, stall: 0.25, doing: "raised".into() };
        let found = AppInfo { auto: Some(auto), ..app(2, "redis", 0) };
        let status = status(vec![app(1, "redis", 1 << 20), found], &donors);
        let kv = KvInfo { enabled: true, loaded: 1000, hits: 8, ..KvInfo::default() };
        let text = text_of(&status, &kv);
        for line in [
            "annexd_build_info{version=\"1\",kernel=\"6.12\"} 1",
            "annexd_cpu_seconds_total 1.5",
            "annexd_health 1",
            "annexd_condition{condition=\"full\"} 1",
            "annexd_condition{condition=\"lost\"} 0",
            "annexd_events_total{event=\"donor_away\"} 2",
            "annexd_extents{state=\"degraded\"} 1",
            "annexd_replicas{state=\"live\"} 1",
            "annexd_donors{state=\"up\"} 2",
            "annexd_donor_slabs{donor=\"d1\",state=\"held\"} 2",
            "annexd_donor_up{donor=\"d1 (10.0.0.2:1)\"} 1",
            "annexd_fabric_operations_total{transport=\"verbs\",operation=\"read\"} 3",
            "annex_rdma_operations_total{operation=\"read\"} 3",
            "annex_rdma_latency_seconds_count{operation=\"read\"} 3",
            "annex_rdma_errors_total{status=\"IBV_WC_RETRY_EXC_ERR\"} 1",
            "annexd_app_resident_bytes{app=\"redis\"} 1048576",
            "annexd_app_limit_bytes{app=\"redis\"} 1048576",
            "annexd_app_limit_auto{app=\"redis\"} 0",
            "annexd_app_resident_bytes{app=\"redis (2)\"} 0",
            "annexd_app_limit_auto{app=\"redis (2)\"} 1",
            "annexd_app_stall_target_ratio{app=\"redis (2)\"} 0.005",
            "annexd_app_fault_latency_seconds_bucket{le=\"0.000016\",app=\"redis\"} 4",
            "annexd_app_faults_total{app=\"redis\",kind=\"zero\"} 5",
            "annex_kv_enabled 1",
            "annex_kv_loaded_ratio 1.0",
            "annex_kv_hits_total 8",
        ] {
            has(&text, line);
        }
        assert_eq!(annex_metrics::strict::check(&text), Ok(()));
    }

    #[test]
    fn each_series_stands_once_and_apps_have_a_bound() {
        let apps = (0..300).map(|id| app(id, "same", 4096 * id)).collect();
        let text = text_of(&status(apps, &json!([])), &KvInfo::default());
        has(&text, "annexd_apps 300");
        assert_eq!(annex_metrics::strict::check(&text), Ok(()));
        let shown = text.lines().filter(|line| line.starts_with("annexd_app_resident_bytes{")).count();
        assert_eq!(shown, APPS_SHOWN);
        has(&text, "annex_kv_enabled 0");
    }

    #[test]
    fn every_metric_is_shown_with_its_type_even_without_a_value() {
        let text = text_of(&status(Vec::new(), &json!([])), &KvInfo::default());
        for metric in c::ALL {
            let name = metric.name.trim_end_matches("_total");
            has(&text, &format!("# TYPE {name} {}", metric.kind.name()));
        }
        assert_eq!(text.lines().filter(|l| l.starts_with("# TYPE ")).count(), c::ALL.len());
    }
}
