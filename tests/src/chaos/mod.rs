//! Faults, again and again, while a program that checks every byte pages at full rate: what `make
//! chaos` runs.
//!
//! - [`fault`]: what is done to annex, and how it is undone. [`watch`]: how long the program stands
//!   still meanwhile. [`report`]: the table.
//! - [`rebuild`]: a donor dies for good, with a gigabyte on it.
//!
//! A round is: inject, undo (a hung donor goes on, a dead one starts again…), wait until the
//! program's faults are served and every page has all its replicas on donors that are up. The
//! program runs through all rounds of a fault and verifies everything once more at the end.

pub mod fault;
pub mod rebuild;
pub mod report;
pub mod watch;

use crate::testbed::{Job, Testbed, api, bins, directory};
use annex_shared::api::{DonorState, Status};
use anyhow::{Context, ensure};
use fault::Fault;
use nix::sys::signal::Signal;
use report::Row;
use std::process::Command;
use std::time::{Duration, Instant};
use watch::Watch;

/// The app's name.
const APP: &str = "load";
const MINUTE: Duration = Duration::from_secs(60);

pub struct Plan {
    pub faults: Vec<Fault>,
    pub rounds: u32,
    /// No new round of a fault begins after this.
    pub at_most: Duration,
    pub size: u64,
}

/// Runs the plan; a row for each fault, `said` as soon as it is known.
pub fn run(plan: &Plan, mut said: impl FnMut(&Row)) -> anyhow::Result<Vec<Row>> {
    let mut rows = Vec::new();
    for (i, fault) in plan.faults.iter().enumerate() {
        let row = rounds(plan, *fault, i as u64 + 1).with_context(|| format!("the fault was: {}", fault.words()))?;
        said(&row);
        rows.push(row);
    }
    Ok(rows)
}

fn load(plan: &Plan, seed: u64) -> Command {
    let mut command = Command::new(bins::find("annex-stress"));
    command.args(["--size", &plan.size.to_string(), "--threads", "3", "--seed", &seed.to_string()]);
    command.args(["--seconds", "0", "--stall", "60"]).arg("--dir").arg(directory());
    command
}

fn rounds(plan: &Plan, fault: Fault, seed: u64) -> anyhow::Result<Row> {
    let mut bed = fault.bed();
    let mut job = bed.run(APP, &(plan.size / 4).to_string(), load(plan, seed));
    job.stop_watching();
    job.wait_says("ready", MINUTE);
    bed.wait_app(APP, MINUTE, |app| app.pages_evicted > 5000 && app.faults.major > 1000);
    wait_whole(&bed, &mut job)?;
    let watch = Watch::start(&bed.socket, APP);
    let mut row = Row::new(fault);
    let started = Instant::now();
    while row.rounds < plan.rounds && started.elapsed() < plan.at_most {
        let injected = Instant::now();
        fault.inject(&mut bed, row.rounds)?;
        wait_served(&watch, &bed, &mut job, injected)?;
        let status = wait_whole(&bed, &mut job)?;
        row.whole.push(injected.elapsed());
        row.stalls.push(watch.longest_since(injected));
        row.lost = row.lost.max(status.pool.lost_pages);
        row.rounds += 1;
    }
    row.seconds = started.elapsed().as_secs_f64();
    row.faults_served = watch.end();
    let lost = bed.app(APP).is_none_or(|app| app.note.contains("lost"));
    row.lost += u64::from(lost);
    job.signal(Signal::SIGTERM);
    let outcome = job.wait(2 * MINUTE);
    let summary: serde_json::Value = serde_json::from_str(&outcome.stdout).unwrap_or_default();
    ensure!(outcome.status.success() && summary["checks"].is_u64(), "the load failed: {outcome}");
    row.checks = summary["checks"].as_u64().unwrap_or(0);
    row.wrong = summary["errors"].as_u64().unwrap_or(u64::MAX);
    Ok(row)
}

/// Until faults are served again that came after `since`.
fn wait_served(watch: &Watch, bed: &Testbed, job: &mut Job, since: Instant) -> anyhow::Result<()> {
    while !watch.moved_after(since) {
        still(bed, job, since, "no fault is served")?;
    }
    Ok(())
}

/// Until every page has all its replicas and all donors are up.
fn wait_whole(bed: &Testbed, job: &mut Job) -> anyhow::Result<Status> {
    let since = Instant::now();
    loop {
        if let Ok(status) = api::fetch::<Status>(&bed.socket, "/v1/status")
            && is_whole(&status)
        {
            return Ok(status);
        }
        still(bed, job, since, "the pool is not whole again")?;
    }
}

fn is_whole(status: &Status) -> bool {
    let pool = &status.pool;
    let missing = pool.degraded_extents + pool.syncing_replicas + pool.stale_replicas + pool.moving_replicas;
    let attached = status.apps.iter().any(|app| app.name == APP);
    attached && missing == 0 && pool.lost_extents == 0 && status.donors.iter().all(|d| d.state == DonorState::Up)
}

fn still(bed: &Testbed, job: &mut Job, since: Instant, what: &str) -> anyhow::Result<()> {
    std::thread::sleep(Duration::from_millis(5));
    let running = job.process.is_running();
    let why = if running { what } else { "the load ended" };
    ensure!(
        running && since.elapsed() < 2 * MINUTE,
        "{why}: {:?}\n{}{}",
        api::request(&bed.socket, "GET", "/v1/status", None),
        job.process.log(),
        bed.annexd_logs()
    );
    Ok(())
}
