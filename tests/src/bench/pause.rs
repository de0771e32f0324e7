//! What a program pays besides its faults: the pause of an attach, the cost of being managed while
//! within the limit, and what annexd uses while nothing happens.

use super::ratio::middle;
use crate::access::Measured;
use crate::access::ticks::{self, Gap};
use crate::testbed::{Testbed, api, bins};
use annex_shared::api::{AppInfo, AttachRequest, Limit, Target};
use anyhow::{Context, ensure};
use nix::sys::signal::Signal;
use serde::Serialize;
use std::process::Command;
use std::time::Duration;

/// How often, and how long.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub attaches: usize,
    pub rounds: usize,
    pub rest: Duration,
}

impl Plan {
    pub const USUAL: Plan = Plan { attaches: 100, rounds: 7, rest: Duration::from_secs(10) };
    pub const QUICK: Plan = Plan { attaches: 30, rounds: 3, rest: Duration::from_secs(3) };
}

#[derive(Debug, Serialize)]
pub struct Report {
    pub attaches: usize,
    /// The longest gap that a thread which only reads the clock saw during each attach.
    pub attach_pause_p50_us: f64,
    pub attach_pause_max_us: f64,
    /// The same during windows of the same length without an attach: the machine itself.
    pub machine_pause_p50_us: f64,
    pub machine_pause_max_us: f64,
    /// Throughput of a program within its limit, as a share of its native throughput; medians of
    /// interleaved runs.
    pub within_limit_share: f64,
    /// annexd's CPU time while nothing faults, in percent of one core.
    pub idle_cpu_percent: f64,
}

pub fn measure(plan: Plan) -> anyhow::Result<Report> {
    let bed = Testbed::shm();
    let (attach, machine) = attach_pauses(&bed, plan)?;
    let within_limit_share = within_limit(&bed, plan)?;
    let idle_cpu_percent = idle_cpu(&bed, plan)?;
    let last = |sorted: &[f64]| sorted.iter().copied().fold(0.0, f64::max);
    Ok(Report {
        attaches: plan.attaches,
        attach_pause_max_us: last(&attach),
        attach_pause_p50_us: middle(attach),
        machine_pause_max_us: last(&machine),
        machine_pause_p50_us: middle(machine),
        within_limit_share,
        idle_cpu_percent,
    })
}

/// The longest gap of each attach, and of each window without one, in microseconds.
fn attach_pauses(bed: &Testbed, plan: Plan) -> anyhow::Result<(Vec<f64>, Vec<f64>)> {
    let mut command = Command::new(bins::find("annex-access"));
    command.args(["ticks", "--size", "64M"]);
    let mut job = bed.natively("ticks", command);
    job.wait_says("ready", Duration::from_secs(30));
    let request = AttachRequest {
        target: Target::Pid(job.pid()),
        name: Some("ticks".into()),
        program: None,
        // Nothing is evicted: the pause is the attach's alone.
        local: Some(Limit::Bytes(1 << 30).into()),
        require_donors: true,
    };
    let (mut attached, mut alone) = (Vec::new(), Vec::new());
    for _ in 0..plan.attaches {
        let begin = ticks::now();
        let _app: AppInfo = api::send(&bed.socket, "POST", "/v1/apps", &request)?;
        let end = ticks::now();
        attached.push(Gap { begin, end });
        let answer = api::request(&bed.socket, "DELETE", "/v1/apps/ticks", None)?;
        ensure!(answer.to_ascii_lowercase().contains("done"), "detach said {answer}");
        std::thread::sleep(Duration::from_millis(5));
        let begin = ticks::now();
        std::thread::sleep(Duration::from_nanos(end - attached.last().map_or(end, |w| w.begin)));
        alone.push(Gap { begin, end: ticks::now() });
    }
    job.signal(Signal::SIGTERM);
    let outcome = job.wait(Duration::from_secs(30));
    ensure!(outcome.status.success(), "{outcome}");
    let gaps: Vec<Gap> = serde_json::from_str(&outcome.stdout).context("the gaps")?;
    let longest = |windows: &[Gap]| {
        windows
            .iter()
            .map(|w| {
                let within = gaps.iter().filter(|g| g.end > w.begin && g.begin < w.end);
                within.map(Gap::len).max().unwrap_or(0) as f64 / 1e3
            })
            .collect()
    };
    Ok((longest(&attached), longest(&alone)))
}

fn within_limit(bed: &Testbed, plan: Plan) -> anyhow::Result<f64> {
    let command = |round: usize| {
        let mut command = Command::new(bins::find("annex-access"));
        command.args(["pattern", "random", "--size", "256M", "--seconds", "2", "--seed", &round.to_string()]);
        command
    };
    let (mut native, mut managed) = (Vec::new(), Vec::new());
    for round in 0..plan.rounds {
        // Each goes first every other time.
        for turn in 0..2 {
            let limit = Duration::from_secs(60);
            let (job, list) = if (round + turn) % 2 == 0 {
                (bed.natively("native", command(round)), &mut native)
            } else {
                (bed.run("managed", "1G", command(round)), &mut managed)
            };
            let outcome = job.wait(limit);
            ensure!(outcome.status.success() && outcome.seen.pages_evicted == 0, "{outcome}");
            bed.wait_gone("managed");
            list.push(serde_json::from_str::<Measured>(&outcome.stdout)?.ops_per_s);
        }
    }
    Ok(middle(managed) / middle(native))
}

fn idle_cpu(bed: &Testbed, plan: Plan) -> anyhow::Result<f64> {
    let mut command = Command::new("sleep");
    command.arg("60");
    let _job = bed.run("sleeper", "1G", command);
    std::thread::sleep(Duration::from_secs(1));
    let before = bed.status().cpu_s;
    std::thread::sleep(plan.rest);
    Ok((bed.status().cpu_s - before) / plan.rest.as_secs_f64() * 100.0)
}
