//! What is done to annex while it works.

use crate::testbed::{Donor, Place, Testbed, bins};
use annex_shared::api::Status;
use anyhow::ensure;
use nix::sys::signal::Signal;
use serde::Serialize;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

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
    /// A donor stands still for longer than its leases last
    DonorPaused,
    /// A donor's packets vanish, and come again
    DonorCutOff,
    /// A donor's host runs short of memory and recalls all it has lent
    DonorRecalls,
    /// annexd is told to do without a donor, and to use it again
    DonorRemoved,
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
            Fault::DonorPaused => "a donor hangs until its leases of 2 s are over",
            Fault::DonorRecalls => "a donor's host recalls all that it has lent",
            Fault::DonorRemoved => "a donor is removed and added again",
            Fault::DonorCutOff => "a donor's network is cut for 0.3 to 1.5 s",
            Fault::DonorDrained => "a donor is drained and restarted",
            Fault::DonorsLie => "operations fail, come late, are dropped or corrupted (1 s a round)",
            Fault::AnnexdKilled => "annexd killed, restarted",
            Fault::AnnexdUpgraded => "annexd upgraded in place",
        }
    }

    /// Three donors, one more than there are replicas: what is lost can be made anew at once. Pages
    /// are sealed for every second fault.
    pub(super) fn bed(self) -> Testbed {
        // No page is spoilt on two of them: two replicas outlive one fault.
        const LIES: [&str; 3] = [",corrupt=1/499:even", ",corrupt=1/499:odd", ""];
        let lies = |nth: usize| format!("fail=1/97,drop=1/20011,delay=1/211:2ms,seed=7{}", LIES[nth]);
        let donor = |nth: usize| match self {
            Fault::AgentKilled | Fault::AgentUpgraded => Donor::tcp().kept(),
            Fault::DonorCutOff => Donor::tcp().wired(),
            Fault::DonorRecalls => Donor::tcp().pressable().agent_args(&["--headroom", "1G"]),
            Fault::DonorsLie if nth == 1 => Donor::shm().faults(&lies(nth)),
            Fault::DonorsLie => Donor::tcp().faults(&lies(nth)),
            _ if nth == 2 => Donor::shm(),
            _ => Donor::tcp(),
        };
        // What a dead annexd or a lost donor had under way rests for one and a half times a lease.
        let ttl = match self {
            Fault::DonorPaused | Fault::DonorRecalls | Fault::DonorRemoved | Fault::DonorDrained => "2s",
            _ => "10s",
        };
        let bed = Testbed::builder().seal((self as u32).is_multiple_of(2));
        (0..3).fold(bed, |bed, nth| bed.donor(donor(nth).capacity("1G").lease_ttl(ttl))).start()
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
            Fault::DonorPaused => {
                bed.agents[nth].signal(Signal::SIGSTOP);
                std::thread::sleep(Duration::from_millis(2500 + u64::from(round) * 397 % 2000));
                bed.agents[nth].signal(Signal::SIGCONT);
            }
            Fault::DonorRecalls => recall(bed)?,
            Fault::DonorRemoved => {
                let Place { name, address, .. } = &bed.places[nth];
                let transport = bed.status().donors.iter().find(|donor| donor.name == *name).and_then(|d| d.transport);
                bed.ask("donors", ["remove", name]).succeeded();
                until("a donor to be gone", || Ok(bed.status().donors.iter().all(|donor| donor.name != *name)))?;
                let transport = transport.map(|transport| transport.to_string());
                let transport = transport.iter().flat_map(|word| ["--transport", word]);
                bed.ask("donors", ["add", address, "--name", name].into_iter().chain(transport)).succeeded();
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

/// The host of the donor that has lent most runs short of memory, until all of it is back.
fn recall(bed: &Testbed) -> anyhow::Result<()> {
    let held = |status: &Status, name: &str| status.donors.iter().find(|d| d.name == name).map_or(0, |d| d.slabs_held);
    let status = bed.status();
    let fullest = bed.places.iter().max_by_key(|place| held(&status, &place.name));
    let place = fullest.ok_or_else(|| anyhow::anyhow!("there are no donors"))?;
    ensure!(held(&status, &place.name) > 0, "no donor has lent anything: {:?}", status.donors);
    let meminfo = place.meminfo.as_ref().ok_or_else(|| anyhow::anyhow!("this donor's host can't be pressed"))?;
    meminfo.available(Some(64 << 10));
    let recalled = until("a donor's slabs to be given back", || Ok(held(&bed.status(), &place.name) == 0));
    meminfo.available(None);
    recalled?;
    // The next one needs somewhere to put its own.
    until("a donor to lend again", || Ok(!agent_status(bed, place)?["pressure"]["pressed"].as_bool().unwrap_or(true)))
}

fn agent_status(bed: &Testbed, place: &Place) -> anyhow::Result<serde_json::Value> {
    let mut status = Command::new(bins::find("annex-agent"));
    status.arg("--control-socket").arg(place.control_socket(bed)).args(["status", "--json"]);
    let output = status.stdin(Stdio::null()).output()?;
    ensure!(output.status.success(), "status: {}", String::from_utf8_lossy(&output.stderr));
    Ok(serde_json::from_slice(&output.stdout)?)
}

fn until(what: &str, mut is_so: impl FnMut() -> anyhow::Result<bool>) -> anyhow::Result<()> {
    let since = Instant::now();
    while !is_so()? {
        ensure!(since.elapsed() < Duration::from_secs(60), "waited for a minute in vain for {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}
