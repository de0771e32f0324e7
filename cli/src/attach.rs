//! `annex attach`: has annexd take a process or all of a cgroup, and shows the first eviction.
//!
//! annexd answers as soon as it has the processes; the memory above the limit leaves in the
//! background. What is shown is read off the app's own numbers, until it is down to its limit or
//! has not shrunk for [`STILL`].

use crate::client::Client;
use crate::failure::Failure;
use crate::interrupt;
use crate::output::show;
use annex_cli::command::AttachArgs;
use annex_shared::api::{AppInfo, AttachRequest, Limit, Target, format_bytes};
use annex_shared::printable::printable;
use indicatif::{ProgressBar, ProgressStyle};
use std::time::{Duration, Instant};

const LOOK_EVERY: Duration = Duration::from_millis(100);
/// An app that has not shrunk for this long won't: its memory is hot, the pool is full, or it grows
/// as fast.
const STILL: Duration = Duration::from_secs(2);
/// Less than this is no shrinking.
const NOTICEABLE: u64 = 1 << 20;

pub fn attach(client: &Client, args: &AttachArgs, json: bool) -> Result<(), Failure> {
    let target = match (&args.unit, &args.container, &args.cgroup) {
        (Some(unit), ..) if unit.contains('.') => Target::Unit(unit.clone()),
        (Some(unit), ..) => Target::Unit(format!("{unit}.service")),
        (_, Some(container), _) => Target::Container(container.clone()),
        (.., Some(cgroup)) => Target::Cgroup(cgroup.clone()),
        _ => Target::Pid(args.pid.unwrap_or_default()),
    };
    let (name, local, require_donors) = (args.app.name.clone(), args.app.local, args.app.require_donors);
    let request = AttachRequest { target, name, program: None, local, require_donors };
    let notice = interrupt::explain(
        "interrupted: annexd may go on with the attach (annex apps shows it; annex detach APP undoes it)".into(),
    )?;
    let mut app = client.register(&request)?;
    notice.set(format!(
        "interrupted: {name} stays attached and its memory goes on to the pool (annex apps shows it; annex detach {name} undoes it)",
        name = app.name
    ));
    if !args.no_wait {
        app = watch_first_eviction(client, app)?;
    }
    show(json, &app, describe)
}

fn describe(app: &AppInfo) -> String {
    let mut text = format!(
        "attached {} (id {}): {} resident (limit {}), {} in the pool\n",
        printable(&app.name),
        app.id,
        format_bytes(app.resident),
        app.limit_text(),
        format_bytes(app.evicted)
    );
    if !app.note.is_empty() {
        text.push_str(&format!("  {}\n", printable(&app.note)));
    }
    text
}

/// What the app may keep resident now, in bytes.
fn allowance(app: &AppInfo) -> u64 {
    match app.local {
        Limit::Bytes(bytes) => bytes,
        Limit::Percent(percent) => (app.resident + app.evicted) / 100 * u64::from(percent),
    }
}

fn watch_first_eviction(client: &Client, mut app: AppInfo) -> Result<AppInfo, Failure> {
    let bar = ProgressBar::new(app.resident.saturating_sub(allowance(&app)));
    if let Ok(style) = ProgressStyle::with_template("{msg} [{bar:30}] {bytes} of {total_bytes}, {bytes_per_sec}") {
        bar.set_style(style.progress_chars("=> "));
    }
    bar.set_message(format!("moving {} to the pool", printable(&app.name)));
    let mut least = app.resident;
    let mut shrank = Instant::now();
    while app.resident > allowance(&app) && shrank.elapsed() < STILL {
        std::thread::sleep(LOOK_EVERY);
        let (id, name) = (app.id, app.name);
        app = client.apps()?.into_iter().find(|a| a.id == id).ok_or(Failure::Ended(name))?;
        if app.resident + NOTICEABLE <= least {
            least = app.resident;
            shrank = Instant::now();
        }
        let above = app.resident.saturating_sub(allowance(&app));
        bar.set_length(app.evicted + above);
        bar.set_position(app.evicted);
    }
    bar.finish_and_clear();
    Ok(app)
}
