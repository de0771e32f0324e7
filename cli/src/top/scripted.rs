//! Answers of annexd for the tests of this folder.

use super::model::Model;
use annex_shared::api::Status;
use annex_shared::event::{Event, EventKind};
use serde_json::{Value, json};
use std::time::Duration;

/// An app with this many faults, each of which took 100 µs.
pub fn app(id: u64, name: &str, faults: u64) -> Value {
    json!({"id": id, "name": name, "pids": [700 + id, 800 + id], "uid": 0, "local": "50%",
        "resident": 768u64 << 20, "evicted": 256u64 << 20, "state": "running", "note": "",
        "faults": {"major": faults, "zero": 7, "p50_us": 98.0, "p99_us": 110.0, "max_us": 300.0,
            "latency_us": [[128, faults]], "latency_sum_us": 100.0 * faults as f64},
        "pages_evicted": faults, "pages_clean": 5, "pages_zero": 3, "pages_in": 2 * faults,
        "pages_prefetched": faults, "prefetch_samples": 100, "prefetch_hits": 90})
}

/// A donor with this many reads.
pub fn donor(name: &str, state: &str, reads: u64) -> Value {
    json!({"name": name, "address": "10.0.0.7:7411", "state": state, "transport": "tcp", "why": "not on this host: tcp",
        "slabs_held": 16, "slabs_free": 40, "slabs_capacity": 56, "used": 700u64 << 20, "reads": reads, "writes": 0,
        "errors": 0, "checksum_errors": 0,
        "traffic": [{"transport": "tcp", "reads": reads, "writes": 0, "bytes_read": reads * 4096, "bytes_written": 0,
            "errors": {}, "p50_us": 20.0, "p99_us": 30.0, "max_us": 99.0, "latency_us": [[32, reads]]}]})
}

pub fn status(apps: &[Value], donors: &[Value]) -> Status {
    let all = json!({"version": "0.1.0", "pid": 42, "uptime_s": 7300, "kernel": "6.12", "replicas": 2, "donors": donors,
        "pool": {"capacity": 2u64 << 30, "used": 1u64 << 30, "extents": 16, "degraded_extents": 0, "lost_extents": 0,
            "full": false},
        "workers": {"fault_workers": 2, "wait": "block", "evictors": 1}, "overhead_per_page": null, "cpu_s": 1.0,
        "apps": apps, "warnings": ["the spill file is off"],
        "conditions": [
            {"kind": "at_risk", "severity": "critical", "message": "AT RISK: 3 of 16 extents have one copy left, whose \
                donor's failure would lose their pages; 192 MiB to copy, about 4 s left"},
            {"kind": "donor_away", "severity": "degraded", "message": "not up: rack2-db9"},
            {"kind": "insecure", "severity": "note", "message": "pages go to rack1-db7 over the network without \
                encryption or authentication: keep it a trusted one"}]});
    serde_json::from_value(all).expect("an answer of annexd")
}

pub fn event(subject: &str, cause: &str) -> Event {
    let (subject, cause, time) = (subject.to_owned(), cause.to_owned(), 1_700_000_000_000);
    Event { seq: 1, kind: EventKind::AppOverLimit, subject, cause, time_ms: time, last_ms: time, count: 1, uid: None }
}

/// After two seconds: redis faults 500 times a second, sort not at all.
pub fn two_apps() -> Model {
    let mut model = Model::default();
    for second in 1..=2 {
        let apps = [app(1, "sort", 30), app(2, "redis", 500 * second)];
        let donors = [donor("rack1-db7", "up", 800 * second), donor("rack2-db9", "lost", 5)];
        model.take(status(&apps, &donors), Duration::from_secs(second));
    }
    model
}
