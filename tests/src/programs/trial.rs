//! One run of a program, natively or under annex. It ends in time, and no process of it is left.

use super::program::{Ended, NOBODY, Program, Verdict, Verdicts};
use crate::stacks;
use crate::testbed::job::Seen;
use crate::testbed::{Job, Testbed, bins};
use anyhow::{Context, ensure};
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// All that a trial starts inherits it, so that what stays behind is found.
const MARK: &str = "ANNEX_PROGRAMS_TRIAL";
/// How long annexd may take to let go of an app that has ended.
const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ground {
    Native,
    Annex,
}

/// What came of it.
pub struct Trial {
    pub verdicts: Verdicts,
    pub took: Duration,
    pub seen: Seen,
}

/// Where trials take place: donors, annexd, and how much of an app may stay local.
pub struct Arena {
    bed: Testbed,
    local: String,
    /// Preloaded into every program, if they would be too small to be paged without.
    ballast: Option<PathBuf>,
    trials: u32,
}

impl Arena {
    /// `built` is where the ballast is made, if there is to be one.
    pub fn new(local: &str, built: Option<&Path>) -> anyhow::Result<Arena> {
        Ok(Arena { bed: start(), local: local.into(), ballast: built.map(ballast).transpose()?, trials: 0 })
    }

    /// Runs `program` for at most `limit`.
    pub fn trial(&mut self, program: &Program, ground: Ground, limit: Duration) -> anyhow::Result<Trial> {
        self.trials += 1;
        let mark = format!("{}-{}", std::process::id(), self.trials);
        let dir = self.bed.path().join(format!("trial-{}", self.trials));
        fs::create_dir(&dir)?;
        chown(&dir, Some(NOBODY), Some(NOBODY))?;
        let mut command = (program.command)(&dir);
        command.env(MARK, &mark).envs(self.ballast.iter().map(|ballast| ("LD_PRELOAD", ballast)));
        if command.get_current_dir().is_none() {
            command.current_dir(&dir);
        }
        let name = format!("trial-{}", self.trials);
        let mut job = match ground {
            Ground::Native => self.bed.natively(&name, command),
            Ground::Annex => self.bed.run(&name, &self.local, command),
        };
        let started = Instant::now();
        let status = job.process.wait(limit);
        let took = started.elapsed();
        let verdicts = match status {
            Some(status) => {
                let ended = Ended { status, stdout: job.process.stdout(), stderr: job.process.stderr() };
                (program.read)(&program.name, &ended)
            }
            None => Verdicts::from([(program.name.clone(), Verdict::Hung(where_it_hangs(&job, &mark, limit)))]),
        };
        let mut trial = Trial { verdicts, took, seen: job.seen() };
        self.clear(&mut job, &mark);
        if ground == Ground::Annex
            && let Some(trouble) = self.trouble(&name)
        {
            trial.verdicts.insert(program.name.clone(), Verdict::Hung(trouble));
            eprintln!("annexd is started anew, after this:\n{}", self.bed.annexd_logs());
            self.bed = start();
        }
        // The bed's directory goes in the end: what can't be removed now is gone then.
        let _ = fs::remove_dir_all(&dir);
        Ok(trial)
    }

    /// Ends all that the trial has started.
    fn clear(&self, job: &mut Job, mark: &str) {
        job.process.kill();
        // What forks meanwhile is found the next time.
        for _ in 0..50 {
            let strays = strays(mark);
            if strays.is_empty() {
                break;
            }
            strays.iter().for_each(|pid| end(*pid));
            std::thread::sleep(Duration::from_millis(20));
        }
        job.stop_watching();
    }

    /// What annexd has come to, if it is not as well as before.
    fn trouble(&mut self, app: &str) -> Option<String> {
        let started = Instant::now();
        while self.bed.annexd.is_running() {
            let Some(left) = self.bed.app(app) else {
                return (!self.bed.annexd.is_running()).then(|| format!("annexd ended: {}", self.bed.annexd_logs()));
            };
            if started.elapsed() > PATIENCE {
                return Some(format!("annexd does not let go of it: {left:?}\n{}", stacks::of_all()));
            }
            // Those whose environment tells nothing any more.
            left.pids.iter().for_each(|pid| end(*pid));
            std::thread::sleep(Duration::from_millis(20));
        }
        Some(format!("annexd ended: {}", self.bed.annexd_logs()))
    }
}

/// Compiles tests/programs/ballast.c.
fn ballast(dir: &Path) -> anyhow::Result<PathBuf> {
    let library = dir.join("ballast.so");
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-fPIC", "-O2", "-o"]).arg(&library).arg(bins::script("ballast.c"));
    ensure!(cc.status().context("there is no C compiler")?.success(), "the ballast does not compile");
    Ok(library)
}

fn start() -> Testbed {
    Testbed::builder().shm()
}

/// Whether pages still come back tells a program that is slow from one that waits in vain.
fn where_it_hangs(job: &Job, mark: &str, limit: Duration) -> String {
    let threads: String = strays(mark).into_iter().map(stacks::of).collect();
    let before = job.seen().faults;
    std::thread::sleep(Duration::from_secs(2));
    let served = job.seen().faults - before;
    format!(
        "not done within {limit:.0?}; {served} faults served in the two seconds after\n{threads}{}\n{}",
        stacks::of_all(),
        job.process.log()
    )
}

/// The processes that a trial has started and that still live. annexd's own end with the memory
/// they share.
fn strays(mark: &str) -> Vec<i32> {
    let sought = format!("{MARK}={mark}");
    let pids = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let marked = |pid: &i32| {
        let proc = Path::new("/proc").join(pid.to_string());
        let environment = fs::read(proc.join("environ")).unwrap_or_default();
        let name = fs::read_to_string(proc.join("comm")).unwrap_or_default();
        !name.starts_with("annex") && environment.split(|byte| *byte == 0).any(|entry| entry == sought.as_bytes())
    };
    pids.filter(marked).collect()
}

fn end(pid: i32) {
    match kill(Pid::from_raw(pid), Signal::SIGKILL) {
        Ok(()) | Err(Errno::ESRCH) => {}
        Err(e) => eprintln!("can't kill {pid}: {e}"),
    }
}
