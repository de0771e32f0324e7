//! `annex apps`, `annex slabs`, `annex donors` and `annex status`, as people read them.

use crate::table::{Column, count, draw};
use annex_shared::api::{AppInfo, AppState, DonorInfo, DonorState, SlabInfo, Status, format_bytes};
use annex_shared::fabric::Transport;

/// `annex status` fits a classic terminal.
const STATUS_WIDTH: u16 = 80;

pub fn apps(apps: &[AppInfo]) -> String {
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
    notes(&mut text, apps);
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

pub fn status(status: &Status) -> String {
    let mut text = String::new();
    wrap(&mut text, "", &daemon(status));
    wrap(&mut text, "pool:", &pool(status));
    wrap(&mut text, "workers:", &workers(status));
    text.push('\n');
    text.push_str(&donors(&status.donors));
    text.push('\n');
    text.push_str(&short_apps(&status.apps));
    if !status.warnings.is_empty() {
        text.push('\n');
    }
    for warning in &status.warnings {
        wrap(&mut text, "warning:", warning);
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

pub fn donors(donors: &[DonorInfo]) -> String {
    if donors.is_empty() {
        return "no donors configured (annexd --donor HOST:PORT, or [[pool.donors]] in annexd.toml)\n".into();
    }
    let columns = [
        Column::Text("DONOR"),
        Column::Text("ADDRESS"),
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
            d.address.clone(),
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
    let mut text = draw(&columns, rows, Some(STATUS_WIDTH));
    for donor in donors.iter().filter(|d| !d.why.is_empty()) {
        wrap(&mut text, &format!("  {}:", donor.name), &donor.why);
    }
    text
}

fn short_apps(apps: &[AppInfo]) -> String {
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
    let mut text = draw(&columns, rows, Some(STATUS_WIDTH));
    notes(&mut text, apps);
    text
}

fn notes(text: &mut String, apps: &[AppInfo]) {
    for app in apps.iter().filter(|app| !app.note.is_empty()) {
        wrap(text, &format!("  {}:", app.name), &app.note);
    }
}

/// Adds a paragraph: `lead` and the words, further lines set in by four.
fn wrap(out: &mut String, lead: &str, words: &str) {
    let mut line = lead.to_owned();
    for word in words.split_whitespace() {
        if line.chars().count() + 1 + word.chars().count() > usize::from(STATUS_WIDTH) {
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
    fn paragraphs_stay_within_the_width() {
        let mut text = String::new();
        wrap(&mut text, "warning:", &"word ".repeat(40));
        assert!(text.lines().count() > 1 && text.lines().all(|l| l.len() <= 80), "{text}");
        assert!(text.starts_with("warning: word word"));
    }
}
