//! A case: how many donors, how many copies, what befalls how many of them, and which policy the KV
//! API has.

use annex_tests::testbed::process::Process;
use annex_tests::testbed::{Builder, Donor, Testbed, bins};
use nix::sys::signal::Signal;
use std::fmt;
use std::process::Command;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// SIGKILL: what it had is gone.
    Killed,
    /// SIGSTOP: it keeps its connections and answers nothing.
    Hung,
    /// Its packets vanish.
    CutOff,
    /// `annex-agent drain`.
    Drained,
}

pub const FAULTS: [Fault; 4] = [Fault::Killed, Fault::Hung, Fault::CutOff, Fault::Drained];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Case {
    pub donors: usize,
    pub replicas: u8,
    pub fault: Fault,
    /// How many donors the fault befalls.
    pub away: usize,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.fault {
            Fault::Killed => "killed",
            Fault::Hung => "hung",
            Fault::CutOff => "cut off",
            Fault::Drained => "drained",
        };
        write!(f, "{} of {} donors {what}, R = {}", self.away, self.donors, self.replicas)
    }
}

impl Case {
    /// 2, 3 and 4 donors; 1, 2 and 3 copies; each fault; one donor and two.
    pub fn all() -> impl Iterator<Item = Case> {
        let sizes = (2..=4).flat_map(|donors| (1..=3).map(move |replicas| (donors, replicas)));
        let faults = FAULTS.into_iter().flat_map(|fault| [1, 2].map(|away| (fault, away)));
        sizes
            .filter(|(donors, replicas)| usize::from(*replicas) <= *donors)
            .flat_map(move |size| faults.clone().map(move |fault| (size, fault)))
            .map(|((donors, replicas), (fault, away))| Case { donors, replicas, fault, away })
    }

    /// Some donor is left, and has room.
    pub fn leaves_room(&self) -> bool {
        self.away < self.donors
    }

    /// Donors that drain are read and written all the same, and so is shared memory whose agent
    /// hangs: keys may be evicted for others that come.
    pub fn keeps_some_within_reach(&self) -> bool {
        matches!(self.fault, Fault::Drained | Fault::Hung)
    }

    /// What has no other copy than on donors that are gone for good.
    pub fn may_lose(&self) -> bool {
        self.fault == Fault::Killed && self.away >= usize::from(self.replicas)
    }

    /// The fault befalls the first donors. Every other one is reached through shared memory, unless
    /// they are at the ends of wires.
    pub fn bed(&self) -> Builder {
        let donor = |nth: usize| match self.fault {
            Fault::CutOff => Donor::tcp().wired(),
            _ if nth % 2 == 1 => Donor::shm(),
            _ => Donor::tcp(),
        };
        // Small slabs, so that new ones are wanted all the time.
        let donor = |nth| donor(nth).capacity("160M").agent_args(&["--slab-size", "4M"]);
        let bed = Testbed::builder().beside_others().replicas(self.replicas);
        (0..self.donors).fold(bed, |bed, nth| bed.donor(donor(nth)))
    }

    /// Has it happen. What is under way meanwhile ends when dropped.
    pub fn strike(&self, bed: &mut Testbed) -> Vec<Process> {
        let mut under_way = Vec::new();
        for nth in 0..self.away {
            match self.fault {
                Fault::Killed => bed.agents[nth].kill(),
                Fault::Hung => bed.agents[nth].signal(Signal::SIGSTOP),
                Fault::CutOff => bed.places[nth].wire.as_ref().expect("it has one").cut(),
                Fault::Drained => under_way.push(Process::start("drain", drain(bed, nth, &[]), bed.path())),
            }
        }
        under_way
    }

    /// The donors are there again; those that were killed with nothing of what they had.
    pub fn undo(&self, bed: &mut Testbed, under_way: Vec<Process>) {
        drop(under_way);
        for nth in 0..self.away {
            match self.fault {
                Fault::Killed => bed.start_agent_again(nth),
                Fault::Hung => bed.agents[nth].signal(Signal::SIGCONT),
                Fault::CutOff => bed.places[nth].wire.as_ref().expect("it has one").join(),
                Fault::Drained => {
                    let cancelled = drain(bed, nth, &["--cancel"]).output().expect("annex-agent starts");
                    assert!(cancelled.status.success(), "{}", String::from_utf8_lossy(&cancelled.stderr));
                }
            }
        }
    }
}

fn drain(bed: &Testbed, nth: usize, args: &[&str]) -> Command {
    let mut drain = Command::new(bins::find("annex-agent"));
    drain.arg("--control-socket").arg(bed.places[nth].control_socket(bed)).arg("drain").args(args);
    drain
}
