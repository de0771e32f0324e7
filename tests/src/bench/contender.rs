//! Who runs the access patterns: the same program each time, with a different way to hold less than it uses.

use super::swap::{self, Confined, Swap};
use crate::access::{Measured, Pattern};
use crate::testbed::{Donor, Testbed, bins};
use anyhow::{Context, ensure};
use clap::ValueEnum;
use serde::Serialize;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::time::Duration;

/// In the order of the chart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Contender {
    /// Everything in memory: what all others are measured against.
    Ram,
    /// The bare userfaultfd floor.
    Floor,
    AnnexShm,
    AnnexTcp,
    /// Kernel swap on compressed memory.
    Zram,
    /// Kernel swap on a file on disk.
    Disk,
}

impl Contender {
    pub const ALL: [Contender; 6] =
        [Contender::Ram, Contender::Floor, Contender::AnnexShm, Contender::AnnexTcp, Contender::Zram, Contender::Disk];

    pub fn name(self) -> &'static str {
        match self {
            Contender::Ram => "ram",
            Contender::Floor => "floor",
            Contender::AnnexShm => "annex-shm",
            Contender::AnnexTcp => "annex-tcp",
            Contender::Zram => "zram",
            Contender::Disk => "disk",
        }
    }
}

/// A contender that can run now; undone when dropped.
pub enum Ready {
    Plain,
    Floor,
    Annex(Box<Testbed>),
    Swap(Swap),
}

impl Ready {
    /// Sets the contender up. An error says why it can't run here.
    pub fn prepare(contender: Contender, bytes: u64) -> anyhow::Result<Ready> {
        let donors = |donor: fn() -> Donor| {
            Testbed::builder().donor(donor().capacity("3G")).donor(donor().capacity("3G")).start()
        };
        Ok(match contender {
            Contender::Ram => Ready::Plain,
            Contender::Floor => Ready::Floor,
            Contender::AnnexShm => Ready::Annex(Box::new(donors(Donor::shm))),
            Contender::AnnexTcp => Ready::Annex(Box::new(donors(Donor::tcp))),
            Contender::Zram => Ready::Swap(swap::zram(bytes * 2)?),
            Contender::Disk => Ready::Swap(swap::disk(bytes * 2)?),
        })
    }

    /// Runs the pattern once with `percent` of the memory resident.
    pub fn measure(
        &self,
        pattern: Pattern,
        bytes: u64,
        percent: u64,
        seconds: f64,
        seed: u64,
    ) -> anyhow::Result<Measured> {
        let resident = bytes * percent / 100;
        let mut command = Command::new(bins::find("annex-access"));
        command.args(["pattern", pattern.name(), "--size", &bytes.to_string()]);
        command.args(["--seconds", &seconds.to_string(), "--seed", &seed.to_string()]);
        // Filling a set that does not fit takes its time on a disk.
        let limit = Duration::from_secs_f64(seconds * 4.0 + 240.0);
        match self {
            Ready::Plain => read(&command.output()?),
            Ready::Floor => {
                command.args(["--floor", &resident.to_string()]);
                read(&command.output()?)
            }
            Ready::Swap(_swap) => {
                let swapped = swap::pages_out()?;
                let measured = confined(&command, resident)?;
                ensure!(swap::pages_out()? > swapped, "nothing was swapped out: the memory cgroup did not bite");
                Ok(measured)
            }
            Ready::Annex(bed) => {
                let outcome = bed.run("access", &resident.to_string(), command).wait(limit);
                ensure!(outcome.status.success(), "{outcome}");
                ensure!(outcome.seen.pages_evicted > 0, "nothing was evicted: {outcome}");
                bed.wait_gone("access");
                serde_json::from_str(&outcome.stdout).context("annex-access prints JSON")
            }
        }
    }
}

/// Runs the command in a memory cgroup. In a small one that refaults fast, the kernel sometimes finds every page too young
/// to swap out and kills the program instead: then it is tried again.
fn confined(command: &Command, resident: u64) -> anyhow::Result<Measured> {
    let mut tries = 0;
    loop {
        let confined = Confined::new(resident)?;
        let mut again = Command::new(command.get_program());
        again.args(command.get_args());
        confined.admit(&mut again)?;
        let output = again.output()?;
        tries += 1;
        if output.status.signal() == Some(libc::SIGKILL) && tries < 5 {
            eprintln!("the kernel killed the program in its memory cgroup; trying again");
            continue;
        }
        return read(&output);
    }
}

fn read(output: &std::process::Output) -> anyhow::Result<Measured> {
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "annex-access failed: {} {said}", output.status);
    serde_json::from_slice(&output.stdout).context("annex-access prints JSON")
}
