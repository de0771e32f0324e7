//! What an operator is told when something goes wrong at night. Ten incidents, each staged once
//! with real processes: `annex status`, `annex doctor` and `annex events` have to name the thing,
//! the cause and the remedy, and the alert has to fire. docs/troubleshooting.md has the same as a
//! table.
//!
//! - [`scene`]: the stage, and what is read off it. [`disk`]: a disk that can be made to fail.

mod disk;
mod scene;

use annex_shared::condition::ConditionKind;
use annex_shared::event::EventKind;
use annex_tests::testbed::{Donor, Testbed, wait_for};
use disk::Disk;
use nix::sys::signal::Signal;
use scene::{MINUTE, Scene};
use std::fs;
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// Small slabs, so that each donor has pages.
const SMALL: &[&str] = &["--slab-size", "4M"];
/// Locks one slab of 4 MiB, and no second one.
const UNLOCKABLE: &[&str] = &[
    "prlimit",
    "--memlock=6291456:6291456",
    "setpriv",
    "--bounding-set=-ipc_lock,-sys_resource",
    "--inh-caps=-ipc_lock,-sys_resource",
];

#[test]
fn a_donor_that_is_killed() {
    let mut scene = Scene::start(Testbed::builder().donor(Donor::tcp()).donor(Donor::tcp()).donor(Donor::tcp()));
    scene.bed.agents[0].kill();
    let refused = ["tcp0", "nobody lends memory at", "Connection refused"];
    scene.condition(ConditionKind::DonorAway, &refused, "systemctl status annex-agent");
    scene.status(&["health: degraded", "not up: tcp0 (nobody lends memory at", "remedy: on that host: systemctl"]);
    scene.doctor("tcp0", &["Connection refused"], "on that host: systemctl status annex-agent");
    scene.event(EventKind::DonorAway, "tcp0", "tcp0");
    scene.event(EventKind::DonorLost, "tcp0", "its copies are made anew elsewhere: nobody lends memory at");
    scene.alerts(&["AnnexDonorAway", "AnnexDonorLost"]);
}

#[test]
fn a_donor_that_is_slow() {
    let slow = Donor::tcp().delayed(Duration::from_millis(40)).agent_args(SMALL);
    let scene = Scene::start(Testbed::builder().donor(slow).donor(Donor::tcp().agent_args(SMALL)));
    let job = scene.load();
    scene.condition(
        ConditionKind::DonorSlow,
        &["slow: reads take long at tcp0 ("],
        "see what takes CPU, memory or network",
    );
    scene.doctor("tcp0", &["reads take", "slow for pages"], "on that host see what takes CPU");
    scene.alerts(&["AnnexDonorSlow"]);
    job.signal(Signal::SIGKILL);
}

/// It showed a donor as up from which nothing came, and a cut wire counted as a closed port.
#[test]
fn a_wire_that_is_cut() {
    let wired = Donor::tcp().wired().agent_args(SMALL);
    let scene = Scene::start(Testbed::builder().donor(wired).donor(Donor::tcp().agent_args(SMALL)));
    let job = scene.load();
    scene.bed.places[0].wire.as_ref().expect("it is wired").cut();
    scene.event(EventKind::DonorAway, "tcp0", "does not answer: writes go on without it");
    scene.condition(ConditionKind::DonorAway, &["tcp0", "answer"], "the network to it (ping)");
    scene.condition(ConditionKind::AtRisk, &["one copy left"], "restart no other donor");
    scene.doctor("tcp0", &["no TCP connection"], "look whether that host runs and answers (ping)");
    scene.alerts(&["AnnexDonorAway", "AnnexPagesAtRisk"]);
    job.signal(Signal::SIGKILL);
}

/// The kernel of a test has no RDMA device: the host is a folder. What annexd says of a GID that
/// does not work is in the guests' scenario `trouble`.
#[test]
fn a_gid_that_is_wrong() {
    let scene = Scene::start(Testbed::builder().donor(Donor::tcp()).donor(Donor::tcp()));
    let root = scene.bed.path().join("root");
    let port = "sys/class/infiniband/mlx5_0/ports/1";
    for (file, text) in [
        ("state", "4: ACTIVE"),
        ("link_layer", "Ethernet"),
        ("gids/0", "fe80:0000:0000:0000:0202:c9ff:fe00:0001"),
        ("gid_attrs/types/0", "IB/RoCE v1"),
        ("gid_attrs/ndevs/0", "eth2"),
    ] {
        let path = root.join(port).join(file);
        fs::create_dir_all(path.parent().expect("it has one")).expect("the testbed's directory is ours");
        fs::write(path, text).expect("the testbed's directory is ours");
    }
    scene.config("[pool.verbs]\ngid_index = 3\n");
    let root = ["--root", root.to_str().expect("it is ASCII")];
    scene.doctor_with(
        &root,
        "GID of mlx5_0 port 1",
        &["no RoCE v2 GID with an IPv4 address"],
        "give eth2 an IPv4 address",
    );
    scene.doctor_with(
        &root,
        "RDMA in [pool.verbs]",
        &["gid_index = 3 of mlx5_0 port 1 is empty"],
        "set gid_index in [pool.verbs] to a RoCE v2 GID",
    );
}

/// Nothing told of a donor that had never been up.
#[test]
fn a_port_that_is_closed() {
    let scene = Scene::start(Testbed::builder().donor(Donor::tcp()).donor(Donor::tcp().absent()));
    let refused = ["tcp1", "nobody lends memory at", "Connection refused"];
    scene.condition(ConditionKind::DonorAway, &refused, "listen in agent.toml, and the firewall for that port");
    scene.condition(ConditionKind::TooFewDonors, &["2 copies need 2 donors, and 1 is up"], "bring donors back");
    scene.doctor("tcp1", &["Connection refused"], "the firewall for that port");
    scene.event(EventKind::DonorAway, "tcp1", "nobody lends memory at");
    scene.event(EventKind::PoolFull, "pool", "1 of 2 donors is up, and 2 copies need 2: bring another one up");
    scene.alerts(&["AnnexDonorAway", "AnnexTooFewDonors"]);
}

/// The pool said "donors are asked for more", and the agent that all was well.
#[test]
fn a_limit_on_locked_memory_that_is_too_small() {
    let bound = Donor::tcp().agent_args(SMALL).under(UNLOCKABLE);
    let scene = Scene::start(Testbed::builder().donor(bound).donor(Donor::tcp().agent_args(SMALL)).donor_metrics());
    let job = scene.load();
    let cause = ["full: ", "tcp0: it gets no memory for another slab"];
    scene.condition(ConditionKind::Full, &cause, "see annex-agent doctor on the host of");
    scene.doctor("tcp0", &["lends no more: it gets no memory"], "a limit on locked memory");
    scene.event(EventKind::PoolFull, "pool", "tcp0: it gets no memory");
    scene.agent_doctor(0, "lending", &["not permitted to lock a slab"], "systemctl restart annex-agent");
    scene.agent_doctor(0, "memlock", &["may lock 6 MiB of memory"], "LimitMEMLOCK=infinity");
    scene.agent_alerts(&["AnnexDonorCantLend"]);
    scene.alerts(&["AnnexPoolFull"]);
    job.signal(Signal::SIGKILL);
}

#[test]
fn a_pool_that_is_full() {
    let small = || Donor::shm().capacity("64M");
    let scene = Scene::start(Testbed::builder().donor(small()).donor(small()));
    let job = scene.load_of("160", "32M");
    let remedy = "raise capacity on one, or add one (annex donors add HOST:PORT)";
    scene.condition(ConditionKind::Full, &["full: no donor has room"], remedy);
    scene.status(&["health: full: no donor has room", "remedy: raise capacity on one"]);
    scene.doctor("full", &["no donor has room"], "raise capacity on one");
    scene.event(EventKind::PoolFull, "pool", "no donor has room");
    scene.event(EventKind::AppOverLimit, "load", "the pool is full: no donor has room");
    scene.alerts(&["AnnexPoolFull", "AnnexAppOverLimit"]);
    job.signal(Signal::SIGKILL);
}

#[test]
fn a_donors_host_that_is_short_of_memory() {
    let short = Donor::tcp().pressable().agent_args(&["--slab-size", "4M", "--headroom", "1G"]);
    let scene = Scene::start(Testbed::builder().donor(short).donor(Donor::tcp().agent_args(SMALL)).donor_metrics());
    let job = scene.load();
    scene.bed.places[0].meminfo.as_ref().expect("it is pressable").available(Some(64 << 10));
    scene.event(EventKind::DonorRecalls, "tcp0", "its host is short of memory, or it is drained");
    scene.condition(
        ConditionKind::Stuck,
        &["nobody else has room for them"],
        "raise capacity on another donor, or add one",
    );
    scene.agent_doctor(
        0,
        "agent",
        &["short of memory and takes slabs back: 64 MiB available"],
        "end programs on this host",
    );
    scene.agent_alerts(&["AnnexDonorShortOfMemory"]);
    scene.alerts(&["AnnexDrainStuck"]);
    job.signal(Signal::SIGKILL);
}

#[test]
fn an_annexd_that_is_killed() {
    let mut scene = Scene::start(Testbed::builder().donor(Donor::tcp()).donor(Donor::tcp()));
    let job = scene.load();
    scene.bed.annexd.kill();
    // Its keeper closes what it had open a moment later.
    wait_for("its socket to be closed", MINUTE, || UnixStream::connect(&scene.bed.socket).is_err());
    for command in ["status", "events"] {
        let said = scene.bed.ask(command, [] as [&str; 0]);
        let all =
            ["annexd is not running: nothing answers on", "systemctl start annexd", "programs that it paged wait"];
        assert!(said.code() == 3 && all.iter().all(|part| said.stderr.contains(part)), "{said}");
    }
    scene.doctor("annexd", &["annexd is not running"], "start it (systemctl start annexd)");
    scene.alerts(&["AnnexDown"]);
    scene.bed.start_again(None);
    scene.event(EventKind::TookOver, "annexd", "took over 1 apps");
    job.signal(Signal::SIGKILL);
}

/// Only the log told of it, and doctor took the file for a donor whose name is unknown.
#[test]
fn a_disk_that_fails_under_the_spill_file() {
    let disk = Disk::new();
    let small = || Donor::shm().capacity("64M");
    let spill = format!("{},size=256M", disk.path().join("spill").display());
    let bed = Testbed::builder().donor(small()).donor(small()).daemon_arg("--spill").daemon_arg(spill);
    let scene = Scene::start(bed);
    let job = scene.load_of("160", "32M");
    wait_for("pages to be in the file", MINUTE, || scene.bed.status().pool.spilled > 8 << 20);
    scene.doctor_ok("spill", "used last");
    disk.fail();
    job.signal(Signal::SIGUSR1);
    let cause = ["failing: the spill file", "spill: a ", "failed: Input/output error"];
    scene.condition(ConditionKind::SpillFailing, &cause, "see the kernel log for that disk (dmesg)");
    scene.doctor("spill_failing", &cause, "give [spill] a path on another disk");
    scene.event(EventKind::SpillFailed, "spill", "failed: Input/output error");
    scene.alerts(&["AnnexSpillFailing"]);
    job.signal(Signal::SIGKILL);
}
