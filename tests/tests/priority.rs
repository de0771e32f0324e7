//! What programs wait for comes before what they don't: on a busy host a fault must not wait behind
//! ordinary work.

use annex_tests::testbed::census::stubs_of;
use annex_tests::testbed::{Testbed, bins, wait_for};
use nix::sys::signal::Signal;
use std::process::Command;
use std::time::Duration;

const MINUTE: Duration = Duration::from_secs(60);
const ORDINARY: i32 = 0;
const ROUND_ROBIN: i32 = 2;
const BATCH: i32 = 3;

/// Scheduling policy and nice value of each thread of this name.
fn classes(pid: i32, name: &str) -> Vec<(i32, i32)> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("it runs").flatten();
    let stats = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("stat")).ok());
    let named = stats.filter(|stat| stat.contains(&format!("({name}")));
    let class = |stat: String| {
        let fields: Vec<i128> =
            stat.rsplit_once(')').expect("proc(5)").1.split_whitespace().skip(1).flat_map(str::parse).collect();
        (fields[37] as i32, fields[15] as i32)
    };
    named.map(class).collect()
}

#[test]
fn a_stub_comes_before_ordinary_threads() {
    let bed = Testbed::builder().shm();
    let mut stress = Command::new(bins::find("annex-stress"));
    stress.args(["--size", "64M", "--seconds", "20", "--features", "rw"]);
    let job = bed.run("busy", "32M", stress);
    bed.wait_app("busy", MINUTE, |app| app.pages_evicted > 1000);
    let program = bed.app("busy").expect("it runs").pids[0];
    let stubs: Vec<_> = stubs_of(program).into_iter().flat_map(|stub| classes(stub, "annex-stub")).collect();
    assert_eq!(stubs, [(ROUND_ROBIN, -20)]);
    job.signal(Signal::SIGTERM);
    job.wait(MINUTE);
}

/// Fault workers that a fault wakes in vain interrupted the program on their CPU, and whoever
/// faulted waited for that too: half of each fault of a program with two threads.
#[test]
fn fault_workers_interrupt_nobody_while_nobody_keeps_them_from_their_cpus() {
    let bed = Testbed::builder().alone().shm();
    let classes = || classes(bed.annexd.pid(), "annex-fault-");
    let all = |class: i32| classes().iter().all(|(policy, nice)| (*policy, *nice) == (class, -20));
    let mut access = Command::new(bins::find("annex-access"));
    access.args(["pattern", "random", "--size", "128M", "--threads", "2", "--seconds", "120"]);
    let job = bed.run("busy", "32M", access);
    wait_for("workers to be patient", MINUTE, || all(BATCH));

    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let mut loops: Vec<_> = (0..2 * cpus)
        .map(|_| Command::new("setsid").args(["sh", "-c", "while :; do :; done"]).spawn().expect("setsid is there"))
        .collect();
    let faults = || bed.app("busy").expect("it runs").faults.major;
    wait_for("workers to have real time beside busy programs", MINUTE, || all(ROUND_ROBIN));
    let before = faults();
    wait_for("faults to go on beside busy programs", MINUTE, || faults() > before + 10_000);
    loops.iter_mut().for_each(|busy| {
        busy.kill().expect("it runs");
        busy.wait().expect("it ends");
    });

    wait_for("workers to be patient again", MINUTE, || all(BATCH));
    job.signal(Signal::SIGTERM);
    job.wait(MINUTE);
    wait_for("workers to have real time at rest", MINUTE, || all(ROUND_ROBIN));
}

#[test]
fn fault_workers_come_first_and_so_do_the_agents_they_ask() {
    let bed = Testbed::builder().shm();
    let workers = || classes(bed.annexd.pid(), "annex-fault-");
    wait_for("both donors", MINUTE, || {
        bed.status().donors.iter().flat_map(|donor| &donor.traffic).filter(|traffic| traffic.connections > 0).count()
            == 2
    });
    // One that has not had its first turn yet has no class.
    let all_first = || !workers().is_empty() && workers().iter().all(|(policy, _)| *policy == ROUND_ROBIN);
    wait_for("workers to be before ordinary threads", MINUTE, all_first);
    drop(bed);

    // An agent on this host needs the CPU of the worker that asks it.
    let bed = Testbed::builder().tcp();
    wait_for("workers to notice that their donors are here", MINUTE, || {
        classes(bed.annexd.pid(), "annex-fault-").iter().all(|class| *class == (ORDINARY, -20))
    });
    // They have real time once they were asked for something that their client may have.
    let mut stress = Command::new(bins::find("annex-stress"));
    stress.args(["--size", "64M", "--seconds", "0", "--features", "rw"]);
    let job = bed.run("busy", "32M", stress);
    for agent in &bed.agents {
        wait_for("an agent's threads to have real time", MINUTE, || {
            classes(agent.pid(), "agent-tcp").iter().any(|(policy, _)| *policy == ROUND_ROBIN)
        });
    }
    job.signal(Signal::SIGTERM);
    job.wait(MINUTE).succeeded();
}
