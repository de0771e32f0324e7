//! When there is no room. Bringing a program back must not get it killed: when its cgroup has no
//! room for what is in the pool, annexd says so and leaves the program as it is. And a program that
//! is above its limit since nothing of it can be evicted has a note that says why, as long as that
//! lasts.

use annex_tests::testbed::census::stubs_of;
use annex_tests::testbed::{Donor, Testbed, bins, wait_for};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const MINUTE: Duration = Duration::from_secs(60);
const NO_MEMORY: i32 = 10;

/// A memory cgroup, version 1 or 2, removed in the end.
struct Cgroup {
    dir: PathBuf,
    limit: &'static str,
    none: &'static str,
}

impl Cgroup {
    fn new(name: &str) -> Cgroup {
        let versions =
            [("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "-1"), ("/sys/fs/cgroup", "memory.max", "max")];
        let (root, limit, none) = versions
            .into_iter()
            .find(|(root, ..)| Path::new(root).join("cgroup.procs").exists())
            .expect("a memory cgroup hierarchy");
        let dir = Path::new(root).join(format!("annextest-{name}-{}", std::process::id()));
        fs::create_dir(&dir).expect("root may make cgroups");
        let cgroup = Cgroup { dir, limit, none };
        assert!(cgroup.dir.join(limit).exists(), "the memory controller is not enabled in {root}");
        cgroup
    }

    fn limit(&self, bytes: Option<u64>) {
        let text = bytes.map_or(self.none.into(), |b| b.to_string());
        fs::write(self.dir.join(self.limit), text).expect("the limit can be set");
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // Fails while somebody is in it, in a test that fails already.
        let _ = fs::remove_dir(&self.dir);
    }
}

/// The kernel killed it for memory in the middle of the detach.
#[test]
fn a_program_whose_cgroup_has_no_room_is_neither_detached_nor_killed() {
    let cgroup = Cgroup::new("room");
    let mut bed = Testbed::mixed();
    let mut program = Command::new("sh");
    let script = format!("echo $$ > {}/cgroup.procs && exec python3 \"$@\"", cgroup.dir.display());
    program.args(["-c", &script, "sh"]).arg(bins::script("forked.py")).args(["128", "0"]);
    let mut job = bed.run("narrow", "40M", program);
    job.wait_says("forked", 2 * MINUTE);
    bed.wait_app("narrow", MINUTE, |app| app.evicted > 80 << 20 && app.resident < 48 << 20);
    cgroup.limit(Some(96 << 20));

    let detach = bed.ask("detach", ["narrow"]);
    let named = cgroup.dir.to_str().expect("it is ASCII");
    assert_eq!(detach.code(), NO_MEMORY, "{detach}");
    for part in [named, "left of its limit of 96 MiB", "raise the memory limit", "goes on as before"] {
        assert!(detach.stderr.contains(part), "{part:?} is missing: {detach}");
    }
    bed.annexd.signal(Signal::SIGTERM);
    wait_for("annexd to refuse to stop", MINUTE, || bed.annexd.log().contains("annexd can't stop"));
    assert!(bed.annexd.log().contains(named), "{}", bed.annexd.log());
    assert!(bed.annexd.is_running(), "annexd stopped");
    assert!(bed.app("narrow").is_some_and(|app| app.evicted > 80 << 20), "pages came back all the same");

    cgroup.limit(None);
    bed.ask("detach", ["narrow"]).succeeded();
    job.signal(Signal::SIGUSR1);
    let outcome = job.wait(2 * MINUTE).succeeded();
    assert_eq!(outcome.stdout, "forked\nverified\n", "{outcome}");
}

fn filler(mib: &str) -> Command {
    let mut program = Command::new("python3");
    program.arg(bins::script("forked.py")).args([mib, "0"]);
    program
}

#[test]
fn a_full_pool_is_noted_on_the_app_until_it_has_room() {
    let mut bed =
        Testbed::builder().replicas(1).donor(Donor::shm().capacity("64M")).donor(Donor::shm().absent()).start();
    let mut job = bed.run("fat", "32M", filler("160"));
    bed.wait_app("fat", MINUTE, |app| {
        app.note.contains("the pool is full: no donor has room: raise") && app.resident > 80 << 20
    });
    let more = bed.places[1].start_agent(bed.path());
    bed.agents.push(more);
    bed.wait_app("fat", MINUTE, |app| app.note.is_empty() && app.resident < 40 << 20);
    job.wait_says("forked", 2 * MINUTE);
    job.signal(Signal::SIGUSR1);
    job.wait(2 * MINUTE).succeeded();
}

#[test]
fn a_stub_that_does_not_answer_is_noted_on_the_app_until_it_does() {
    let bed = Testbed::shm();
    let mut job = bed.run("stuck", "40M", filler("96"));
    job.wait_says("forked", 2 * MINUTE);
    bed.wait_app("stuck", MINUTE, |app| app.evicted > 40 << 20 && app.resident < 48 << 20);
    let pids = bed.app("stuck").expect("it runs").pids;
    let stubs: Vec<Pid> = pids.iter().flat_map(|pid| stubs_of(*pid)).map(Pid::from_raw).collect();
    let all = |signal| stubs.iter().for_each(|stub| kill(*stub, signal).expect("it is there"));
    all(Signal::SIGSTOP);
    bed.ask("limit", ["stuck", "24M"]).succeeded();
    bed.wait_app("stuck", MINUTE, |app| app.note.contains("has not answered for") && app.resident > 32 << 20);
    all(Signal::SIGCONT);
    bed.wait_app("stuck", MINUTE, |app| app.note.is_empty() && app.resident < 30 << 20);
    job.signal(Signal::SIGUSR1);
    job.wait(2 * MINUTE).succeeded();
}
