//! The one place that judges how annexd stands: a pure function over its status.
//!
//! What explains most comes first, and is what the health line begins with. Its sentence says what
//! is at risk, and what is being done about it.

use annex_shared::api::{DonorInfo, DonorState, PoolInfo, Status, format_bytes, format_seconds};
use annex_shared::condition::{Condition, ConditionKind, Severity};
use annex_shared::transport::Transport;
use std::net::SocketAddr;

/// What is judged besides the status itself.
#[derive(Default)]
pub struct Besides {
    /// What makes no progress.
    pub stalled: Option<String>,
    /// Why the KV API does not listen where it should.
    pub kv_failed: Vec<String>,
    /// Programs that annexd ended lately, and why.
    pub stopped: Vec<String>,
}

/// Everything that is so, at least one thing.
pub fn conditions(status: &Status, besides: &Besides) -> Vec<Condition> {
    let mut list = List(Vec::new());
    let mut soon = None;
    let pool = &status.pool;
    judge_copies(&mut list, status);
    if pool.full {
        list.degraded(ConditionKind::Full, format!("full: {}; programs keep their pages until then", pool.lack));
    }
    judge_donors(&mut list, status);
    if let Some(certificate) = status.certificate.as_ref().filter(|certificate| !certificate.warning.is_empty()) {
        let message = format!("{}: {}", certificate.name, certificate.warning);
        match certificate.is_invalid {
            true => list.degraded(ConditionKind::CertificateExpires, message),
            false => soon = Some(message),
        }
    }
    if let Some(what) = &besides.stalled {
        list.degraded(ConditionKind::Stalled, format!("stalled: {what}"));
    }
    if list.0.is_empty() {
        list.note(ConditionKind::Healthy, format!("healthy: {}", whole(status)));
    }
    if let Some(message) = soon {
        list.note(ConditionKind::CertificateExpires, message);
    }
    for why in &besides.stopped {
        list.note(ConditionKind::AppStopped, why.clone());
    }
    for why in &besides.kv_failed {
        list.note(ConditionKind::KvUnavailable, why.clone());
    }
    if pool.spilled > 0 {
        let spilled = format_bytes(pool.spilled);
        list.note(
            ConditionKind::Spilled,
            format!("{spilled} of pages lie in the spill file, since too few donors have room or are up"),
        );
    }
    if pool.crowded_extents > 0 {
        let n = pool.crowded_extents;
        list.note(
            ConditionKind::Crowded,
            format!("{n} extents have two copies on one host or rack: add a donor elsewhere"),
        );
    }
    // RDMA is agreed on inside TLS if there is any, and what is sealed needs no more.
    let is_closed =
        |d: &DonorInfo| pool.sealed && status.certificate.is_some() && d.transport == Some(Transport::Verbs);
    let bare: Vec<&str> =
        status.donors.iter().filter(|d| is_bare(d) && !is_closed(d)).map(|d| d.name.as_str()).collect();
    if !bare.is_empty() {
        let names = bare.join(", ");
        list.note(
            ConditionKind::Insecure,
            format!("pages go to {names} over the network without encryption: keep it a trusted one"),
        );
    }
    list.0
}

struct List(Vec<Condition>);

impl List {
    fn add(&mut self, kind: ConditionKind, severity: Severity, message: String) {
        self.0.push(Condition { kind, severity, message });
    }

    fn critical(&mut self, kind: ConditionKind, message: String) {
        self.add(kind, Severity::Critical, message);
    }

    fn degraded(&mut self, kind: ConditionKind, message: String) {
        self.add(kind, Severity::Degraded, message);
    }

    fn note(&mut self, kind: ConditionKind, message: String) {
        self.add(kind, Severity::Note, message);
    }
}

fn judge_copies(list: &mut List, status: &Status) {
    let pool = &status.pool;
    if pool.lost_extents > 0 {
        list.critical(
            ConditionKind::Lost,
            format!(
                "DATA IS LOST: {} of {} extents have no copy left; programs that touch their pages get SIGBUS",
                pool.lost_extents, pool.extents
            ),
        );
    } else if pool.lost_pages > 0 {
        list.critical(
            ConditionKind::Lost,
            format!("DATA IS LOST: no copy has {} pages; programs that touch them get SIGBUS", pool.lost_pages),
        );
    }
    if pool.waiting_extents > 0 {
        list.critical(
            ConditionKind::OutOfReach,
            format!(
                "OUT OF REACH: {} of {} extents have no copy on a donor that is up; programs that touch their pages wait",
                pool.waiting_extents, pool.extents
            ),
        );
    }
    let stuck = (pool.stuck_replicas > 0).then(|| {
        format!(
            "stuck: {} copies are to leave their donor and nobody else has room for them; raise capacity on another donor, \
             or add one (annex donors add HOST:PORT)",
            pool.stuck_replicas
        )
    });
    // Where all donors are up, new pages have too few copies for the same reason as others can't
    // leave: that is to be read first.
    let explains = status.donors.iter().all(|donor| donor.state == DonorState::Up);
    let (first, last) = if explains { (stuck, None) } else { (None, stuck) };
    first.into_iter().for_each(|message| list.degraded(ConditionKind::Stuck, message));
    if pool.degraded_extents > 0 {
        let (degraded, critical, all) = (pool.degraded_extents, pool.last_copy_extents, pool.extents);
        let repair = repair(pool);
        match critical {
            0 => list.degraded(
                ConditionKind::Degraded,
                format!("degraded: {degraded} of {all} extents lack a copy; {repair}"),
            ),
            _ => list.critical(
                ConditionKind::AtRisk,
                format!(
                    "AT RISK: {critical} of {all} extents have one copy left, whose donor's failure would lose their pages; {repair}"
                ),
            ),
        }
    }
    last.into_iter().for_each(|message| list.degraded(ConditionKind::Stuck, message));
}

fn repair(pool: &PoolInfo) -> String {
    match (pool.repair_left, pool.stale_replicas) {
        (0, 0) => "nothing is being copied: no donor has room for another copy".to_owned(),
        (0, away) => format!("{away} copies wait for their donor to come back"),
        (left, _) => format!("{} to copy, about {} left", format_bytes(left), format_seconds(pool.repair_eta_s)),
    }
}

fn judge_donors(list: &mut List, status: &Status) {
    let down: Vec<&DonorInfo> = status.donors.iter().filter(|donor| donor.state != DonorState::Up).collect();
    let names: Vec<&str> = down.iter().map(|donor| donor.name.as_str()).collect();
    let up = status.donors.len() - down.len();
    if !down.is_empty() {
        let words = format!("not up: {}", names.join(", "));
        let message = if list.0.is_empty() { format!("degraded: {}; {words}", whole(status)) } else { words };
        list.degraded(ConditionKind::DonorAway, message);
    }
    if up < usize::from(status.replicas) {
        let (copies, are) = (status.replicas, if up == 1 { "is" } else { "are" });
        list.degraded(
            ConditionKind::TooFewDonors,
            format!("too few donors: {copies} copies need {copies} donors, and {up} {are} up"),
        );
    }
}

/// What holds while nothing lacks a copy.
fn whole(status: &Status) -> String {
    let pool = &status.pool;
    let moving = pool.moving_replicas + pool.syncing_replicas;
    let moving = if moving > 0 { format!("; {moving} copies are on the move to other donors") } else { String::new() };
    let copies = if status.replicas == 1 { "its one copy".into() } else { format!("{} copies", status.replicas) };
    format!("every page in the pool has {copies}{moving}")
}

/// Whether pages go there over a network.
fn is_bare(donor: &DonorInfo) -> bool {
    let is_local = donor.address.parse::<SocketAddr>().is_ok_and(|address| address.ip().is_loopback())
        || donor.address.starts_with("localhost:");
    matches!(donor.transport, Some(Transport::Tcp | Transport::Verbs)) && !donor.encrypted && !is_local
}

#[cfg(test)]
mod tests {
    use super::*;
    use annex_shared::api::CertificateInfo;
    use serde_json::{Value, json};

    fn donor(name: &str, state: &str) -> Value {
        json!({"name": name, "address": "127.0.0.1:1", "state": state, "transport": "tcp", "why": "", "slabs_held": 0,
            "slabs_free": 0, "slabs_capacity": 0, "used": 0, "reads": 0, "writes": 0, "errors": 0, "checksum_errors": 0})
    }

    fn status(donors: &Value, pool: Value) -> Status {
        let mut all =
            json!({"capacity": 0, "used": 0, "extents": 14, "degraded_extents": 0, "lost_extents": 0, "full": false});
        all.as_object_mut().unwrap().extend(pool.as_object().unwrap().clone());
        serde_json::from_value(json!({"version": "1", "pid": 1, "uptime_s": 1, "kernel": "6.12", "replicas": 2,
            "donors": donors, "pool": all, "cpu_s": 0.0, "apps": [], "warnings": [],
            "workers": {"fault_workers": 1, "wait": "block", "evictors": 1}, "overhead_per_page": null}))
        .unwrap()
    }

    fn judged(donors: &Value, pool: Value, besides: &Besides) -> Status {
        let mut status = status(donors, pool);
        status.conditions = conditions(&status, besides);
        status
    }

    /// The health line, the exit code, and the kinds.
    fn said_of(donors: &Value, pool: Value) -> (String, String) {
        let status = judged(donors, pool, &Besides::default());
        let kinds: Vec<&str> = status.conditions.iter().map(|c| c.kind.name()).collect();
        (format!("{} [{}]", status.health(), status.severity().exit_code()), kinds.join(" "))
    }

    /// Three donors, one of which is lost.
    fn said(pool: Value) -> String {
        said_of(&json!([donor("d1", "lost"), donor("d2", "up"), donor("d3", "up")]), pool).0
    }

    fn up() -> Value {
        json!([donor("d1", "up"), donor("d2", "up")])
    }

    #[test]
    fn the_health_line_says_what_is_at_risk_and_what_is_done_about_it() {
        assert_eq!(said(json!({})), "degraded: every page in the pool has 2 copies; not up: d1 [1]");
        let repaired =
            said(json!({"degraded_extents": 3, "last_copy_extents": 3, "repair_left": 192 << 20, "repair_eta_s": 4}));
        assert_eq!(
            repaired,
            "AT RISK: 3 of 14 extents have one copy left, whose donor's failure would lose their pages; 192 MiB to copy, about 4 s left; \
             not up: d1 [2]"
        );
        let empty = said(json!({"degraded_extents": 3}));
        assert!(empty.starts_with("degraded: 3 of 14 extents lack a copy; ") && empty.ends_with("[1]"), "{empty}");
        assert!(empty.contains("no donor has room"));
        assert!(said(json!({"degraded_extents": 3, "stale_replicas": 2})).contains("wait for their donor"));
        let stuck = said(json!({"stuck_replicas": 2, "moving_replicas": 2}));
        assert!(stuck.starts_with("stuck: 2 copies are to leave") && stuck.contains("annex donors add"), "{stuck}");
        let full = said(json!({"full": true, "lack": "no donor has room: add one"}));
        assert_eq!(full, "full: no donor has room: add one; programs keep their pages until then; not up: d1 [1]");
        let waiting = said(json!({"waiting_extents": 2, "degraded_extents": 3, "stale_replicas": 4}));
        assert!(waiting.starts_with("OUT OF REACH: 2 of 14") && waiting.ends_with("wait; not up: d1 [2]"), "{waiting}");
        assert!(said(json!({"lost_extents": 1, "degraded_extents": 3})).starts_with("DATA IS LOST: 1 of 14"));
    }

    #[test]
    fn a_pool_without_fault_is_healthy_and_says_what_moves() {
        let well = said_of(&up(), json!({}));
        assert_eq!(well, ("healthy: every page in the pool has 2 copies [0]".into(), "healthy".into()));
        let moving = said_of(&up(), json!({"moving_replicas": 2, "syncing_replicas": 1})).0;
        assert!(moving.contains("; 3 copies are on the move to other donors [0]"), "{moving}");
    }

    /// The health line said "healthy" while `--check` ended with 2.
    #[test]
    fn pages_that_are_lost_are_in_the_health_line_too() {
        let (line, kinds) = said_of(&up(), json!({"lost_pages": 1}));
        assert!(line.starts_with("DATA IS LOST: no copy has 1 pages") && line.ends_with("[2]"), "{line}");
        assert_eq!(kinds, "lost");
    }

    /// While one of two donors was drained, new pages had one copy: the line said that nobody has
    /// room, and not that the drain has nowhere to go.
    #[test]
    fn a_drain_that_has_nowhere_to_go_is_said_first_unless_a_donor_is_away() {
        let pool = json!({"stuck_replicas": 5, "degraded_extents": 1, "last_copy_extents": 1});
        let (line, kinds) = said_of(&up(), pool.clone());
        assert!(line.starts_with("stuck: 5 copies are to leave") && line.ends_with("[2]"), "{line}");
        assert_eq!(kinds, "stuck at_risk");
        let donors = json!([donor("d1", "lost"), donor("d2", "up"), donor("d3", "up")]);
        let (line, kinds) = said_of(&donors, pool);
        assert!(line.starts_with("AT RISK: 1 of 14") && line.ends_with("; not up: d1 [2]"), "{line}");
        assert_eq!(kinds, "at_risk stuck donor_away");
    }

    #[test]
    fn too_few_donors_are_said_even_while_nothing_is_evicted() {
        let (line, kinds) = said_of(&json!([donor("d1", "up")]), json!({}));
        assert_eq!(line, "too few donors: 2 copies need 2 donors, and 1 is up [1]");
        assert_eq!(kinds, "too_few_donors");
    }

    #[test]
    fn pages_that_are_encrypted_may_go_over_any_network() {
        let mut donors = up();
        donors[0]["address"] = json!("10.0.0.7:7411");
        let kinds = |donors: &Value| {
            let status = judged(donors, json!({}), &Besides::default());
            status.conditions.iter().map(|c| c.kind.name()).collect::<Vec<_>>()
        };
        assert_eq!(kinds(&donors), ["healthy", "insecure"]);
        donors[0]["encrypted"] = json!(true);
        assert_eq!(kinds(&donors), ["healthy"]);
    }

    #[test]
    fn a_certificate_that_expires_is_noted_and_one_that_has_expired_counts() {
        let with = |warning: &str, is_invalid: bool| {
            let mut status = judged(&up(), json!({}), &Besides::default());
            status.certificate = Some(CertificateInfo {
                name: "annex://c/client/web".into(),
                expires: 0,
                summary: String::new(),
                warning: warning.into(),
                is_invalid,
            });
            status.conditions = conditions(&status, &Besides::default());
            let kinds: Vec<&str> = status.conditions.iter().map(|c| c.kind.name()).collect();
            (kinds.join(" "), status.severity().exit_code(), status.conditions.last().unwrap().message.clone())
        };
        assert_eq!(with("", false).0, "healthy");
        let (kinds, code, message) = with("the certificate expires in 13 days", false);
        assert_eq!((kinds.as_str(), code), ("healthy certificate_expires", 0));
        assert_eq!(message, "annex://c/client/web: the certificate expires in 13 days");
        let (kinds, code, _) = with("the certificate expired 3 days ago", true);
        assert_eq!((kinds.as_str(), code), ("certificate_expires", 1));
    }

    #[test]
    fn sealed_pages_may_go_over_rdma_that_was_agreed_on_inside_tls() {
        let mut donors = json!([donor("d1", "up"), donor("d2", "up")]);
        donors[0]["address"] = json!("10.0.0.5:1");
        donors[0]["transport"] = json!("verbs");
        let is_insecure = |sealed: bool, has_tls: bool| {
            let mut status = judged(&donors, json!({"sealed": sealed}), &Besides::default());
            let name = "annex://c/client/web".to_owned();
            let (summary, warning) = (String::new(), String::new());
            let certificate = CertificateInfo { name, expires: 0, summary, warning, is_invalid: false };
            status.certificate = has_tls.then_some(certificate);
            conditions(&status, &Besides::default()).iter().any(|c| c.kind == ConditionKind::Insecure)
        };
        assert_eq!([is_insecure(true, true), is_insecure(true, false), is_insecure(false, true)], [false, true, true]);
    }

    #[test]
    fn notes_change_no_exit_code() {
        let mut donors = up();
        donors[0]["address"] = json!("10.0.0.7:7411");
        donors[1]["address"] = json!("[::1]:7411");
        let besides = Besides {
            stalled: None,
            kv_failed: vec!["0.0.0.0:6379 is taken".into()],
            stopped: vec!["redis: its stub was killed".into()],
        };
        let status = judged(&donors, json!({"spilled": 1 << 20, "crowded_extents": 2}), &besides);
        let kinds: Vec<&str> = status.conditions.iter().map(|c| c.kind.name()).collect();
        assert_eq!(kinds, ["healthy", "app_stopped", "kv_unavailable", "spilled", "crowded", "insecure"]);
        assert_eq!(status.severity().exit_code(), 0);
        assert!(status.conditions[5].message.starts_with("pages go to d1 over"), "{}", status.conditions[5].message);
        let stalled = Besides { stalled: Some("worker 0 stands still".into()), ..Besides::default() };
        assert_eq!(judged(&up(), json!({}), &stalled).severity().exit_code(), 1);
    }
}
