//! What the page shows, as one JSON object: a pure function from the status, the events and the
//! curves. The conditions are those of the status.
//!
//! It is for the page that comes with this annexd, and may change with it.

use super::curves::Curves;
use crate::metrics::{DONORS_SHOWN, limit};
use annex_shared::api::{AppInfo, AppState, DonorInfo, DonorState, PoolInfo, Status};
use annex_shared::condition::{Condition, Severity};
use annex_shared::event::{Event, EventKind};
use annex_shared::transport::Transport;
use serde::Serialize;
use std::cmp::Reverse;

/// So many of the latest events are shown.
const EVENTS: usize = 100;
/// And so many apps: as many as metrics tell of.
const APPS: usize = crate::metrics::APPS_SHOWN;

#[derive(Serialize)]
pub struct State<'a> {
    now_ms: u64,
    /// Another number: another annexd has begun.
    pid: i32,
    version: &'a str,
    host: &'a str,
    uptime_s: u64,
    /// A few words, the first of them as loud as it is bad.
    health: String,
    severity: Severity,
    conditions: &'a [Condition],
    warnings: Vec<&'a str>,
    replicas: u8,
    pool: Pool<'a>,
    donors: Vec<Donor<'a>>,
    donors_up: usize,
    donors_all: usize,
    apps: Vec<App<'a>>,
    apps_all: usize,
    /// The latest first.
    events: Vec<Happened<'a>>,
    /// When the curves were last added to.
    curves_ms: Option<u64>,
}

#[derive(Serialize)]
struct Pool<'a> {
    capacity: u64,
    used: u64,
    extents: u32,
    degraded_extents: u32,
    last_copy_extents: u32,
    waiting_extents: u32,
    lost_extents: u32,
    lost_pages: u64,
    syncing_replicas: u32,
    stale_replicas: u32,
    moving_replicas: u32,
    stuck_replicas: u32,
    repair_left: u64,
    repair_eta_s: u64,
    repaired: u64,
    spilled: u64,
    sealed: bool,
    full: bool,
    lack: &'a str,
}

#[derive(Serialize)]
struct Donor<'a> {
    name: &'a str,
    address: &'a str,
    state: &'static str,
    transport: Option<Transport>,
    why: &'a str,
    encrypted: bool,
    slabs_held: u32,
    slabs_free: u32,
    slabs_capacity: u32,
    used: u64,
    errors: u64,
    checksum_errors: u64,
    /// Since annexd started, over the transport that is in use.
    p99_us: Option<f64>,
}

#[derive(Serialize)]
struct App<'a> {
    id: u64,
    name: &'a str,
    state: AppState,
    processes: usize,
    /// As it was given, and in bytes.
    local: String,
    limit: u64,
    resident: u64,
    evicted: u64,
    faults: u64,
    note: &'a str,
}

#[derive(Serialize)]
struct Happened<'a> {
    seq: u64,
    kind: EventKind,
    subject: &'a str,
    cause: &'a str,
    last_ms: u64,
    count: u32,
}

/// What goes into it.
pub struct Sources<'a> {
    pub status: &'a Status,
    /// The oldest first.
    pub events: &'a [Event],
    pub curves: &'a Curves,
    pub host: &'a str,
    pub now_ms: u64,
}

pub fn state<'a>(sources: &Sources<'a>) -> State<'a> {
    let status = sources.status;
    let says = |warning: &&String| !status.conditions.iter().any(|condition| condition.message == **warning);
    State {
        now_ms: sources.now_ms,
        pid: status.pid,
        version: &status.version,
        host: sources.host,
        uptime_s: status.uptime_s,
        health: status.health(),
        severity: status.severity(),
        conditions: &status.conditions,
        warnings: status.warnings.iter().filter(says).map(String::as_str).collect(),
        replicas: status.replicas,
        pool: pool(&status.pool),
        donors: donors(&status.donors),
        donors_up: status.donors.iter().filter(|donor| donor.state == DonorState::Up).count(),
        donors_all: status.donors.len(),
        apps: apps(&status.apps),
        apps_all: status.apps.len(),
        events: sources.events.iter().rev().take(EVENTS).map(happened).collect(),
        curves_ms: sources.curves.last_ms(),
    }
}

fn pool(pool: &PoolInfo) -> Pool<'_> {
    Pool {
        capacity: pool.capacity,
        used: pool.used,
        extents: pool.extents,
        degraded_extents: pool.degraded_extents,
        last_copy_extents: pool.last_copy_extents,
        waiting_extents: pool.waiting_extents,
        lost_extents: pool.lost_extents,
        lost_pages: pool.lost_pages,
        syncing_replicas: pool.syncing_replicas,
        stale_replicas: pool.stale_replicas,
        moving_replicas: pool.moving_replicas,
        stuck_replicas: pool.stuck_replicas,
        repair_left: pool.repair_left,
        repair_eta_s: pool.repair_eta_s,
        repaired: pool.repaired,
        spilled: pool.spilled,
        sealed: pool.sealed,
        full: pool.full,
        lack: &pool.lack,
    }
}

/// Those that are not up come first: of many, they are the ones to be seen.
fn donors(all: &[DonorInfo]) -> Vec<Donor<'_>> {
    let mut shown: Vec<&DonorInfo> = all.iter().collect();
    shown.sort_by_key(|donor| donor.state == DonorState::Up);
    shown.truncate(DONORS_SHOWN);
    shown.into_iter().map(donor).collect()
}

fn donor(donor: &DonorInfo) -> Donor<'_> {
    let in_use = donor.traffic.iter().find(|over| Some(over.transport) == donor.transport);
    Donor {
        name: &donor.name,
        address: &donor.address,
        state: match donor.state {
            _ if donor.draining => "leaving",
            DonorState::Connecting => "connecting",
            DonorState::Up => "up",
            DonorState::Lost => "lost",
        },
        transport: donor.transport,
        why: &donor.why,
        encrypted: donor.encrypted,
        slabs_held: donor.slabs_held,
        slabs_free: donor.slabs_free,
        slabs_capacity: donor.slabs_capacity,
        used: donor.used,
        errors: donor.errors,
        checksum_errors: donor.checksum_errors,
        p99_us: in_use.filter(|over| over.reads + over.writes > 0).map(|over| over.p99_us),
    }
}

/// Of too many, those with most memory; in the order in which they came.
fn apps(all: &[AppInfo]) -> Vec<App<'_>> {
    let mut shown: Vec<&AppInfo> = all.iter().collect();
    shown.sort_by_key(|app| (Reverse(app.resident + app.evicted), app.id));
    shown.truncate(APPS);
    shown.sort_by_key(|app| app.id);
    shown.into_iter().map(app).collect()
}

fn app(app: &AppInfo) -> App<'_> {
    App {
        id: app.id,
        name: &app.name,
        state: app.state,
        processes: app.pids.len(),
        local: app.local.to_string(),
        limit: limit(app),
        resident: app.resident,
        evicted: app.evicted,
        faults: app.faults.major,
        note: &app.note,
    }
}

fn happened(event: &Event) -> Happened<'_> {
    Happened {
        seq: event.seq,
        kind: event.kind,
        subject: &event.subject,
        cause: &event.cause,
        last_ms: event.last_ms,
        count: event.count,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn donor(name: &str, state: &str) -> Value {
        json!({"name": name, "address": "10.0.0.1:1", "state": state, "transport": "tcp", "why": "as configured",
            "slabs_held": 2, "slabs_free": 1, "slabs_capacity": 3, "used": 4096, "reads": 5, "writes": 6, "errors": 1,
            "checksum_errors": 0, "traffic": [{"transport": "tcp", "reads": 5, "writes": 6, "bytes_read": 0,
                "bytes_written": 0, "errors": {}, "p50_us": 20.0, "p99_us": 64.0, "max_us": 64.0, "latency_us": []}]})
    }

    fn app(id: u64, resident: u64) -> Value {
        json!({"id": id, "name": format!("app{id}"), "pids": [1, 2], "uid": 0, "local": "25%", "resident": resident,
            "evicted": 0, "state": "running", "note": "", "pages_evicted": 9, "pages_clean": 1, "pages_zero": 2,
            "faults": {"major": 4, "zero": 5, "p50_us": 1.0, "p99_us": 1.0, "max_us": 1.0}})
    }

    fn shown(donors: &[Value], apps: &[Value], events: &[Event]) -> Value {
        let status: Status = serde_json::from_value(json!({"version": "1", "pid": 7, "uptime_s": 9, "kernel": "6.12",
            "replicas": 2, "donors": donors, "cpu_s": 1.5, "apps": apps, "warnings": ["full", "look here"],
            "pool": {"capacity": 64 << 20, "used": 1 << 20, "extents": 3, "degraded_extents": 1, "lost_extents": 0,
                "full": true},
            "conditions": [{"kind": "full", "severity": "degraded", "message": "full"}],
            "workers": {"fault_workers": 1, "wait": "block", "evictors": 1}, "overhead_per_page": null}))
        .unwrap();
        let curves = Curves::default();
        serde_json::to_value(state(&Sources { status: &status, events, curves: &curves, host: "web-1", now_ms: 5 }))
            .unwrap()
    }

    #[test]
    fn the_conditions_are_those_of_the_status() {
        let state = shown(&[], &[], &[]);
        assert_eq!(state["conditions"], json!([{"kind": "full", "severity": "degraded", "message": "full"}]));
        assert_eq!((&state["severity"], &state["health"]), (&json!("degraded"), &json!("full")));
        assert_eq!(state["warnings"], json!(["look here"]), "what a condition says is said once");
        assert_eq!((&state["host"], &state["curves_ms"]), (&json!("web-1"), &Value::Null));
    }

    #[test]
    fn donors_that_are_not_up_come_first_and_there_is_a_bound() {
        let mut donors: Vec<Value> = (0..400).map(|n| donor(&format!("d{n}"), "up")).collect();
        donors[399]["state"] = json!("lost");
        donors[398]["draining"] = json!(true);
        let state = shown(&donors, &[], &[]);
        let listed = state["donors"].as_array().unwrap();
        assert_eq!(
            (listed.len(), &listed[0]["name"], &listed[0]["state"]),
            (DONORS_SHOWN, &json!("d399"), &json!("lost"))
        );
        assert_eq!((&state["donors_up"], &state["donors_all"]), (&json!(399), &json!(400)));
        assert_eq!((&listed[1]["transport"], &listed[1]["p99_us"]), (&json!("tcp"), &json!(64.0)));
        let leaving = shown(&donors[398..399], &[], &[]);
        assert_eq!(leaving["donors"][0]["state"], "leaving");
    }

    #[test]
    fn of_too_many_apps_those_with_most_memory_are_shown_in_the_order_in_which_they_came() {
        let apps: Vec<Value> = (0..300).map(|id| app(id, 4096 * (300 - id))).collect();
        let state = shown(&[], &apps, &[]);
        let ids: Vec<u64> = state["apps"].as_array().unwrap().iter().map(|app| app["id"].as_u64().unwrap()).collect();
        assert_eq!(ids, (0..APPS as u64).collect::<Vec<_>>());
        assert_eq!(state["apps_all"], 300);
        assert_eq!((&state["apps"][0]["limit"], &state["apps"][0]["local"]), (&json!(307_200), &json!("25%")));
    }

    #[test]
    fn the_latest_event_comes_first() {
        let event = |seq: u64| Event {
            seq,
            kind: EventKind::DonorAway,
            subject: "oak".into(),
            cause: "oak does not answer".into(),
            time_ms: seq,
            last_ms: seq,
            count: 1,
            uid: None,
        };
        let state = shown(&[], &[], &(1..=250).map(event).collect::<Vec<_>>());
        let events = state["events"].as_array().unwrap();
        assert_eq!((events.len(), &events[0]["seq"], &events[0]["kind"]), (EVENTS, &json!(250), &json!("donor_away")));
    }
}
