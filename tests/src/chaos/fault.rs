//! What is done to annex while it works.

use crate::testbed::{Donor, Testbed, bins};
use anyhow::ensure;
use nix::sys::signal::Signal;
use serde::Serialize;
use std::process::{Command, Stdio};
use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Fault {
    /// A donor is killed; one without its memory takes its place
    DonorKilled,
    /// A donor's agent is killed and started again; its memory was kept
    AgentKilled,
    /// A donor's agent is replaced by a new one in order
    AgentUpgraded,
    /// A donor stands still (SIGSTOP) and goes on
    DonorHangs,
    /// A donor's packets vanish, and come again
    DonorCutOff,
    /// A donor is emptied for maintenance and started again
    DonorDrained,
    /// Donors fail operations, answer late, drop them, and send wrong bytes
    DonorsLie,
    /// annexd is killed and started again
    AnnexdKilled,
    /// A new annexd takes the place of the running one
    AnnexdUpgraded,
}

impl Fault {
    /// What is done, for the table.
    pub fn words(self) -> &'static str {
        match self {
            Fault::DonorKilled => "a donor dies, an empty one takes its place",
            Fault::AgentKilled => "agent killed, restarted with its memory",
            Fault::AgentUpgraded => "agent upgraded in place",
            Fault::DonorHangs => "a donor hangs for 0.3 to 1.5 s",
            Fault::DonorCutOff => "a donor's network is cut for 0.3 to 1.5 s",
            Fault::DonorDrained => "a donor is drained and restarted",
            Fault::DonorsLie => "operations fail, come late, are dropped or corrupted (1 s a round)",
            Fault::AnnexdKilled => "annexd killed, restarted",
            Fault::AnnexdUpgraded => "annexd upgraded in place",
        }
    }

    /// Three donors, one more than there are replicas: what is lost can be made anew at once.
    pub(super) fn bed(self) -> Testbed {
        // No page is spoilt on two of them: two replicas outlive one fault.
        const LIES: [&str; 3] = [",corrupt=1/499:even", ",corrupt=1/499:odd", ""];
        let lies = |nth: usize| format!("fail=1/97,drop=1/20011,delay=1/211:2ms,seed=7{}", LIES[nth]);
        let donor = |nth: usize| match self {
            Fault::AgentKilled | Fault::AgentUpgraded => Donor::tcp().kept(),
            Fault::DonorCutOff => Donor::tcp().wired(),
            Fault::DonorsLie if nth == 1 => Donor::shm().faults(&lies(nth)),
            Fault::DonorsLie => Donor::tcp().faults(&lies(nth)),
            _ if nth == 2 => Donor::shm(),
            _ => Donor::tcp(),
        };
        // What a dead annexd or a lost donor had under way rests for one and a half times a lease.
        (0..3).fold(Testbed::builder(), |bed, nth| bed.donor(donor(nth).capacity("1G").lease_ttl("10s"))).start()
    }

    /// Does it and undoes it, to another donor each round.
    pub(super) fn inject(self, bed: &mut Testbed, round: u32) -> anyhow::Result<()> {
        let nth = round as usize % bed.agents.len();
        let while_it_lasts = || std::thread::sleep(Duration::from_millis(300 + u64::from(round) * 397 % 1200));
        match self {
            Fault::DonorKilled | Fault::AgentKilled => {
                bed.agents[nth].kill();
                std::thread::sleep(Duration::from_millis(u64::from(round) * 97 % 400));
                bed.start_agent_again(nth);
            }
            Fault::AgentUpgraded => {
                bed.agents[nth].signal(Signal::SIGUSR2);
                let ended = bed.agents[nth].wait(Duration::from_secs(30));
                ensure!(ended.is_some_and(|s| s.success()), "the agent did not hand over: {}", bed.agents[nth].log());
                bed.start_agent_again(nth);
            }
            Fault::DonorHangs => {
                bed.agents[nth].signal(Signal::SIGSTOP);
                while_it_lasts();
                bed.agents[nth].signal(Signal::SIGCONT);
            }
            Fault::DonorCutOff => {
                let wire = bed.places[nth].wire.as_ref();
                let wire = wire.ok_or_else(|| anyhow::anyhow!("this donor has no wire"))?;
                wire.cut();
                while_it_lasts();
                wire.join();
            }
            Fault::DonorDrained => {
                let mut drain = Command::new(bins::find("annex-agent"));
                drain.arg("--control-socket").arg(bed.places[nth].control_socket(bed)).args([
                    "drain",
                    "--timeout",
                    "60s",
                ]);
                let output = drain.stdin(Stdio::null()).output()?;
                ensure!(output.status.success(), "drain: {}", String::from_utf8_lossy(&output.stderr));
                bed.start_agent_again(nth);
            }
            Fault::DonorsLie => std::thread::sleep(Duration::from_secs(1)),
            Fault::AnnexdKilled => {
                bed.annexd.kill();
                bed.start_again(None);
            }
            Fault::AnnexdUpgraded => {
                bed.take_over();
            }
        }
        Ok(())
    }
}
