//! The one place that judges how annexd stands: a pure function over its status.
//!
//! What explains most comes first, and is what the health line begins with. Its sentence says what
//! is at risk, and what is being done about it.

use annex_shared::api::{DonorInfo, DonorState, PoolInfo, Status, format_bytes, format_seconds};
use annex_shared::condition::{Condition, ConditionKind, Severity};
use annex_shared::remedy;
use annex_shared::transport::Transport;
use std::net::SocketAddr;

/// Above it reads from a donor are slow, whatever the transport: a page takes a thousandth of that.
const SLOW_READ_US: u64 = 50_000;
/// So many donors are named with their reasons.
const NAMED: usize = 3;

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
        let what = pool.lack.strip_suffix(&format!(": {}", pool.lack_remedy)).unwrap_or(&pool.lack);
        let message = format!("full: {what}; programs keep their pages until then");
        list.degraded(ConditionKind::Full, message, &pool.lack_remedy);
    }
    judge_donors(&mut list, status);
    judge_speed(&mut list, status);
    judge_spill(&mut list, status);
    if let Some(certificate) = status.certificate.as_ref().filter(|certificate| !certificate.warning.is_empty()) {
        let message = format!("{}: {}", certificate.name, certificate.warning);
        match certificate.is_invalid {
            true => list.degraded(
                ConditionKind::CertificateExpires,
                message,
                "renew it (docs/operations.md, Certificates); with renew in [tls] see the log for why that fails",
            ),
            false => soon = Some(message),
        }
    }
    if let Some(what) = &besides.stalled {
        let remedy = "journalctl -u annexd; systemctl restart annexd keeps programs and their pages";
        list.degraded(ConditionKind::Stalled, format!("stalled: {what}"), remedy);
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
    for donor in status.donors.iter().filter(|donor| !donor.rdma_failed.is_empty()) {
        let (name, why) = (&donor.name, &donor.rdma_failed);
        list.note(ConditionKind::RdmaUnused, format!("{name} is used over TCP, since RDMA to it does not work: {why}"));
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
    fn add(&mut self, kind: ConditionKind, severity: Severity, message: String, remedy: &str) {
        self.0.push(Condition { kind, severity, message, remedy: remedy.to_owned() });
    }

    fn critical(&mut self, kind: ConditionKind, message: String, remedy: &str) {
        self.add(kind, Severity::Critical, message, remedy);
    }

    fn degraded(&mut self, kind: ConditionKind, message: String, remedy: &str) {
        self.add(kind, Severity::Degraded, message, remedy);
    }

    fn note(&mut self, kind: ConditionKind, message: String) {
        self.add(kind, Severity::Note, message, "");
    }
}

fn judge_copies(list: &mut List, status: &Status) {
    let pool = &status.pool;
    const LOST: &str = "annex events tells what was lost and why; restart the programs that get SIGBUS";
    if pool.lost_extents > 0 {
        list.critical(
            ConditionKind::Lost,
            format!(
                "DATA IS LOST: {} of {} extents have no copy left; programs that touch their pages get SIGBUS",
                pool.lost_extents, pool.extents
            ),
            LOST,
        );
    } else if pool.lost_pages > 0 {
        list.critical(
            ConditionKind::Lost,
            format!("DATA IS LOST: no copy has {} pages; programs that touch them get SIGBUS", pool.lost_pages),
            LOST,
        );
    }
    if pool.waiting_extents > 0 {
        list.critical(
            ConditionKind::OutOfReach,
            format!(
                "OUT OF REACH: {} of {} extents have no copy on a donor that is up; programs that touch their pages wait",
                pool.waiting_extents, pool.extents
            ),
            "bring the donors back that are down, with their memory, within last_copy_lost_after",
        );
    }
    let stuck = (pool.stuck_replicas > 0).then(|| {
        format!(
            "stuck: {} copies are to leave their donor and nobody else has room for them (annex donors says why)",
            pool.stuck_replicas
        )
    });
    let say_stuck = |list: &mut List, message| {
        let remedy = "raise capacity on another donor, or add one (annex donors add HOST:PORT)";
        list.degraded(ConditionKind::Stuck, message, remedy);
    };
    // Where all donors are up, new pages have too few copies for the same reason as others can't
    // leave: that is to be read first.
    let explains = status.donors.iter().all(|donor| donor.state == DonorState::Up);
    let (first, last) = if explains { (stuck, None) } else { (None, stuck) };
    first.into_iter().for_each(|message| say_stuck(list, message));
    if pool.degraded_extents > 0 {
        let (degraded, critical, all) = (pool.degraded_extents, pool.last_copy_extents, pool.extents);
        let repair = repair(pool);
        match critical {
            0 => list.degraded(
                ConditionKind::Degraded,
                format!("degraded: {degraded} of {all} extents lack a copy; {repair}"),
                "wait for the repair; if it has no room, add a donor (annex donors add HOST:PORT)",
            ),
            _ => list.critical(
                ConditionKind::AtRisk,
                format!(
                    "AT RISK: {critical} of {all} extents have one copy left, whose donor's failure would lose their pages; {repair}"
                ),
                "restart no other donor now; bring back the one that is away, or add one (annex donors add HOST:PORT)",
            ),
        }
    }
    last.into_iter().for_each(|message| say_stuck(list, message));
}

fn repair(pool: &PoolInfo) -> String {
    match (pool.repair_left, pool.stale_replicas) {
        (0, 0) => "nothing is being copied: no donor has room for another copy".to_owned(),
        (0, away) => format!("{away} copies wait for their donor to come back"),
        (left, _) => format!("{} to copy, about {} left", format_bytes(left), format_seconds(pool.repair_eta_s)),
    }
}

/// Donors that are machines.
fn real(status: &Status) -> impl Iterator<Item = &DonorInfo> {
    status.donors.iter().filter(|donor| !donor.is_spill())
}

fn judge_donors(list: &mut List, status: &Status) {
    let down: Vec<&DonorInfo> = real(status).filter(|donor| donor.state != DonorState::Up).collect();
    let up = real(status).count() - down.len();
    if !down.is_empty() {
        let words = format!("not up: {}", with_reasons(&down));
        let message = if list.0.is_empty() { format!("degraded: {}; {words}", whole(status)) } else { words };
        let remedy = match down.iter().find_map(|donor| remedy::of_donor(&donor.why)) {
            Some(remedy) => format!("{remedy}; if it will not come back: annex donors remove NAME"),
            None => "wait; annex donors says what it waits for".to_owned(),
        };
        list.degraded(ConditionKind::DonorAway, message, &remedy);
    }
    if up < usize::from(status.replicas) {
        let (copies, are) = (status.replicas, if up == 1 { "is" } else { "are" });
        list.degraded(
            ConditionKind::TooFewDonors,
            format!("too few donors: {copies} copies need {copies} donors, and {up} {are} up"),
            "bring donors back or add one, or set replicas lower in [pool]",
        );
    }
}

fn with_reasons(donors: &[&DonorInfo]) -> String {
    let told = donors.iter().take(NAMED).map(|donor| match donor.why.as_str() {
        "" => donor.name.clone(),
        why => format!("{} ({why})", donor.name),
    });
    let others = donors.iter().skip(NAMED).map(|donor| donor.name.clone());
    told.chain(others).collect::<Vec<_>>().join(", ")
}

/// Donors that answer too late. A read that is late is sent to another copy too, so that programs
/// may not feel it as long as there is one.
fn judge_speed(list: &mut List, status: &Status) {
    let measured: Vec<&DonorInfo> =
        real(status).filter(|donor| donor.state == DonorState::Up && donor.read_us > 0).collect();
    let slow: Vec<&&DonorInfo> = measured.iter().filter(|donor| donor.read_us >= SLOW_READ_US).collect();
    if slow.is_empty() {
        return;
    }
    let times: Vec<String> = slow.iter().map(|donor| format!("{} ({})", donor.name, millis(donor.read_us))).collect();
    let fastest = measured.iter().filter(|donor| donor.read_us < SLOW_READ_US).min_by_key(|donor| donor.read_us);
    let (beside, remedy) = match fastest {
        Some(fast) => (
            format!("; {} takes {}", fast.name, millis(fast.read_us)),
            "on that host see what takes CPU, memory or network (annex-agent doctor, top), and the path to it (ping, mtr); \
             drain it if it stays so",
        ),
        None => (
            String::new(),
            "they all are: look at this host's CPU and network first (top, ping), then at theirs (annex-agent doctor)",
        ),
    };
    list.degraded(ConditionKind::DonorSlow, format!("slow: reads take long at {}{beside}", times.join(", ")), remedy);
}

fn millis(us: u64) -> String {
    if us < 10_000 { format!("{:.1} ms", us as f64 / 1e3) } else { format!("{} ms", us / 1000) }
}

fn judge_spill(list: &mut List, status: &Status) {
    let cut_off = status.donors.iter().find(|donor| donor.is_spill() && donor.state == DonorState::Lost);
    let trouble = Some(status.pool.spill_trouble.clone()).filter(|trouble| !trouble.is_empty());
    let trouble = trouble.or_else(|| Some(format!("the spill file: {}", cut_off?.why)));
    if let Some(trouble) = trouble {
        list.degraded(
            ConditionKind::SpillFailing,
            format!("failing: {trouble}"),
            "see the kernel log for that disk (dmesg) and the room on it (df); add donors, so that pages leave it; then stop \
             annexd and give [spill] a path on another disk",
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
        assert!(stuck.starts_with("stuck: 2 copies are to leave"), "{stuck}");
        let full = said(json!({"full": true, "lack": "no donor has room: add one", "lack_remedy": "add one"}));
        assert_eq!(full, "full: no donor has room; programs keep their pages until then; not up: d1 [1]");
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

    /// What is bad and has no remedy leaves whoever reads it at night alone.
    #[test]
    fn whatever_is_bad_names_a_remedy_and_donors_their_reasons() {
        let mut donors = json!([donor("oak", "lost"), donor("elm", "up"), donor("ash", "up")]);
        donors[0]["why"] =
            json!("nobody lends memory at 10.0.0.5:7411: Connection refused (is annex-agent running there?)");
        donors[1]["read_us"] = json!(80_000);
        donors[2]["read_us"] = json!(900);
        let pool = json!({"full": true, "lack": "no donor has room: add one", "lack_remedy": "add one", "lost_extents": 1,
            "waiting_extents": 1, "stuck_replicas": 1, "degraded_extents": 1,
            "spill_trouble": "the spill file /s: a write of 4096 bytes failed: Input/output error"});
        let besides = Besides { stalled: Some("worker 0 stands still".into()), ..Besides::default() };
        let all = judged(&donors, pool, &besides).conditions;
        assert!(all.iter().all(|c| !c.remedy.is_empty()), "{all:?}");
        let of = |kind| all.iter().find(|c| c.kind == kind).unwrap_or_else(|| panic!("no {kind} in {all:?}"));
        let away = of(ConditionKind::DonorAway);
        assert!(away.message.starts_with("not up: oak (nobody lends memory at 10.0.0.5:7411"), "{away:?}");
        assert!(away.remedy.contains("systemctl status annex-agent"), "{away:?}");
        let slow = of(ConditionKind::DonorSlow);
        assert_eq!(slow.message, "slow: reads take long at elm (80 ms); ash takes 0.9 ms");
        assert!(of(ConditionKind::SpillFailing).message.starts_with("failing: the spill file /s: a write"));
    }

    #[test]
    fn where_all_donors_are_slow_this_host_is_looked_at_first() {
        let mut donors = up();
        (donors[0]["read_us"], donors[1]["read_us"]) = (json!(60_000), json!(70_000));
        let slow = judged(&donors, json!({}), &Besides::default()).conditions.remove(0);
        assert!(slow.message.ends_with("d1 (60 ms), d2 (70 ms)") && slow.remedy.contains("this host's"), "{slow:?}");
    }

    #[test]
    fn the_spill_file_is_no_donor_that_copies_need() {
        let mut spill = donor("spill", "up");
        (spill["address"], spill["transport"]) = (json!("spill"), json!("file"));
        let (_, kinds) = said_of(&json!([donor("d1", "up"), spill]), json!({}));
        assert_eq!(kinds, "too_few_donors");
    }

    #[test]
    fn rdma_that_does_not_work_is_noted_with_the_reason() {
        let mut donors = up();
        donors[0]["rdma_failed"] = json!("port 1 of RDMA device rxe0 has no GID at gid_index = 99");
        let (_, kinds) = said_of(&donors, json!({}));
        assert_eq!(kinds, "healthy rdma_unused");
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
