//! One of three donors dies while a program reads what is evicted: how its faults go on, and how
//! long until everything has two copies again.

use super::{APP, MINUTE, wait_whole};
use crate::access::series::Window;
use crate::access::ticks;
use crate::testbed::{Donor, Testbed, api, bins};
use annex_shared::api::{DonorState, Status};
use anyhow::{Context, ensure};
use nix::sys::signal::Signal;
use serde::Serialize;
use std::io::Write;
use std::process::Command;
use std::time::{Duration, Instant};

/// Latency counts as normal below this multiple of what it was before.
const NORMAL: f64 = 3.0;
/// MiB copied per second, as configured: what two CPUs can carry beside the program.
const RATE: u64 = 96;

/// What came of it. Times of faults in microseconds: a read of a random page, three quarters of
/// which are faults.
#[derive(Clone, Debug, Serialize)]
pub struct Rebuild {
    /// Bytes that had lost a copy, as annexd told it first.
    pub bytes: u64,
    pub normal_p50_us: f64,
    pub normal_p99_us: f64,
    /// Of the windows of 100 ms while copies were missing.
    pub meanwhile_p99_us: f64,
    pub worst_us: f64,
    /// From the death until no more than one window in ten is above three times the normal p99.
    pub normal_again_s: f64,
    /// From the death until every page has two copies, and the part of it from when the donor
    /// counts as lost.
    pub whole_s: f64,
    pub copying_s: f64,
    /// Copied per second of the latter, in MiB, and as configured.
    pub rate_mib_s: f64,
    pub configured_mib_s: u64,
    /// Second by second after the death: the median of the windows' p99.
    pub p99_us_by_second: Vec<f64>,
}

impl Rebuild {
    /// What was to be reached, and whether it was. A busy machine misses it.
    pub fn verdict(&self) -> String {
        let held = |is_held: bool| if is_held { "held" } else { "MISSED" };
        let (again, rate, wanted) = (self.normal_again_s, self.rate_mib_s, self.configured_mib_s);
        format!(
            "{}: p99 is below {NORMAL} times its normal value from {again:.2} s after the death on (bar: 1 s)\n\
             {}: copied at {rate:.1} MiB/s where {wanted} are configured (bar: nine tenths)",
            held(again <= 1.0),
            held(rate >= 0.9 * wanted as f64),
        )
    }
}

/// `evicted` bytes of the program are in the pool when the donor dies.
pub fn run(evicted: u64) -> anyhow::Result<Rebuild> {
    let mut config = tempfile::NamedTempFile::new()?;
    writeln!(config, "[pool]\nrepair_rate = \"{RATE}M\"")?;
    let bed = (0..3).fold(Testbed::builder(), |bed, _| bed.donor(Donor::tcp().capacity("2G")));
    let mut bed = bed.daemon_arg("--config").daemon_arg(config.path().to_string_lossy()).start();
    let size = evicted / 3 * 4;
    let mut reader = Command::new(bins::find("annex-access"));
    reader.args(["series", "--size", &size.to_string()]);
    let mut job = bed.run(APP, &(size / 4).to_string(), reader);
    job.stop_watching();
    job.wait_says("ready", 2 * MINUTE);
    bed.wait_app(APP, 2 * MINUTE, |app| app.evicted > evicted / 10 * 9);
    wait_whole(&bed, &mut job)?;
    std::thread::sleep(Duration::from_secs(5));

    let died = (Instant::now(), ticks::now());
    bed.agents[0].kill();
    let status = || api::fetch::<Status>(&bed.socket, "/v1/status");
    let (mut bytes, mut noticed, mut lost_s) = (0, false, None);
    loop {
        let now = status()?;
        bytes = bytes.max(now.pool.repair_left);
        let missing = now.pool.degraded_extents + now.pool.syncing_replicas + now.pool.stale_replicas;
        if now.pool.syncing_replicas > 0 {
            lost_s.get_or_insert(died.0.elapsed().as_secs_f64());
        }
        noticed |= now.donors.iter().any(|d| d.state != DonorState::Up) && missing > 0;
        if noticed && missing == 0 && now.pool.repair_left == 0 {
            break;
        }
        ensure!(died.0.elapsed() < 5 * MINUTE, "not rebuilt: {:?}\n{}", now.pool, bed.annexd_logs());
        std::thread::sleep(Duration::from_millis(20));
    }
    let whole_s = died.0.elapsed().as_secs_f64();
    let copying_s = whole_s - lost_s.context("the status never told of a replica that is being filled")?;
    std::thread::sleep(Duration::from_secs(2));
    job.signal(Signal::SIGTERM);
    let outcome = job.wait(MINUTE);
    ensure!(outcome.status.success(), "the reader failed: {outcome}");
    let windows: Vec<Window> = serde_json::from_str(&outcome.stdout).context("the reader's windows")?;

    let (before, after): (Vec<Window>, Vec<Window>) = windows.iter().partition(|w| w.end_ns <= died.1);
    let before = &before[before.len().saturating_sub(40)..];
    let seconds = |w: &Window| (w.end_ns - died.1) as f64 / 1e9;
    let meanwhile: Vec<Window> = after.iter().copied().filter(|w| seconds(w) <= whole_s).collect();
    let normal_p99_us = middle(before.iter().map(|w| w.p99_us));
    let too_slow = |w: &Window| w.p99_us > NORMAL * normal_p99_us;
    let rest_is_normal = |from: usize| {
        let rest = &meanwhile[from..];
        rest.iter().filter(|w| too_slow(w)).count() * 10 <= rest.len()
    };
    let first = (0..meanwhile.len()).find(|from| !too_slow(&meanwhile[*from]) && rest_is_normal(*from));
    Ok(Rebuild {
        bytes,
        normal_p50_us: middle(before.iter().map(|w| w.p50_us)),
        normal_p99_us,
        meanwhile_p99_us: middle(meanwhile.iter().map(|w| w.p99_us)),
        worst_us: after.iter().map(|w| w.max_us).fold(0.0, f64::max),
        normal_again_s: first.map_or(f64::INFINITY, |from| seconds(&meanwhile[from])),
        whole_s,
        copying_s,
        p99_us_by_second: (0..whole_s as usize + 2)
            .map(|second| {
                let of_it = after.iter().filter(|w| seconds(w) as usize == second);
                middle(of_it.map(|w| w.p99_us))
            })
            .collect(),
        rate_mib_s: bytes as f64 / copying_s / (1 << 20) as f64,
        configured_mib_s: RATE,
    })
}

fn middle(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
