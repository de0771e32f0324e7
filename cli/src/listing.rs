//! `annex apps`, `annex kv`, `annex slabs`, `annex donors` and `annex status`, as people read them.

use crate::table::{Column, count, draw};
use annex_shared::api::{
    AppInfo, AppState, DonorInfo, DonorState, KvInfo, SlabInfo, Status, TransportInfo, format_bytes,
};
use annex_shared::printable::printable;
use annex_shared::transport::Transport;
use std::io::IsTerminal;

/// `annex status` fits a classic terminal.
const STATUS_WIDTH: u16 = 80;

/// How wide a listing may be: not at all limited where a program reads it, which finds each thing
/// on one line.
pub fn width() -> Option<u16> {
    std::io::stdout().is_terminal().then_some(STATUS_WIDTH)
}

pub fn apps(apps: &[AppInfo], width: Option<u16>) -> String {
    if apps.is_empty() {
        return "no apps (annex run and annex attach make them)\n".into();
    }
    let columns = [
        Column::Number("ID"),
        Column::Text("APP"),
        Column::Text("PID"),
        Column::Text("USER"),
        Column::Text("STATE"),
        Column::Number("LOCAL"),
        Column::Number("RESIDENT"),
        Column::Number("IN POOL"),
        Column::Number("FAULTS"),
        Column::Number("P50"),
        Column::Number("P99"),
    ];
    let rows = apps.iter().map(|app| {
        vec![
            app.id.to_string(),
            app.name.clone(),
            pids(app),
            user(app.uid),
            state(app.state).into(),
            app.local.to_string(),
            format_bytes(app.resident),
            format_bytes(app.evicted),
            count(app.faults.major),
            latency(app, app.faults.p50_us),
            latency(app, app.faults.p99_us),
        ]
    });
    let mut text = draw(&columns, rows, None);
    notes(&mut text, apps, width);
    text
}

pub fn slabs(slabs: &[SlabInfo]) -> String {
    if slabs.is_empty() {
        return "no slabs leased\n".into();
    }
    let columns = [
        Column::Text("DONOR"),
        Column::Number("SLAB"),
        Column::Number("EXTENT"),
        Column::Number("COPY"),
        Column::Number("SIZE"),
        Column::Number("USED"),
        Column::Text("VIA"),
        Column::Text("STATE"),
    ];
    let rows = slabs.iter().map(|slab| {
        vec![
            slab.donor.clone(),
            slab.slab.to_string(),
            slab.extent.to_string(),
            slab.replica.to_string(),
            format_bytes(slab.size),
            format_bytes(slab.used),
            via(slab.transport),
            slab.state.clone(),
        ]
    });
    draw(&columns, rows, None)
}

pub fn kv(kv: &KvInfo, width: Option<u16>) -> String {
    if !kv.enabled {
        return "the KV API is not enabled (enabled = true in [kv] of annexd's configuration)\n".into();
    }
    let mut text = String::new();
    let listens = if kv.listens.is_empty() { "nowhere".to_owned() } else { kv.listens.join(", ") };
    wrap(&mut text, width, "listens:", &listens);
    for why in &kv.failed {
        wrap(&mut text, width, "warning:", why);
    }
    let loading = match kv.loaded {
        1000 => String::new(),
        part => format!("; {} % of the annexd before are taken over", part / 10),
    };
    wrap(&mut text, width, "keys:", &format!("{}{loading}", count(kv.keys)));
    if kv.keys > 0 {
        let lasts = "survives annexd being killed or replaced (--take-over); goes when annexd is stopped in order";
        wrap(&mut text, width, "content:", lasts);
    }
    let limit = match kv.limit {
        0 => "no limit of its own".into(),
        limit => format!("of {}", format_bytes(limit)),
    };
    let waste = 100 * kv.held.saturating_sub(kv.used) / kv.held.max(1);
    let size = format!(
        "{} {limit}, {}; holds {} of pool, {waste} % unused",
        format_bytes(kv.used),
        kv.policy,
        format_bytes(kv.held)
    );
    wrap(&mut text, width, "size:", &size);
    let share = format!(
        "{} are kept free of programs' pages, {} at most",
        format_bytes(kv.pool_min),
        format_bytes(kv.pool_max)
    );
    wrap(&mut text, width, "pool:", &share);
    let asked = (kv.hits + kv.misses).max(1);
    let rate = |n: u64, of: u64| 100 * n / of.max(1);
    let hits = format!(
        "{} % of {}; {} % of these from {} of annexd's memory",
        rate(kv.hits, asked),
        count(kv.hits + kv.misses),
        rate(kv.cache_hits, kv.hits),
        format_bytes(kv.cached)
    );
    wrap(&mut text, width, "hits:", &hits);
    let gone = format!("{} expired, {} evicted, {} lost", count(kv.expired), count(kv.evicted), count(kv.lost));
    wrap(&mut text, width, "gone:", &gone);
    let per_key = kv.local.checked_div(kv.keys).map_or(String::new(), |bytes| format!(", {bytes} bytes per key"));
    wrap(&mut text, width, "index:", &format!("{}{per_key}", format_bytes(kv.local)));
    let limit = match kv.client_memory_limit {
        0 => "no limit".into(),
        limit => format!("of {}", format_bytes(limit)),
    };
    let closed = match kv.clients_evicted {
        0 => String::new(),
        closed => format!("; {} were closed for want of it", count(closed)),
    };
    let clients =
        format!("{}, {} {limit} of annexd's memory{closed}", count(kv.clients), format_bytes(kv.client_memory));
    wrap(&mut text, width, "clients:", &clients);
    let donors: Vec<String> =
        kv.donors.iter().map(|(name, bytes)| format!("{name} {}", format_bytes(*bytes))).collect();
    wrap(
        &mut text,
        width,
        "donors:",
        if donors.is_empty() { "nothing is there".into() } else { donors.join(", ") }.as_str(),
    );
    text
}

pub fn status(status: &Status, width: Option<u16>) -> String {
    let mut text = String::new();
    wrap(&mut text, width, "", &daemon(status));
    wrap(&mut text, width, "health:", &health(status));
    wrap(&mut text, width, "pool:", &pool(status));
    wrap(&mut text, width, "workers:", &workers(status));
    text.push('\n');
    text.push_str(&donors(&status.donors, width));
    text.push('\n');
    text.push_str(&short_apps(&status.apps, width));
    if !status.warnings.is_empty() {
        text.push('\n');
    }
    for warning in &status.warnings {
        wrap(&mut text, width, "warning:", warning);
    }
    text
}

fn daemon(status: &Status) -> String {
    format!(
        "annexd {}, process {}, up {}, {:.1} s of CPU, kernel {}",
        status.version,
        status.pid,
        duration(status.uptime_s),
        status.cpu_s,
        status.kernel
    )
}

/// What `annex status --check` exits with: 0 healthy, 1 degraded, 2 pages are lost, out of reach,
/// or down to their last copy.
pub fn grade(status: &Status) -> u8 {
    let pool = &status.pool;
    let up = status.donors.iter().filter(|d| d.state == DonorState::Up).count();
    if pool.lost_extents + pool.waiting_extents + pool.last_copy_extents > 0 || pool.lost_pages > 0 {
        2
    } else if pool.degraded_extents + pool.stuck_replicas > 0
        || pool.full
        || up < status.donors.len()
        || up < usize::from(status.replicas)
    {
        1
    } else {
        0
    }
}

/// In one sentence: is anything lost or at risk, and what is being done about it.
fn health(status: &Status) -> String {
    let pool = &status.pool;
    if pool.lost_extents > 0 {
        return format!(
            "DATA IS LOST: {} of {} extents have no copy left; programs that touch their pages get SIGBUS",
            pool.lost_extents, pool.extents
        );
    }
    let down: Vec<&str> = status.donors.iter().filter(|d| d.state != DonorState::Up).map(|d| d.name.as_str()).collect();
    let down = if down.is_empty() { String::new() } else { format!("; not up: {}", down.join(", ")) };
    if pool.waiting_extents > 0 {
        return format!(
            "OUT OF REACH: {} of {} extents have no copy on a donor that is up; programs that touch their pages wait{down}",
            pool.waiting_extents, pool.extents
        );
    }
    if pool.degraded_extents > 0 {
        let repair = match (pool.repair_left, pool.stale_replicas) {
            (0, 0) => "nothing is being copied: no donor has room for another copy".to_owned(),
            (0, away) => format!("{away} copies wait for their donor to come back"),
            (left, _) => format!("{} to copy, about {} left", format_bytes(left), duration(pool.repair_eta_s)),
        };
        let (degraded, last, all) = (pool.degraded_extents, pool.last_copy_extents, pool.extents);
        return match last {
            0 => format!("degraded: {degraded} of {all} extents lack a copy; {repair}{down}"),
            _ => format!(
                "AT RISK: {last} of {all} extents have one copy left, whose donor's failure would lose their pages; {repair}{down}"
            ),
        };
    }
    if pool.stuck_replicas > 0 {
        return format!(
            "stuck: {} copies are to leave their donor and nobody else has room for them; raise capacity on another donor, \
             or add one (annex donors add HOST:PORT){down}",
            pool.stuck_replicas
        );
    }
    if pool.full {
        return format!("full: {}; programs keep their pages until then{down}", pool.lack);
    }
    let moving = pool.moving_replicas + pool.syncing_replicas;
    let moving = if moving > 0 { format!("; {moving} copies are on the move to other donors") } else { String::new() };
    let copies = if status.replicas == 1 { "its one copy".into() } else { format!("{} copies", status.replicas) };
    format!("healthy: every page in the pool has {copies}{moving}{down}")
}

fn pool(status: &Status) -> String {
    let pool = &status.pool;
    let mut text = format!(
        "{} of {} used, {} {} with {} {} each",
        format_bytes(pool.used),
        format_bytes(pool.capacity),
        pool.extents,
        if pool.extents == 1 { "extent" } else { "extents" },
        status.replicas,
        if status.replicas == 1 { "copy" } else { "copies" }
    );
    for (n, what) in [(pool.degraded_extents, "degraded"), (pool.lost_extents, "lost")] {
        if n > 0 {
            text.push_str(&format!(", {n} {what}"));
        }
    }
    if pool.spilled > 0 {
        text.push_str(&format!(", {} in the spill file", format_bytes(pool.spilled)));
    }
    if pool.backup_lag > 0 {
        text.push_str(&format!(", {} not backed up yet", format_bytes(pool.backup_lag)));
    }
    if pool.full {
        text.push_str(", full");
    }
    text
}

fn workers(status: &Status) -> String {
    let workers = &status.workers;
    let mut text =
        format!("{} for faults ({}), {} for eviction", workers.fault_workers, workers.wait, workers.evictors);
    if let Some(bytes) = status.overhead_per_page {
        text.push_str(&format!("; tables: {bytes:.1} bytes per page"));
    }
    text
}

pub fn donors(donors: &[DonorInfo], width: Option<u16>) -> String {
    if donors.is_empty() {
        return "no donors configured (annexd --donor HOST:PORT, or [[pool.donor]] in annexd.toml)\n".into();
    }
    let columns = [
        Column::Text("DONOR"),
        Column::Text("STATE"),
        Column::Text("VIA"),
        Column::Number("SLABS"),
        Column::Number("USED"),
        Column::Number("READS"),
        Column::Number("WRITES"),
        Column::Number("ERRORS"),
    ];
    let rows = donors.iter().map(|d| {
        vec![
            d.name.clone(),
            match d.state {
                _ if d.draining => "leaving",
                DonorState::Connecting => "trying",
                DonorState::Up => "up",
                DonorState::Lost => "lost",
            }
            .into(),
            via(d.transport),
            format!("{}/{}", d.slabs_held, d.slabs_capacity),
            format_bytes(d.used),
            count(d.reads),
            count(d.writes),
            count(d.errors + d.checksum_errors),
        ]
    });
    let mut text = draw(&columns, rows, width);
    // Most donors are reached the same way for the same reason.
    let mut reasons: Vec<(&str, Vec<&DonorInfo>)> = Vec::new();
    for donor in donors.iter().filter(|donor| !donor.why.is_empty()) {
        match reasons.iter_mut().find(|(why, _)| *why == donor.why) {
            Some((_, alike)) => alike.push(donor),
            None => reasons.push((&donor.why, vec![donor])),
        }
    }
    for (why, alike) in reasons {
        let lead = match alike.as_slice() {
            [one] if one.name == one.address => format!("  {}:", one.name),
            [one] => format!("  {} at {}:", one.name, one.address),
            all if all.len() == donors.len() => format!("  all {} donors:", all.len()),
            some => {
                let names: Vec<&str> = some.iter().map(|donor| donor.name.as_str()).collect();
                format!("  {} donors ({}):", some.len(), names.join(", "))
            }
        };
        wrap(&mut text, width, &lead, why);
    }
    for donor in donors {
        for over in &donor.traffic {
            wrap(&mut text, width, &format!("  {} over {}:", donor.name, over.transport), &traffic(over));
        }
    }
    text
}

fn traffic(over: &TransportInfo) -> String {
    let bytes = format_bytes(over.bytes_read + over.bytes_written);
    let mut text = format!("{bytes} moved, p50 {}, p99 {}", microseconds(over.p50_us), microseconds(over.p99_us));
    if !over.errors.is_empty() {
        let errors: Vec<_> = over.errors.iter().map(|(what, n)| format!("{what} {}", count(*n))).collect();
        text.push_str(&format!("; failed: {}", errors.join(", ")));
    }
    text
}

fn short_apps(apps: &[AppInfo], width: Option<u16>) -> String {
    if apps.is_empty() {
        return "no apps\n".into();
    }
    let columns = [
        Column::Text("APP"),
        Column::Text("STATE"),
        Column::Number("LOCAL"),
        Column::Number("RESIDENT"),
        Column::Number("IN POOL"),
        Column::Number("FAULTS"),
        Column::Number("P50"),
        Column::Number("P99"),
    ];
    let rows = apps.iter().map(|app| {
        vec![
            app.name.clone(),
            state(app.state).into(),
            app.local.to_string(),
            format_bytes(app.resident),
            format_bytes(app.evicted),
            count(app.faults.major),
            latency(app, app.faults.p50_us),
            latency(app, app.faults.p99_us),
        ]
    });
    let mut text = draw(&columns, rows, width);
    notes(&mut text, apps, width);
    text
}

fn notes(text: &mut String, apps: &[AppInfo], width: Option<u16>) {
    for app in apps.iter().filter(|app| !app.note.is_empty()) {
        wrap(text, width, &format!("  {}:", app.name), &app.note);
    }
}

/// Adds a paragraph: `lead` and the words, further lines set in by four.
fn wrap(out: &mut String, width: Option<u16>, lead: &str, words: &str) {
    let mut line = printable(lead).into_owned();
    for word in printable(words).split_whitespace() {
        if width.is_some_and(|width| line.chars().count() + 1 + word.chars().count() > usize::from(width)) {
            out.push_str(&line);
            out.push('\n');
            line = "   ".into();
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    out.push_str(&line);
    out.push('\n');
}

fn pids(app: &AppInfo) -> String {
    match app.pids.as_slice() {
        [] => "-".into(),
        [one] => one.to_string(),
        [first, others @ ..] => format!("{first} +{}", others.len()),
    }
}

fn user(uid: u32) -> String {
    nix::unistd::User::from_uid(uid.into()).ok().flatten().map_or_else(|| uid.to_string(), |user| user.name)
}

fn state(state: AppState) -> &'static str {
    match state {
        AppState::Waiting => "waiting",
        AppState::Running => "running",
        AppState::Detaching => "detaching",
    }
}

fn via(transport: Option<Transport>) -> String {
    transport.map_or_else(|| "-".into(), |t| t.to_string())
}

fn latency(app: &AppInfo, us: f64) -> String {
    if app.faults.major == 0 { "-".into() } else { microseconds(us) }
}

fn microseconds(us: f64) -> String {
    match us {
        us if us < 100.0 => format!("{us:.1} µs"),
        us if us < 10_000.0 => format!("{us:.0} µs"),
        us => format!("{:.0} ms", us / 1000.0),
    }
}

fn duration(seconds: u64) -> String {
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds} s"),
        (0, 0, m) => format!("{m} min"),
        (0, h, m) => format!("{h} h {m} min"),
        (d, h, _) => format!("{d} d {h} h"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_read_short() {
        assert_eq!(
            [duration(5), duration(125), duration(7300), duration(200_000)],
            ["5 s", "2 min", "2 h 1 min", "2 d 7 h"]
        );
        assert_eq!([microseconds(8.54), microseconds(250.0), microseconds(31_000.0)], ["8.5 µs", "250 µs", "31 ms"]);
    }

    #[test]
    fn the_health_line_says_what_is_at_risk_and_what_is_done_about_it() {
        let donor = |name: &str, state: &str| {
            serde_json::json!({"name": name, "address": name, "state": state, "transport": null, "why": "", "slabs_held": 0,
                "slabs_free": 0, "slabs_capacity": 0, "used": 0, "reads": 0, "writes": 0, "errors": 0, "checksum_errors": 0})
        };
        let said = |pool: serde_json::Value| {
            let mut all = serde_json::json!({"capacity": 0, "used": 0, "extents": 14, "degraded_extents": 0, "lost_extents": 0, "full": false});
            all.as_object_mut().expect("an object").extend(pool.as_object().expect("an object").clone());
            let status = serde_json::json!({"version": "1", "pid": 1, "uptime_s": 1, "kernel": "6.12", "replicas": 2,
                "donors": [donor("d1", "lost"), donor("d2", "up")], "pool": all, "cpu_s": 0.0, "apps": [], "warnings": [],
                "workers": {"fault_workers": 1, "wait": "block", "evictors": 1}, "overhead_per_page": null});
            let status: Status = serde_json::from_value(status).expect("a status");
            format!("{} [{}]", health(&status), grade(&status))
        };
        assert_eq!(said(serde_json::json!({})), "healthy: every page in the pool has 2 copies; not up: d1 [1]");
        let repaired = said(
            serde_json::json!({"degraded_extents": 3, "last_copy_extents": 3, "repair_left": 192 << 20, "repair_eta_s": 4}),
        );
        assert_eq!(
            repaired,
            "AT RISK: 3 of 14 extents have one copy left, whose donor's failure would lose their pages; 192 MiB to copy, about 4 s left; \
             not up: d1 [2]"
        );
        let empty = said(serde_json::json!({"degraded_extents": 3}));
        assert!(empty.starts_with("degraded: 3 of 14 extents lack a copy; ") && empty.ends_with("[1]"), "{empty}");
        assert!(empty.contains("no donor has room"));
        assert!(said(serde_json::json!({"degraded_extents": 3, "stale_replicas": 2})).contains("wait for their donor"));
        let stuck = said(serde_json::json!({"stuck_replicas": 2, "moving_replicas": 2}));
        assert!(stuck.starts_with("stuck: 2 copies are to leave") && stuck.contains("annex donors add"), "{stuck}");
        let full = said(serde_json::json!({"full": true, "lack": "no donor has room: add one"}));
        assert_eq!(full, "full: no donor has room: add one; programs keep their pages until then; not up: d1 [1]");
        let waiting = said(serde_json::json!({"waiting_extents": 2, "degraded_extents": 3, "stale_replicas": 4}));
        assert!(waiting.starts_with("OUT OF REACH: 2 of 14") && waiting.ends_with("wait; not up: d1 [2]"), "{waiting}");
        assert!(
            said(serde_json::json!({"lost_extents": 1, "degraded_extents": 3})).starts_with("DATA IS LOST: 1 of 14")
        );
        assert!(said(serde_json::json!({"lost_pages": 1})).ends_with("[2]"));
    }

    #[test]
    fn traffic_tells_times_and_what_failed() {
        let mut over = TransportInfo {
            transport: Transport::Verbs,
            connections: 2,
            reads: 10,
            writes: 2,
            bytes_read: 3 << 20,
            bytes_written: 1 << 20,
            errors: Default::default(),
            p50_us: 8.54,
            p99_us: 31.0,
            max_us: 99.0,
            latency_us: Vec::new(),
        };
        assert_eq!(traffic(&over), "4 MiB moved, p50 8.5 µs, p99 31.0 µs");
        over.errors.insert("IBV_WC_RETRY_EXC_ERR".into(), 2);
        assert_eq!(traffic(&over), "4 MiB moved, p50 8.5 µs, p99 31.0 µs; failed: IBV_WC_RETRY_EXC_ERR 2");
    }

    #[test]
    fn paragraphs_stay_within_the_width() {
        let mut text = String::new();
        wrap(&mut text, Some(80), "warning:", &"word ".repeat(40));
        assert!(text.lines().count() > 1 && text.lines().all(|l| l.len() <= 80), "{text}");
        assert!(text.starts_with("warning: word word"));
        let mut text = String::new();
        wrap(&mut text, None, "warning:", &"word ".repeat(40));
        assert_eq!(text.lines().count(), 1, "in a pipe each is one line");
    }
}
