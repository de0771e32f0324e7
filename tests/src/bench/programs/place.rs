//! Where a program runs, and with how much memory.

use crate::bench::annexd;
use crate::bench::swap::{self, Confined, Swap};
use crate::testbed::process::Process;
use crate::testbed::{Donor, Testbed};
use clap::ValueEnum;
use serde::Serialize;
use std::path::Path;
use std::process::Command;

/// What annexd calls the program.
const APP: &str = "program";
/// Of zram, uncompressed: more than any of the programs uses.
const SWAP: u64 = 2 << 30;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    Native,
    AnnexShm,
    Zram,
}

impl Kind {
    pub const ALL: [Kind; 3] = [Kind::Native, Kind::AnnexShm, Kind::Zram];

    pub fn name(self) -> &'static str {
        match self {
            Kind::Native => "native",
            Kind::AnnexShm => "annex-shm",
            Kind::Zram => "zram",
        }
    }
}

/// Undone when dropped.
pub enum Place {
    Native,
    Annex(Box<Testbed>),
    Zram(Swap),
}

/// A program that runs; ended when dropped.
pub struct Running {
    // The process is dropped before the cgroup it is in.
    pub process: Process,
    _confined: Option<Confined>,
}

impl Place {
    /// An error says why it can't be had here.
    pub fn prepare(kind: Kind) -> anyhow::Result<Place> {
        Ok(match kind {
            Kind::Native => Place::Native,
            Kind::AnnexShm => Place::Annex(Box::new(annexd::testbed(Donor::shm))),
            Kind::Zram => Place::Zram(swap::zram(SWAP)?),
        })
    }

    /// Starts `command` with that much memory, natively with as much as it likes.
    pub fn start(&self, mut command: Command, local: u64, directory: &Path) -> anyhow::Result<Running> {
        let mut confined = None;
        match self {
            Place::Native => {}
            Place::Annex(bed) => command = bed.under_run(APP, &local.to_string(), command),
            Place::Zram(_) => confined.insert(Confined::new(local)?).admit(&mut command)?,
        }
        Ok(Running { process: Process::start(APP, command, directory), _confined: confined })
    }

    /// Waits until nothing of a program that has ended is left.
    pub fn settle(&self) {
        if let Place::Annex(bed) = self {
            bed.wait_gone(APP);
        }
    }
}
