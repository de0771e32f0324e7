//! Real programs from beginning to end, with a part of the memory they use natively: under annex,
//! on zram, and natively. What a program came to must be the same each time.
//!
//! - [`program`]: the programs. [`place`]: where they run.

pub mod place;
pub mod program;

use super::go_on;
use super::ratio::Ratio;
use crate::access::zipf::Zipf;
use crate::kv::bench::driver::{Driver, Tally, Until};
use crate::kv::bench::load::{Load, Mix, Requests, keys};
use crate::kv::bench::protocol::Protocol;
use crate::testbed::process::{Process, own_memory};
use crate::testbed::{directory, port, wait_for};
use anyhow::{Context, ensure};
use nix::sys::signal::Signal;
use place::{Kind, Place};
use program::Program;
use serde::Serialize;
use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpStream};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

/// A program that takes longer than that has shown enough.
const PATIENCE: Duration = Duration::from_secs(30);
/// How often a program's memory is looked at.
const LOOK: Duration = Duration::from_millis(10);
/// As many clients as memtier has threads' worth of; each waits for its answer before it asks
/// again.
const REDIS: Load = Load { mix: Mix::Mixed, bytes: 1024, pipeline: 1, connections: 50 };

#[derive(Clone, Debug)]
pub struct Plan {
    pub programs: Vec<Program>,
    /// Percent of what the program uses natively.
    pub local: Vec<u64>,
    /// How much work they have, in percent of the usual.
    pub size: u64,
    /// At most.
    pub rounds: usize,
    /// No further round of a program begins when its part of this would be over before it ends.
    pub budget: Duration,
    /// How long redis is asked.
    pub seconds: f64,
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum End {
    Done,
    /// Ended by us.
    TooLong,
    /// By the kernel, which found nothing to swap out in its memory cgroup, twice.
    Killed,
}

/// One run. What a redis says is per second; what others say is the time they took.
#[derive(Clone, Debug, Serialize)]
pub struct Run {
    pub round: usize,
    pub seconds: f64,
    pub end: End,
    pub ops_per_s: Option<f64>,
    pub p99_us: Option<f64>,
}

/// One program in one place.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    pub program: Program,
    pub place: Kind,
    pub local_percent: u64,
    pub runs: Vec<Run>,
}

#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    pub rows: Vec<Row>,
    /// What each uses natively, in bytes of anonymous memory at most.
    pub used: BTreeMap<String, u64>,
    pub skipped: BTreeMap<String, String>,
}

impl Run {
    /// Work per second, in whatever unit; of a run that took too long, the most it can have been.
    fn speed(&self) -> f64 {
        match self.end {
            End::Killed => 0.0,
            End::Done | End::TooLong => self.ops_per_s.unwrap_or(1.0 / self.seconds),
        }
    }
}

impl Report {
    pub fn row(&self, program: Program, place: Kind, local_percent: u64) -> Option<&Row> {
        self.rows.iter().find(|r| (r.program, r.place, r.local_percent) == (program, place, local_percent))
    }

    /// Of native speed in the same round.
    pub fn speed(&self, row: &Row) -> Option<Ratio> {
        let native = self.row(row.program, Kind::Native, 100)?;
        let pairs = row.runs.iter().filter_map(|run| {
            let beside = native.runs.iter().find(|native| native.round == run.round)?;
            Some(run.speed() / beside.speed())
        });
        Ratio::of(pairs.collect())
    }

    fn add(&mut self, program: Program, place: Kind, local_percent: u64, run: Run) {
        let known =
            self.rows.iter().position(|r| (r.program, r.place, r.local_percent) == (program, place, local_percent));
        match known {
            Some(nth) => self.rows[nth].runs.push(run),
            None => self.rows.push(Row { program, place, local_percent, runs: vec![run] }),
        }
    }
}

/// Runs them all, program by program, as many rounds as there is time for.
///
/// # Errors
/// A program fails, or comes to something else than natively.
pub fn run(plan: &Plan) -> anyhow::Result<Report> {
    let mut report = Report::default();
    let all = Instant::now();
    for (nth, &program) in plan.programs.iter().enumerate() {
        let directory = tempfile::Builder::new().prefix("annex-bench-").tempdir_in(directory())?;
        let mut bench = Bench { plan, program, directory: directory.path(), used: 0, proof: None };
        // What one leaves of its time the others have.
        let share = plan.budget.saturating_sub(all.elapsed()) / (plan.programs.len() - nth) as u32;
        let began = Instant::now();
        for round in 0..plan.rounds {
            let this = Instant::now();
            if let Err(why) = bench.round(round, &mut report) {
                // What is not installed is left out; what fails in the middle fails the benchmark.
                ensure!(bench.used == 0 && go_on().is_ok(), "{}: {why:#}", program.name());
                eprintln!("SKIPPED {}: {why:#}", program.name());
                report.skipped.insert(program.name().into(), format!("{why:#}"));
                break;
            }
            if began.elapsed() + this.elapsed() > share {
                break;
            }
        }
        report.used.insert(program.name().into(), bench.used);
    }
    Ok(report)
}

/// One program's rounds.
struct Bench<'a> {
    plan: &'a Plan,
    program: Program,
    directory: &'a Path,
    /// Natively, in bytes; 0 before that is known.
    used: u64,
    proof: Option<String>,
}

impl Bench<'_> {
    fn round(&mut self, round: usize, report: &mut Report) -> anyhow::Result<()> {
        // Natively first, to know how much it uses; the other two take turns at being next.
        let turns = if round.is_multiple_of(2) { Kind::ALL } else { [Kind::Native, Kind::Zram, Kind::AnnexShm] };
        for kind in turns {
            if report.skipped.contains_key(kind.name()) {
                continue;
            }
            let place = match Place::prepare(kind) {
                Ok(place) => place,
                Err(why) => {
                    eprintln!("SKIPPED {}: {why:#}", kind.name());
                    report.skipped.insert(kind.name().into(), format!("{why:#}"));
                    continue;
                }
            };
            let shares = if kind == Kind::Native { &[100][..] } else { &self.plan.local };
            for &percent in shares {
                go_on()?;
                let run = self.one(&place, round, percent).with_context(|| format!("{} {percent}%", kind.name()))?;
                say(self.program, kind, percent, &run);
                report.add(self.program, kind, percent, run);
            }
        }
        Ok(())
    }

    fn one(&mut self, place: &Place, round: usize, percent: u64) -> anyhow::Result<Run> {
        let local = self.used * percent / 100;
        let mut tries = 0;
        loop {
            let run = match self.program {
                Program::Redis => self.ask_redis(place, round, local)?,
                _ => self.finish(place, round, local)?,
            };
            place.settle();
            tries += 1;
            if run.end != End::Killed || tries == 2 {
                return Ok(run);
            }
            eprintln!("the kernel killed the program in its memory cgroup; trying again");
        }
    }

    /// A program that ends by itself.
    fn finish(&mut self, place: &Place, round: usize, local: u64) -> anyhow::Result<Run> {
        let command = self.program.command(self.directory, self.plan.size)?;
        let began = Instant::now();
        let mut running = place.start(command, local, self.directory)?;
        let (mut used, mut status) = (0, None);
        while status.is_none() && began.elapsed() < PATIENCE {
            used = used.max(anonymous(&running.process));
            status = running.process.wait(LOOK);
        }
        let seconds = began.elapsed().as_secs_f64();
        let ended = |end| Run { round, seconds, end, ops_per_s: None, p99_us: None };
        let Some(status) = status else { return Ok(ended(End::TooLong)) };
        if killed(status, place) {
            return Ok(ended(End::Killed));
        }
        ensure!(status.success(), "{status}: {}", running.process.log());
        let proof = self.program.proof(self.directory, &running.process.stdout())?;
        let known = self.proof.get_or_insert_with(|| proof.clone());
        ensure!(proof == *known, "WRONG RESULT: {proof} instead of {known}");
        self.used = self.used.max(used);
        Ok(ended(End::Done))
    }

    fn ask_redis(&mut self, place: &Place, round: usize, local: u64) -> anyhow::Result<Run> {
        let address = port::free();
        let mut command = self.program.command(self.directory, self.plan.size)?;
        command.args(["--port", &address.port().to_string()]);
        let mut running = place.start(command, local, self.directory)?;
        let began = Instant::now();
        while TcpStream::connect(address).is_err() {
            ensure!(running.process.is_running() && began.elapsed() < PATIENCE, "{}", running.process.log());
            std::thread::sleep(LOOK);
        }
        let asked = ask(address, Duration::from_secs_f64(self.plan.seconds), round as u64 + 1);
        let tally = match (asked, running.process.wait(LOOK)) {
            (Err(_), Some(status)) if killed(status, place) => {
                let seconds = began.elapsed().as_secs_f64();
                return Ok(Run { round, seconds, end: End::Killed, ops_per_s: None, p99_us: None });
            }
            (asked, _) => asked.with_context(|| running.process.log())?,
        };
        if matches!(place, Place::Native) {
            self.used = self.used.max(anonymous(&running.process));
        }
        running.process.signal(Signal::SIGTERM);
        wait_for("redis-server to end", PATIENCE, || !running.process.is_running());
        Ok(Run {
            round,
            seconds: tally.took.as_secs_f64(),
            end: End::Done,
            ops_per_s: Some(tally.requests as f64 / tally.took.as_secs_f64()),
            p99_us: Some(tally.latency.value_at_quantile(0.99) as f64 / 1e3),
        })
    }
}

/// Fills the server, and asks it for half the time to settle, then measured.
fn ask(address: SocketAddr, duration: Duration, seed: u64) -> anyhow::Result<Tally> {
    let fill = Load { mix: Mix::Set, pipeline: 64, connections: 4, ..REDIS };
    Driver::connect(address, Protocol::Resp, fill)?
        .run(&mut Requests::fill(REDIS.bytes), Until::Requests(keys(REDIS.bytes)))?;
    let mut driver = Driver::connect(address, Protocol::Resp, REDIS)?;
    let mut requests = Requests::drawn(REDIS, Zipf::new(keys(REDIS.bytes), 0.99), seed);
    driver.run(&mut requests, Until::Time(duration / 2))?;
    driver.run(&mut requests, Until::Time(duration))
}

/// In a small cgroup that refaults fast, the kernel sometimes finds every page too young to swap
/// out.
fn killed(status: ExitStatus, place: &Place) -> bool {
    matches!(place, Place::Zram(_)) && status.signal() == Some(libc::SIGKILL)
}

/// Anonymous memory that is resident, in bytes; 0 once it has ended.
fn anonymous(process: &Process) -> u64 {
    own_memory(process.pid()).unwrap_or(0)
}

fn say(program: Program, kind: Kind, percent: u64, run: &Run) {
    let came_to = match (run.ops_per_s, run.p99_us) {
        (Some(ops), Some(p99)) => format!("{ops:>9.0} requests/s  p99 {p99:.0} µs"),
        _ => format!("{:>7.2} s  {:?}", run.seconds, run.end),
    };
    eprintln!("{:>2} {:<8} {:<10} {percent:>3}%  {came_to}", run.round + 1, program.name(), kind.name());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speed_is_beside_native_of_the_same_round() {
        let run = |round, seconds| Run { round, seconds, end: End::Done, ops_per_s: None, p99_us: None };
        let mut report = Report::default();
        report.add(Program::Sort, Kind::Native, 100, run(0, 1.0));
        report.add(Program::Sort, Kind::Native, 100, run(1, 2.0));
        report.add(Program::Sort, Kind::Zram, 50, run(1, 8.0));
        let row = report.row(Program::Sort, Kind::Zram, 50).unwrap();
        assert_eq!(report.speed(row).unwrap().median, 0.25);
    }

    #[test]
    fn what_a_process_uses_is_seen() {
        let directory = tempfile::tempdir().unwrap();
        let mut command = std::process::Command::new("sleep");
        command.arg("10");
        let process = Process::start("sleep", command, directory.path());
        std::thread::sleep(Duration::from_millis(100));
        assert!(anonymous(&process) > 0);
    }
}
