//! What programs pay while `annex advise` looks at them: ten that use parts of their memory, in
//! windows with a look and without one, in turns.

use super::go_on;
use super::ratio::middle;
use crate::access::part::Pass;
use crate::access::ticks;
use crate::testbed::bins;
use crate::testbed::process::Process;
use anyhow::{Context, ensure};
use nix::sys::signal::Signal;
use serde::Serialize;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// MiB that each program has, and uses.
const PROGRAMS: [(u64, u64); 10] =
    [(64, 4), (64, 16), (64, 32), (96, 8), (96, 48), (96, 96), (128, 16), (128, 64), (160, 32), (160, 80)];

#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub rounds: usize,
    /// What `annex advise --for` is given. The default of the command is a minute: the cost is the
    /// same, in less time.
    pub time: Duration,
}

impl Plan {
    pub const USUAL: Plan = Plan { rounds: 9, time: Duration::from_secs(20) };
    pub const QUICK: Plan = Plan { rounds: 3, time: Duration::from_secs(5) };
}

#[derive(Debug, Serialize)]
pub struct Report {
    pub rounds: usize,
    pub seconds: f64,
    pub programs: Vec<Slowed>,
}

/// By how much a program was slower, in percent: the median of the rounds' own. Negative: faster.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Slowed {
    pub size: u64,
    pub hot: u64,
    /// By the time that its passes took.
    pub percent: f64,
    /// By the CPU time that they took.
    pub cpu_percent: f64,
    /// How far two windows without a look are apart: what the machine does by itself.
    pub noise_percent: f64,
    pub cpu_noise_percent: f64,
}

impl Report {
    pub fn worst(&self) -> f64 {
        self.programs.iter().map(|slowed| slowed.percent).fold(f64::NEG_INFINITY, f64::max)
    }
}

/// The windows of one round, in nanoseconds of CLOCK_MONOTONIC.
struct Round {
    looked: (u64, u64),
    alone: [(u64, u64); 2],
}

/// # Errors
/// A program fails, or the command does.
pub fn measure(plan: Plan) -> anyhow::Result<Report> {
    let folder = tempfile::tempdir()?;
    let mut programs = Vec::new();
    for (size, hot) in PROGRAMS {
        let mut command = Command::new(bins::find("annex-access"));
        command.args(["part", "--size", &format!("{size}M"), "--hot", &format!("{hot}M"), "--rest", "5"]);
        programs.push(Process::start("part", command, folder.path()));
    }
    for program in &mut programs {
        while !program.stderr().contains("ready") {
            ensure!(program.is_running(), "a program ended: {}", program.log());
            std::thread::sleep(Duration::from_millis(50));
        }
    }
    let pids: Vec<String> = programs.iter().map(|program| program.pid().to_string()).collect();
    let alone = || {
        let begin = ticks::now();
        std::thread::sleep(plan.time);
        (begin, ticks::now())
    };
    let mut rounds = Vec::new();
    for round in 0..plan.rounds {
        go_on()?;
        // The look comes first, in the middle or last.
        let mut spans = [(0, 0); 3];
        for (turn, span) in spans.iter_mut().enumerate() {
            *span = if turn == round % 3 { look(&pids, plan.time, folder.path())? } else { alone() };
        }
        let looked = spans[round % 3];
        let alone = [spans[(round + 1) % 3], spans[(round + 2) % 3]];
        rounds.push(Round { looked, alone });
        eprintln!("{:>2} annex advise --for {} s on {} programs", round + 1, plan.time.as_secs(), pids.len());
    }
    let mut slowed = Vec::new();
    for (program, (size, hot)) in programs.iter_mut().zip(PROGRAMS) {
        program.signal(Signal::SIGTERM);
        let status = program.wait(Duration::from_secs(30)).context("a program did not end")?;
        ensure!(status.success(), "{}", program.log());
        let passes: Vec<Pass> = serde_json::from_str(&program.stdout()).context("the passes")?;
        slowed.push(Slowed::of(size, hot, &passes, &rounds));
    }
    Ok(Report { rounds: plan.rounds, seconds: plan.time.as_secs_f64(), programs: slowed })
}

/// Runs the command once.
fn look(pids: &[String], time: Duration, folder: &Path) -> anyhow::Result<(u64, u64)> {
    let mut command = Command::new(bins::find("annex"));
    // No annexd is asked: it would be another program that runs meanwhile.
    command.arg("--socket").arg(folder.join("none")).args(["--json", "advise", "--for"]);
    command.arg(format!("{}s", time.as_secs())).args(pids);
    let begin = ticks::now();
    let output = command.output()?;
    let end = ticks::now();
    ensure!(output.status.success(), "annex advise: {}", String::from_utf8_lossy(&output.stderr));
    Ok((begin, end))
}

impl Slowed {
    fn of(size: u64, hot: u64, passes: &[Pass], rounds: &[Round]) -> Slowed {
        let mean = |(begin, end): (u64, u64), time: fn(&Pass) -> u64| {
            let within: Vec<&Pass> = passes.iter().filter(|pass| pass.begin >= begin && pass.end <= end).collect();
            within.iter().map(|pass| time(pass)).sum::<u64>() as f64 / within.len() as f64
        };
        let wall = |pass: &Pass| pass.end - pass.begin;
        let beside = |round: &Round, time: fn(&Pass) -> u64| {
            let alone = (mean(round.alone[0], time) + mean(round.alone[1], time)) / 2.0;
            (mean(round.looked, time) / alone - 1.0) * 100.0
        };
        let noise = |round: &Round, time: fn(&Pass) -> u64| {
            (mean(round.alone[0], time) / mean(round.alone[1], time) - 1.0).abs() * 100.0
        };
        Slowed {
            size: size << 20,
            hot: hot << 20,
            percent: middle(rounds.iter().map(|round| beside(round, wall)).collect()),
            cpu_percent: middle(rounds.iter().map(|round| beside(round, |pass| pass.cpu)).collect()),
            noise_percent: middle(rounds.iter().map(|round| noise(round, wall)).collect()),
            cpu_noise_percent: middle(rounds.iter().map(|round| noise(round, |pass| pass.cpu)).collect()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_takes_longer_while_looked_at_is_slower() {
        // Passes of 100 each, of 103 in the second window of three.
        let passes: Vec<Pass> = (0..30)
            .map(|i| {
                let begin = i * 1000;
                let took = if (10..20).contains(&i) { 103 } else { 100 };
                Pass { begin, end: begin + took, cpu: 50 }
            })
            .collect();
        let round = Round { looked: (10_000, 19_999), alone: [(0, 9_999), (20_000, 29_999)] };
        let found = Slowed::of(1, 1, &passes, &[round]);
        assert!(
            (found.percent - 3.0).abs() < 1e-9 && found.cpu_percent == 0.0 && found.noise_percent == 0.0,
            "{found:?}"
        );
        let report = Report { rounds: 1, seconds: 1.0, programs: vec![Slowed { percent: -1.0, ..found }, found] };
        assert!((report.worst() - 3.0).abs() < 1e-9);
    }
}
