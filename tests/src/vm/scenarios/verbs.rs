//! The same over real verbs: Soft-RoCE has queue pairs, keys and completions, and the kernel checks
//! them.

use crate::vm::guest::Guest;
use crate::vm::inside::Redis;
use crate::vm::lab::{DEVICE, Lab, Settings};
use crate::vm::load::{self, Load};
use annex_shared::api::Status;
use annex_shared::transport::Transport;
use anyhow::{Context, ensure};
use std::time::{Duration, Instant};

/// Nothing but RDMA will do.
pub(super) const VERBS: Settings = Settings { of_donors: "transport = \"verbs\"", lost_after: "60s", kv: false };
/// Faults that are to be served before something is measured or disturbed.
const FAULTS: u64 = 200;

/// No byte is wrong, for the stress program and a redis-server that nobody has changed; nor when
/// annexd brings the latter's memory back and ends.
pub fn workloads(lab: &mut Lab) -> anyhow::Result<()> {
    lab.start(2, &VERBS)?;
    let client = lab.client()?;
    let _server = Load::redis(client, 16)?;
    let values = load::values(client, &Redis { store: true, ..Redis::default() })?;
    let app = lab.app("redis")?;
    println!("{values:?}; resident {} evicted {} faults {:?}", app.resident, app.evicted, app.faults);
    ensure!(app.faults.major > FAULTS && app.evicted > 8 << 20, "it was not paged: {app:?}");
    let load = Load::stress(client, 12)?;
    lab.wait_faults("load", 4 * FAULTS)?;
    let status = lab.status()?;
    ensure!(over(&status, Transport::Verbs) == 2, "{:?}", status.donors);
    println!("{:?}", load.end()?);

    client.sh("systemctl stop annexd")?;
    ensure!(client.sh("systemctl show -P Result annexd")?.trim() == "success", "annexd did not stop in order");
    load::values(client, &Redis::default())?;
    Ok(())
}

/// Keys that were stolen, and keys of leases that are over, open nothing: the fabric's own tests,
/// on a real device.
pub fn keys(lab: &mut Lab) -> anyhow::Result<()> {
    lab.up(1)?;
    let client = lab.client()?;
    ensure!(
        client.run("test -x /payload/tests/fabric", Duration::from_secs(20))?.code == 0,
        "the fabric's tests are not in the payload"
    );
    let said = client.sh_within(
        Duration::from_secs(300),
        "ulimit -l unlimited; ANNEX_REQUIRE_VERBS=1 /payload/tests/fabric --test-threads 1 verbs 2>&1",
    )?;
    println!("{}", said.lines().rfind(|line| !line.is_empty()).unwrap_or_default());
    Ok(())
}

/// A donor that loses its device is reached over TCP, and over RDMA again when it has it back;
/// without leave to do so it is down meanwhile.
pub fn device_lost(lab: &mut Lab) -> anyhow::Result<()> {
    lab.start(2, &Settings::default())?;
    lab.wait_status("verbs to both donors", |s| over(s, Transport::Verbs) == 2)?;
    let load = Load::stress(lab.client()?, 12)?;
    lab.wait_faults("load", FAULTS)?;
    unload(lab.donor(1)?)?;
    let status = lab.wait_status("tcp to one donor", |s| over(s, Transport::Tcp) == 1)?;
    for donor in status.donors {
        println!("{}: {:?}: {}", donor.name, donor.transport, donor.why);
    }
    lab.wait_faults("load", FAULTS)?;
    reload(lab.donor(1)?)?;
    lab.wait_status("verbs to both donors again", |s| over(s, Transport::Verbs) == 2)?;
    lab.wait_faults("load", FAULTS)?;
    println!("{:?}", load.end()?);

    lab.client()?.sh("systemctl stop annexd")?;
    lab.borrow(&[1, 2], &Settings { of_donors: "tcp_fallback = false", ..Settings::default() })?;
    unload(lab.donor(1)?)?;
    let down = |s: &Status| s.donors.iter().any(|d| d.name == "donor1" && d.state != annex_shared::api::DonorState::Up);
    let status = lab.wait_status("the donor to be down, since nothing else is allowed", down)?;
    println!("{:?}", status.warnings);
    ensure!(over(&status, Transport::Tcp) == 0, "{:?}", status.donors);
    reload(lab.donor(1)?)?;
    lab.wait_status("verbs to both donors again", |s| over(s, Transport::Verbs) == 2)?;
    Ok(())
}

/// While pages come and go over RDMA, the donors' programs do no more than at rest. The same load
/// over TCP is the control: there they do.
pub fn one_sided(lab: &mut Lab) -> anyhow::Result<()> {
    const REST: Duration = Duration::from_secs(15);
    lab.start(2, &VERBS)?;
    let agents = [lab.donor(1)?, lab.donor(2)?];
    let rested = work_of(lab, agents, || {
        std::thread::sleep(REST);
        Ok(())
    })?;
    let over_verbs = work_under_load(lab, agents)?;
    lab.client()?.sh("systemctl stop annexd")?;
    lab.borrow(&[1, 2], &Settings { of_donors: "transport = \"tcp\"", ..VERBS })?;
    let over_tcp = work_under_load(lab, agents)?;
    println!("at rest: {rested:?}\nover verbs: {over_verbs:?}\nover tcp: {over_tcp:?}");
    ensure!(rested.operations == 0, "no rest: {rested:?}");
    let (by_device, by_agent) = (over_verbs.per_operation(&rested), over_tcp.per_operation(&rested));
    println!("wake-ups and CPU seconds per operation: over verbs {by_device:?}, over tcp {by_agent:?}");
    ensure!(by_agent.0 > 0.25, "agents that serve operations seem not to be woken: nothing is shown");
    ensure!(by_device.0 < by_agent.0 / 10.0, "the agents were woken for operations");
    // The kernel charges interrupts, which are the donor's part of Soft-RoCE, to whoever runs.
    ensure!(by_device.1 < by_agent.1 / 2.0, "the agents used the CPU for operations");
    Ok(())
}

/// Not the stress program's: what that gives up and takes makes slabs come and go, and agents zero
/// those.
fn work_under_load(lab: &Lab, agents: [&Guest; 2]) -> anyhow::Result<Work> {
    let load = Load::accesses(lab.client()?, 12)?;
    lab.wait_faults("load", FAULTS)?;
    let work = work_of(lab, agents, || lab.wait_faults("load", 6 * FAULTS).map(drop))?;
    load.kill()?;
    ensure!(work.operations > FAULTS, "no load: {work:?}");
    Ok(work)
}

/// What the agents did, together, and what was done to their memory.
#[derive(Debug)]
struct Work {
    time: Duration,
    operations: u64,
    cpu: Duration,
    /// Voluntary context switches of all threads.
    wakeups: u64,
}

impl Work {
    /// What each operation cost the agents beyond what they do at rest: wake-ups, and seconds of an
    /// emulated CPU.
    fn per_operation(&self, rested: &Work) -> (f64, f64) {
        let rests = self.time.as_secs_f64() / rested.time.as_secs_f64();
        let beyond = |work: f64, rest: f64| (work - rest * rests).max(0.0) / self.operations as f64;
        (beyond(self.wakeups as f64, rested.wakeups as f64), beyond(self.cpu.as_secs_f64(), rested.cpu.as_secs_f64()))
    }
}

/// What the agents do while something goes on.
fn work_of(lab: &Lab, agents: [&Guest; 2], goes_on: impl FnOnce() -> anyhow::Result<()>) -> anyhow::Result<Work> {
    let until_now = || {
        let operations = lab.status()?.donors.iter().map(|d| d.reads + d.writes).sum();
        let mut work = Work { time: Duration::ZERO, operations, cpu: Duration::ZERO, wakeups: 0 };
        for agent in agents {
            work.cpu += cpu(agent)?;
            work.wakeups += wakeups(agent)?;
        }
        anyhow::Ok(work)
    };
    let (before, began) = (until_now()?, Instant::now());
    goes_on()?;
    let (time, after) = (began.elapsed(), until_now()?);
    Ok(Work {
        time,
        operations: after.operations - before.operations,
        cpu: after.cpu - before.cpu,
        wakeups: after.wakeups - before.wakeups,
    })
}

/// User and system time of the agent: the 14th and 15th field of its stat, in ticks of 10 ms.
fn cpu(donor: &Guest) -> anyhow::Result<Duration> {
    let stat = donor.sh("cat /proc/$(systemctl show -P MainPID annex-agent)/stat")?;
    let fields = stat.rsplit_once(')').context("a process's stat")?.1.split_ascii_whitespace();
    fields.skip(11).take(2).map(|ticks| Ok(Duration::from_millis(10 * ticks.parse::<u64>()?))).sum()
}

fn wakeups(donor: &Guest) -> anyhow::Result<u64> {
    let counts = donor.sh("cat /proc/$(systemctl show -P MainPID annex-agent)/task/*/status | grep ^voluntary_ctxt")?;
    counts.lines().map(|line| Ok(line.rsplit('\t').next().unwrap_or_default().parse::<u64>()?)).sum()
}

/// Donors that are up over this transport.
pub(super) fn over(status: &Status, transport: Transport) -> usize {
    let up = |d: &&annex_shared::api::DonorInfo| {
        d.state == annex_shared::api::DonorState::Up && d.transport == Some(transport)
    };
    status.donors.iter().filter(up).count()
}

fn unload(donor: &Guest) -> anyhow::Result<()> {
    donor.sh(&format!("rdma link delete {DEVICE} && modprobe -r rdma_rxe")).map(drop)
}

fn reload(donor: &Guest) -> anyhow::Result<()> {
    donor.sh(&format!("modprobe rdma_rxe && rdma link add {DEVICE} type rxe netdev eth0")).map(drop)
}
