//! A contender at work: how each is set up, and one run of the access program under it.

use super::annexd::{Counts, Watch, testbed};
use super::contender::Contender;
use super::plan::{Cell, Plan};
use super::swap::{self, Confined, Swap};
use crate::access::{Measured, Pattern};
use crate::testbed::{Donor, Testbed, bins};
use anyhow::{Context, ensure};
use serde::Serialize;
use std::ffi::OsStr;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::time::Duration;

/// A contender that can run now; undone when dropped.
pub enum Ready {
    Plain,
    Floor {
        ahead: bool,
    },
    Annex(Box<Testbed>),
    Client(Box<Testbed>),
    Swap(Swap),
    /// Confines itself.
    Own(PathBuf),
}

/// What a contender came to in one cell of one round.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Run {
    pub round: usize,
    #[serde(flatten)]
    pub measured: Measured,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub annexd: Option<Counts>,
}

impl Ready {
    /// Sets the contender up. An error says why it can't run here.
    pub fn prepare(contender: Contender, plan: &Plan) -> anyhow::Result<Ready> {
        let bytes = plan.bytes;
        Ok(match contender {
            Contender::Ram => Ready::Plain,
            Contender::Floor => Ready::Floor { ahead: false },
            Contender::Readahead => Ready::Floor { ahead: true },
            Contender::AnnexShm => Ready::Annex(Box::new(testbed(Donor::shm))),
            Contender::AnnexTcp => Ready::Annex(Box::new(testbed(Donor::tcp))),
            Contender::Client => Ready::Client(Box::new(testbed(Donor::shm))),
            Contender::Zram => Ready::Swap(swap::zram(bytes * 2)?),
            Contender::Disk => Ready::Swap(swap::disk(bytes * 2)?),
            Contender::Umap => Ready::Own(plan.umap.clone().context("no --umap was given")?),
        })
    }

    /// Has donors lend what they will be asked for: they allocate memory as they lend it, and a
    /// virtual machine's host may have to find it first. Whoever was measured first would pay for
    /// all.
    pub fn warm_up(&self, plan: &Plan, round: usize) -> anyhow::Result<()> {
        if let Ready::Annex(_) | Ready::Client(_) = self {
            let cell = Cell { pattern: Pattern::Random, threads: 1, resident_percent: 25 };
            self.measure(cell, plan, round)?;
        }
        Ok(())
    }

    /// Runs a cell once.
    pub fn measure(&self, cell: Cell, plan: &Plan, round: usize) -> anyhow::Result<Run> {
        let resident = plan.bytes * cell.resident_percent / 100;
        let pattern = |program: &OsStr| {
            let mut command = Command::new(program);
            command.args(["pattern", cell.pattern.name(), "--size", &plan.bytes.to_string()]);
            command.args(["--seconds", &plan.seconds.to_string(), "--seed", &(round + 1).to_string()]);
            command.args(["--threads", &cell.threads.to_string()]);
            command
        };
        let mut command = pattern(bins::find("annex-access").as_os_str());
        let mut annexd = None;
        let measured = match self {
            Ready::Plain => read(&command.output()?)?,
            Ready::Floor { ahead } => {
                command.args(["--floor", &resident.to_string()]);
                command.args(ahead.then_some("--ahead"));
                read(&command.output()?)?
            }
            Ready::Own(program) => {
                let mut command = pattern(program.as_os_str());
                command.args(["--resident", &resident.to_string()]);
                read(&command.output().with_context(|| format!("starting {}", program.display()))?)?
            }
            Ready::Swap(_swap) => {
                let swapped = swap::pages_out()?;
                let measured = read(&confined(&command, resident)?)?;
                ensure!(swap::pages_out()? > swapped, "nothing was swapped out: the memory cgroup did not bite");
                measured
            }
            Ready::Annex(bed) | Ready::Client(bed) => {
                let job = if let Ready::Client(_) = self {
                    command.arg("--region").arg(&bed.socket).args(["--local", &resident.to_string()]);
                    bed.natively("access", command)
                } else {
                    bed.run("access", &resident.to_string(), command)
                };
                // Looked at below, more closely.
                job.stop_watching();
                let watch = Watch::of(bed, "access");
                let outcome = job.wait(Duration::from_secs_f64(plan.seconds * 4.0 + 240.0));
                ensure!(outcome.status.success(), "{outcome}");
                let measured = serde_json::from_str(&outcome.stdout).context("annex-access prints JSON")?;
                let counts = watch.end(&measured);
                ensure!(counts.evicted > 0, "nothing was evicted: {outcome}");
                annexd = Some(counts);
                bed.wait_gone("access");
                measured
            }
        };
        Ok(Run { round, measured, annexd })
    }
}

/// Runs the command in a memory cgroup. In a small one that refaults fast, the kernel sometimes
/// finds every page too young to swap out and kills the program instead: then it is tried again.
pub fn confined(command: &Command, resident: u64) -> anyhow::Result<Output> {
    let mut tries = 0;
    loop {
        let confined = Confined::new(resident)?;
        let mut again = Command::new(command.get_program());
        again.args(command.get_args());
        again.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
        confined.admit(&mut again)?;
        let output = again.output()?;
        tries += 1;
        if output.status.signal() == Some(libc::SIGKILL) && tries < 5 {
            eprintln!("the kernel killed the program in its memory cgroup; trying again");
            continue;
        }
        return Ok(output);
    }
}

/// What `annex-access` says.
pub fn read(output: &Output) -> anyhow::Result<Measured> {
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "the access program failed: {} {said}", output.status);
    serde_json::from_slice(&output.stdout).context("the access program prints JSON")
}
