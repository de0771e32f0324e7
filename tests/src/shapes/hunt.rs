//! Program after program under annex, each with a limit far below its size, while its stubs and
//! annexd are killed. Stops at the first that is not right, and says how to repeat it.
//!
//! What is killed follows from the seed too; when, from the clock.

use super::step::What;
use crate::stacks;
use crate::stress::content::Dice;
use crate::testbed::census::stubs_of;
use crate::testbed::{Donor, Job, Testbed, bins};
use clap::ValueEnum;
use std::process::Command;
use std::time::{Duration, Instant};

/// Beyond its time a program verifies everything and ends. Longer than this it hangs.
const PATIENCE: Duration = Duration::from_secs(120);

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Kill {
    Nothing,
    Stubs,
    /// Stubs and annexd, in turns.
    All,
    /// Nothing, stubs and all, by the seed.
    Varied,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Fabric {
    Shm,
    Tcp,
}

/// How each program is run.
#[derive(Clone, Debug)]
pub struct Hunt {
    pub size: u64,
    /// What may be resident, as `annex run --local` has it.
    pub local: String,
    /// Of each program.
    pub seconds: u64,
    pub kill: Kill,
    pub only: Vec<What>,
}

/// What came of all programs together.
#[derive(Clone, Copy, Debug, Default)]
pub struct Bag {
    pub programs: u64,
    pub steps: u64,
    pub checks: u64,
    pub stubs_killed: u64,
    pub annexds_killed: u64,
    pub pages_evicted: u64,
}

/// Two donors; over TCP pages are sealed. A short lease: what a dead annexd had under way rests for
/// one and a half times as long.
pub fn bed(fabric: Fabric) -> Testbed {
    let donor = || match fabric {
        Fabric::Shm => Donor::shm(),
        Fabric::Tcp => Donor::tcp(),
    };
    // Longer than annexd is away on a machine that has a lot else to do.
    let donor = || donor().capacity("1G").lease_ttl("60s");
    Testbed::builder().donor(donor()).donor(donor()).seal(fabric == Fabric::Tcp).start()
}

impl Hunt {
    /// Runs the program of one seed, and adds to the bag what it did. `Err` is a finding.
    pub fn round(&self, bed: &mut Testbed, seed: u64, bag: &mut Bag) -> Result<(), String> {
        // No program is started while too few donors are up, as for a moment after a death of
        // annexd.
        bed.wait_ready(bed.agents.len());
        let started = Instant::now();
        let mut job = bed.run("shapes", &self.local, self.command(seed));
        let mut dice = Dice::new(seed);
        let over = Duration::from_secs(self.seconds) + PATIENCE;
        // Whoever outlives the process that was started belongs to the app.
        while job.process.is_running() || bed.app("shapes").is_some() {
            if started.elapsed() > over {
                let stacks = stacks::of_all();
                return Err(self.finding(bed, &job, seed, &format!("it hangs: {:?}\n{stacks}", bed.app("shapes"))));
            }
            std::thread::sleep(Duration::from_millis(20 + dice.below(400) as u64));
            // On a machine that has a lot else to do an annexd may be killed each time before it
            // has served a fault. That is no hang: in the end it is let be.
            if started.elapsed() < over / 2 {
                self.kill_one(bed, seed, &mut dice, bag);
            }
        }
        let (said, complained) = (job.process.stdout(), job.process.stderr());
        let status = job.process.wait(PATIENCE);
        let reports: Option<Vec<Report>> = said.lines().map(|line| serde_json::from_str(line).ok()).collect();
        let reports = reports.unwrap_or_default();
        let is_whole = reports.last().is_some_and(|report| report.becomes.is_none());
        if !status.is_some_and(|status| status.success()) || complained.contains("WRONG") || !is_whole {
            return Err(self.finding(bed, &job, seed, &format!("it ended with {status:?}")));
        }
        bag.programs += 1;
        bag.steps += reports.iter().map(|report| report.steps).sum::<u64>();
        bag.checks += reports.iter().map(|report| report.checks).sum::<u64>();
        bag.pages_evicted += job.seen().pages_evicted;
        Ok(())
    }

    fn command(&self, seed: u64) -> Command {
        let mut command = Command::new(bins::find("annex-shapes"));
        command.args(["--seed", &seed.to_string(), "--seconds", &self.seconds.to_string()]);
        command.args(["--size", &self.size.to_string()]);
        command.args(self.only());
        command
    }

    /// The argument that names the steps, if not all are to be taken.
    fn only(&self) -> Option<String> {
        let names: Vec<String> = self.only.iter().map(|what| format!("{what:?}")).collect();
        (!names.is_empty()).then(|| format!("--only={}", names.join(",")))
    }

    fn kill_one(&self, bed: &mut Testbed, seed: u64, dice: &mut Dice, bag: &mut Bag) {
        let kill = match self.kill {
            Kill::Varied => [Kill::Nothing, Kill::Stubs, Kill::All][seed as usize % 3],
            kill => kill,
        };
        let pids = bed.app("shapes").map(|app| app.pids).unwrap_or_default();
        // `annex run` does not start a program while no donor is up.
        if kill == Kill::Nothing || pids.is_empty() {
            return;
        }
        if kill == Kill::All && dice.one_in(4) {
            bed.annexd.kill();
            bed.start_again(None);
            bag.annexds_killed += 1;
        } else {
            for stub in stubs_of(pids[dice.below(pids.len())]) {
                // It may be gone already.
                let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(stub), nix::sys::signal::SIGKILL);
                bag.stubs_killed += 1;
            }
        }
    }

    fn finding(&self, bed: &Testbed, job: &Job, seed: u64, what: &str) -> String {
        let Hunt { size, local, seconds, kill, .. } = self;
        let kill = kill.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default();
        let only = self.only().unwrap_or_default();
        let again =
            format!("--hunt 1 --seed {seed} --seconds {seconds} --size {size} --local {local} --kill {kill} {only}");
        format!("seed {seed}: {what}\nrepeat: annex-shapes {again}\n{}\n{}", bed.annexd_logs(), job.process.log())
    }
}

/// What a program says at its end.
#[derive(serde::Deserialize)]
struct Report {
    steps: u64,
    checks: u64,
    becomes: Option<u64>,
}
