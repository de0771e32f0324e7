//! Attach to and detach from processes that are already running and busy: nothing is lost and
//! nothing is left behind.

use annex_tests::testbed::census::Census;
use annex_tests::testbed::{Job, Testbed, bins, directory, wait_for};
use nix::sys::signal::Signal;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

const MINUTE: Duration = Duration::from_secs(60);

/// A busy workload that runs until it is told to end.
fn busy(bed: &Testbed, features: &str, size: &str) -> Job {
    let mut command = Command::new(bins::find("annex-stress"));
    command
        .args(["--size", size, "--threads", "3", "--seconds", "0", "--features", features, "--dir"])
        .arg(directory());
    let mut job = bed.natively("busy", command);
    job.wait_says("ready", MINUTE);
    job
}

/// Ends the workload, which verifies everything once more.
fn end(job: Job) {
    job.signal(Signal::SIGTERM);
    let outcome = job.wait(2 * MINUTE).succeeded();
    let summary: serde_json::Value = serde_json::from_str(&outcome.stdout).expect("one line of JSON");
    assert_eq!(summary["errors"], 0, "{outcome}");
}

fn attach(bed: &Testbed, pid: i32, local: &str) {
    bed.ask("attach", [&pid.to_string(), "--name", "busy", "--local", local, "--no-wait"]).succeeded();
}

fn detach(bed: &Testbed) {
    bed.ask("detach", ["busy"]).succeeded();
}

#[test]
fn a_hundred_attaches_and_detaches_under_load_leave_a_process_as_it_was() {
    let bed = Testbed::mixed();
    let job = busy(&bed, "rw,scan,io,direct,free", "64M");
    let pid = job.pid();
    let before = Census::of(pid);
    let mut pages_evicted = 0;
    for _ in 0..100 {
        attach(&bed, pid, "50%");
        pages_evicted += bed.wait_app("busy", MINUTE, |app| app.pages_evicted > 1000).pages_evicted;
        detach(&bed);
        assert!(bed.app("busy").is_none());
        before.assert_same(&Census::of(pid));
    }
    assert!(pages_evicted > 100 * 1000);
    end(job);
    assert_eq!(bed.status().pool.used, 0, "the pool still holds pages of a process that was detached");
}

#[test]
fn attach_and_detach_while_mappings_threads_and_children_come_and_go() {
    let bed = Testbed::builder().shm();
    let job = busy(&bed, "rw,churn,remap,discard,protect,huge,threads,exec", "64M");
    for _ in 0..30 {
        attach(&bed, job.pid(), "50%");
        bed.wait_app("busy", MINUTE, |app| app.pages_evicted > 1000);
        detach(&bed);
    }
    end(job);
}

/// A mapping that is split where the program did not split it can't be moved as one any more: its
/// `mremap` fails with EFAULT. annexd lingers between its look at the mappings and what it does to
/// them, while threads map, resize and move others.
fn attach_and_detach_while_mappings_change_after_a_look(place: &'static str) {
    let bed = Testbed::builder().linger_at(place).shm();
    let mut command = Command::new(bins::find("annex-stress"));
    command
        .args(["--size", "16M", "--threads", "6", "--seconds", "0", "--features", "rw,remap", "--dir"])
        .arg(directory());
    let mut job = bed.natively("busy", command);
    job.wait_says("ready", MINUTE);
    for _ in 0..40 {
        attach(&bed, job.pid(), "50%");
        bed.wait_app("busy", MINUTE, |app| app.pages_evicted > 300);
        detach(&bed);
    }
    end(job);
}

#[test]
fn no_mapping_is_split_as_it_is_registered() {
    attach_and_detach_while_mappings_change_after_a_look("mapping-looked-up:3000");
}

#[test]
fn no_mapping_is_split_as_it_is_let_go() {
    attach_and_detach_while_mappings_change_after_a_look("mappings-read:20000");
}

#[test]
fn detach_brings_back_the_children_too() {
    let bed = Testbed::builder().mixed();
    let job = busy(&bed, "rw,discard,fork", "64M");
    let mut with_children = 0;
    let started = Instant::now();
    while with_children < 10 {
        assert!(started.elapsed() < 3 * MINUTE, "only {with_children} detaches with children alive");
        attach(&bed, job.pid(), "40%");
        let app = bed.wait_app("busy", MINUTE, |app| app.pages_evicted > 2000);
        with_children += u32::from(app.pids.len() > 1);
        detach(&bed);
    }
    // The children verify all they inherited, some of them long after the detach; the workload
    // waits for them.
    end(job);
    // Nobody was overlooked: else the keeper would wait for them.
    let keeper = bed.keeper();
    bed.annexd.signal(Signal::SIGTERM);
    wait_for("the keeper to end with annexd", MINUTE, || {
        std::fs::read_to_string(format!("/proc/{keeper}/stat")).map_or(true, |stat| stat.contains(") Z "))
    });
}

#[test]
fn a_process_with_children_is_attached_with_them() {
    let bed = Testbed::builder().shm();
    let mut command = Command::new("python3");
    let programs = concat!(env!("CARGO_MANIFEST_DIR"), "/programs/prefork.py");
    command.arg(programs).args(["64", "12"]);
    let mut job = bed.natively("server", command);
    job.wait_says("serving", MINUTE);
    bed.ask("attach", [&job.pid().to_string(), "--name", "server", "--local", "32M", "--no-wait"]).succeeded();
    let outcome = job.wait(3 * MINUTE).succeeded().was_paged(5_000, 2_000);
    assert!(outcome.seen.processes >= 5, "the workers belong to the app: {outcome}");
}

/// Every other worker that a fault wakes costs the faulting thread an interrupt between two
/// processors.
#[test]
fn a_fault_wakes_the_worker_on_its_cpu_and_no_other() {
    let bed = Testbed::builder().alone().shm();
    let mut command = Command::new("taskset");
    command.args(["-c", "1"]).arg(bins::find("annex-access"));
    command.args(["pattern", "random", "--size", "64M", "--seconds", "6"]);
    let job = bed.run("pinned", "32M", command);
    bed.wait_app("pinned", MINUTE, |app| app.faults.major > 10_000);
    let turns = |worker| bed.annexd.switches(worker);
    let before = [turns("annex-fault-0"), turns("annex-fault-1")];
    std::thread::sleep(Duration::from_secs(2));
    let [other, own] = [turns("annex-fault-0") - before[0], turns("annex-fault-1") - before[1]];
    assert!(own > 1000 && other < own / 10, "the worker there slept {own} times, the other {other} times");
    let outcome = job.wait(MINUTE);
    assert!(outcome.status.success(), "{outcome}");
}

#[test]
fn a_limit_can_be_changed_while_the_app_runs() {
    let bed = Testbed::builder().shm();
    let job = busy(&bed, "rw", "128M");
    const MIB: u64 = 1 << 20;
    attach(&bed, job.pid(), "100M");
    bed.wait_app("busy", MINUTE, |app| app.pages_evicted > 1000 && app.resident <= 110 * MIB);
    bed.ask("limit", ["busy", "40M"]).succeeded();
    bed.wait_app("busy", MINUTE, |app| app.resident <= 48 * MIB);
    bed.ask("limit", ["busy", "300M"]).succeeded();
    let roomy = bed.wait_app("busy", MINUTE, |app| app.resident > 100 * MIB);
    assert!(roomy.faults.major > 0);
    end(job);
}

/// A unit is the processes of its cgroup: those it has now and those that join it later.
#[test]
fn a_units_cgroup_is_attached_with_all_its_processes() {
    let roots = ["/sys/fs/cgroup/unified", "/sys/fs/cgroup"];
    let root = roots.iter().find(|r| Path::new(r).join("cgroup.controllers").exists()).expect("a cgroup v2 hierarchy");
    let unit = format!("annextest{}.service", std::process::id());
    let cgroup = Path::new(root).join(&unit);
    std::fs::create_dir(&cgroup).expect("root may make cgroups");
    let join = |job: &Job| {
        std::fs::write(cgroup.join("cgroup.procs"), job.pid().to_string()).expect("root may move processes")
    };
    let bed = Testbed::builder().shm();
    let first = busy(&bed, "rw", "64M");
    join(&first);
    bed.ask("attach", ["--unit", &unit, "--local", "24M"]).succeeded();
    bed.wait_app(&unit, 2 * MINUTE, |app| app.pages_evicted > 1000 && app.faults.major > 100);
    let second = busy(&bed, "rw", "64M");
    join(&second);
    bed.wait_app(&unit, 2 * MINUTE, |app| app.pids.len() == 2 && app.evicted > 48 << 20);
    bed.ask("detach", [&unit]).succeeded();
    end(first);
    end(second);
    std::fs::remove_dir(&cgroup).expect("nobody is left in it");
}

#[test]
fn the_overhead_per_evicted_page_is_at_most_16_bytes() {
    let bed = Testbed::shm();
    let job = busy(&bed, "rw", "512M");
    attach(&bed, job.pid(), "64M");
    bed.wait_app("busy", 2 * MINUTE, |app| app.evicted > 400 << 20);
    let status = bed.status();
    let overhead = status.overhead_per_page.expect("something is evicted");
    assert!(overhead > 0.0 && overhead <= 16.0, "{overhead} bytes per evicted page");
    end(job);
}

#[test]
fn annexd_is_idle_when_nothing_faults() {
    let bed = Testbed::builder().alone().mixed();
    let mut sleeper = Command::new("python3");
    sleeper.args(["-c", "import time\nb = bytearray(64 << 20)\nfor i in range(0, len(b), 4096): b[i] = 1\nprint('full', flush=True)\ntime.sleep(90)"]);
    let mut job = bed.run("sleeper", "16M", sleeper);
    job.wait_says("full", MINUTE);
    bed.wait_app("sleeper", MINUTE, |app| app.evicted > 30 << 20);
    job.stop_watching();
    // The eviction that is under way comes to its end first.
    std::thread::sleep(Duration::from_secs(3));
    let ticks = || {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", bed.annexd.pid())).expect("annexd runs");
        let fields: Vec<_> = stat.rsplit_once(')').expect("proc(5)").1.split_whitespace().collect();
        fields[11].parse::<u64>().expect("utime") + fields[12].parse::<u64>().expect("stime")
    };
    let mut used = Vec::new();
    // Whoever else uses the machine's caches makes it more, never less.
    while used.len() < 3 && used.iter().all(|ticks| *ticks >= 10) {
        let before = ticks();
        std::thread::sleep(Duration::from_secs(10));
        used.push(ticks() - before);
    }
    // 100 ticks a second: ten seconds of one core are 1000, one percent is 10.
    assert!(used.iter().any(|ticks| *ticks < 10), "annexd used {used:?} ticks in 10 s each with nothing to do");
    wait_for("the app to be still there", MINUTE, || bed.app("sleeper").is_some());
}
