//! `annex apps`, `annex kv`, `annex slabs`, `annex donors` and `annex status`, as people read them.

use crate::table::{Column, count, draw};
use annex_shared::api::{
    AppInfo, AppState, AutoInfo, DonorInfo, DonorState, KvInfo, SlabInfo, Status, TransportInfo, format_bytes,
    format_seconds, format_share,
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
            app.limit_text(),
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
    wrap(&mut text, width, "health:", &status.health());
    for remedy in remedies(status) {
        wrap(&mut text, width, "remedy:", remedy);
    }
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

/// What to do, the most urgent first, each thing once.
fn remedies(status: &Status) -> Vec<&str> {
    let mut all: Vec<&str> = Vec::new();
    for condition in &status.conditions {
        let remedy = condition.remedy.as_str();
        if !remedy.is_empty() && !all.contains(&remedy) {
            all.push(remedy);
        }
    }
    all
}

fn daemon(status: &Status) -> String {
    format!(
        "annexd {}, process {}, up {}, {:.1} s of CPU, kernel {}",
        status.version,
        status.pid,
        format_seconds(status.uptime_s),
        status.cpu_s,
        status.kernel
    )
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
    if pool.sealed {
        text.push_str(", sealed");
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
            donor_state(d).into(),
            if d.encrypted { format!("{}+tls", via(d.transport)) } else { via(d.transport) },
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

pub fn donor_state(donor: &DonorInfo) -> &'static str {
    match donor.state {
        _ if donor.draining => "leaving",
        DonorState::Connecting => "trying",
        DonorState::Up => "up",
        DonorState::Lost => "lost",
    }
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
            app.limit_text(),
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

/// What annexd does about a limit that it finds.
pub fn auto_words(auto: &AutoInfo) -> String {
    format!("stall {}, target {}; {}", format_share(auto.stall), format_share(auto.target), auto.doing)
}

/// After a change of an app's limit.
pub fn allowed(app: &AppInfo) -> String {
    let name = printable(&app.name);
    match &app.auto {
        Some(auto) => {
            format!("annexd finds the limit of {name}: it may wait {} of the time", format_share(auto.target))
        }
        None => format!("{name} may keep {} resident", app.local),
    }
}

fn notes(text: &mut String, apps: &[AppInfo], width: Option<u16>) {
    for app in apps {
        if !app.note.is_empty() {
            wrap(text, width, &format!("  {}:", app.name), &app.note);
        }
        if let Some(auto) = &app.auto {
            wrap(text, width, &format!("  {}:", app.name), &auto_words(auto));
        }
    }
}

/// Adds a paragraph: `lead` and the words, further lines set in by four.
pub fn wrap(out: &mut String, width: Option<u16>, lead: &str, words: &str) {
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

pub fn pids(app: &AppInfo) -> String {
    match app.pids.as_slice() {
        [] => "-".into(),
        [one] => one.to_string(),
        [first, others @ ..] => format!("{first} +{}", others.len()),
    }
}

pub fn user(uid: u32) -> String {
    nix::unistd::User::from_uid(uid.into()).ok().flatten().map_or_else(|| uid.to_string(), |user| user.name)
}

pub fn state(state: AppState) -> &'static str {
    match state {
        AppState::Waiting => "waiting",
        AppState::Running => "running",
        AppState::Detaching => "detaching",
    }
}

pub fn via(transport: Option<Transport>) -> String {
    transport.map_or_else(|| "-".into(), |t| t.to_string())
}

fn latency(app: &AppInfo, us: f64) -> String {
    if app.faults.major == 0 { "-".into() } else { microseconds(us) }
}

pub fn microseconds(us: f64) -> String {
    match us {
        us if us < 100.0 => format!("{us:.1} µs"),
        us if us < 10_000.0 => format!("{us:.0} µs"),
        us => format!("{:.0} ms", us / 1000.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latencies_read_short() {
        assert_eq!([microseconds(8.54), microseconds(250.0), microseconds(31_000.0)], ["8.5 µs", "250 µs", "31 ms"]);
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
            operations: Vec::new(),
        };
        assert_eq!(traffic(&over), "4 MiB moved, p50 8.5 µs, p99 31.0 µs");
        over.errors.insert("IBV_WC_RETRY_EXC_ERR".into(), 2);
        assert_eq!(traffic(&over), "4 MiB moved, p50 8.5 µs, p99 31.0 µs; failed: IBV_WC_RETRY_EXC_ERR 2");
    }

    #[test]
    fn the_listing_of_donors_says_over_which_there_is_tls() {
        let donor = |encrypted| {
            let donor = serde_json::json!({"name": "oak", "address": "10.0.0.5:7411", "state": "up", "transport": "tcp",
                "why": "", "encrypted": encrypted, "slabs_held": 1, "slabs_free": 0, "slabs_capacity": 2, "used": 0,
                "reads": 0, "writes": 0, "errors": 0, "checksum_errors": 0});
            serde_json::from_value::<DonorInfo>(donor).unwrap()
        };
        let listed = |encrypted| donors(&[donor(encrypted)], None).lines().nth(1).unwrap().to_owned();
        assert!(listed(true).contains("tcp+tls"), "{}", listed(true));
        assert!(!listed(false).contains("tls"), "{}", listed(false));
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
