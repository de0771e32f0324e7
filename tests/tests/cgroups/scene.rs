//! Cgroups that a test has made, and workloads in them that verify every byte of theirs.

use annex_tests::testbed::{Job, Testbed, bins, directory, wait_for};
use nix::sys::ptrace;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::mpsc;
use std::time::Duration;

pub const MINUTE: Duration = Duration::from_secs(60);
const FOLDER: &str = "/sys/fs/cgroup";

/// A cgroup of this test's, gone when it is dropped.
pub struct Cgroup {
    folder: PathBuf,
    root: &'static Path,
}

impl Cgroup {
    /// One below the root, with a name that nobody else has.
    pub fn new(kind: &str) -> Cgroup {
        static SERIAL: AtomicU32 = AtomicU32::new(0);
        let serial = SERIAL.fetch_add(1, Relaxed);
        Cgroup::called(&format!("annextest-{kind}-{}-{serial}", std::process::id()))
    }

    pub fn called(name: &str) -> Cgroup {
        let roots = ["/sys/fs/cgroup/unified", FOLDER].map(Path::new);
        let root = roots.into_iter().find(|root| root.join("cgroup.controllers").exists());
        let root = root.expect("there is a cgroup v2 hierarchy");
        let folder = root.join(name);
        fs::create_dir(&folder).expect("root may make cgroups");
        Cgroup { folder, root }
    }

    /// One in this.
    pub fn below(&self, name: &str) -> Cgroup {
        let folder = self.folder.join(name);
        fs::create_dir(&folder).expect("root may make cgroups");
        Cgroup { folder, root: self.root }
    }

    pub fn folder(&self) -> &str {
        self.folder.to_str().expect("its name is text")
    }

    pub fn name(&self) -> &str {
        self.folder().rsplit('/').next().expect("it has a name")
    }

    /// As /proc/PID/cgroup has it.
    pub fn path(&self) -> &str {
        &self.folder()[self.root.as_os_str().len()..]
    }

    pub fn take(&self, pid: i32) {
        fs::write(self.folder.join("cgroup.procs"), pid.to_string()).expect("root may move processes");
    }

    /// Whoever is in it is in the root from now on.
    pub fn empty(&self) {
        for pid in self.pids() {
            // It may just have ended.
            let _ = fs::write(self.root.join("cgroup.procs"), pid.to_string());
        }
    }

    fn pids(&self) -> Vec<i32> {
        let text = fs::read_to_string(self.folder.join("cgroup.procs")).unwrap_or_default();
        text.lines().filter_map(|line| line.parse().ok()).collect()
    }

    /// When the processes in it have ended, so does it.
    pub fn end(self) {
        wait_for("everybody in the cgroup to end", MINUTE, || self.pids().is_empty());
        fs::remove_dir(&self.folder).expect("nobody is left in it");
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        self.empty();
        let _ = fs::remove_dir(&self.folder);
    }
}

/// A workload that runs until it is told to end.
pub fn stress() -> Command {
    stress_of("rw")
}

pub fn stress_of(features: &str) -> Command {
    let mut command = Command::new(bins::find("annex-stress"));
    let options = ["--size", "64M", "--threads", "2", "--seconds", "0", "--features", features, "--dir"];
    command.args(options).arg(directory());
    command
}

/// Starts it in a cgroup.
pub fn start(bed: &Testbed, name: &str, command: Command, cgroup: &Cgroup) -> Job {
    let mut job = bed.natively(name, command);
    cgroup.take(job.pid());
    // What has been started meanwhile comes with it only if it is moved, too.
    job.wait_says("ready", MINUTE);
    job
}

/// Ends the workload, which verifies everything once more.
pub fn end(job: Job) {
    let pid = job.pid();
    end_by(job, pid);
}

/// The same, if the workload is not the job's first process.
pub fn end_by(job: Job, workload: i32) {
    kill(Pid::from_raw(workload), Signal::SIGTERM).expect("it runs");
    let outcome = job.wait(2 * MINUTE).succeeded();
    let summary: serde_json::Value = serde_json::from_str(&outcome.stdout).expect("one line of JSON");
    assert_eq!(summary["errors"], 0, "{outcome}");
}

/// A debugger of a process, until it is dropped.
pub struct Tracer(#[expect(dead_code, reason = "the thread ends when it is closed")] mpsc::Sender<()>);

impl Tracer {
    pub fn of(pid: i32) -> Tracer {
        let (ready, is_ready) = mpsc::channel();
        let (sender, until) = mpsc::channel();
        std::thread::spawn(move || {
            ready.send(ptrace::seize(Pid::from_raw(pid), ptrace::Options::empty())).expect("the test waits");
            // The kernel lets go of what a thread traces when that ends.
            let _ = until.recv();
        });
        is_ready.recv().expect("the thread answers").expect("root may trace");
        Tracer(sender)
    }
}

/// The only process of that name among these.
pub fn called(pids: &[i32], name: &str) -> i32 {
    let is_it = |pid: &&i32| fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm.trim() == name);
    let found: Vec<&i32> = pids.iter().filter(is_it).collect();
    assert_eq!(found.len(), 1, "{name} among {pids:?}");
    *found[0]
}
