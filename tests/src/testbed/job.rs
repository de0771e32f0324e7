//! A program under test: started, watched through the API while it runs, ended at its time limit.

use super::process::Process;
use super::{Testbed, api};
use crate::stacks;
use annex_shared::api::{AppInfo, Limit};
use nix::sys::signal::Signal;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How often the app is looked at.
const LOOK: Duration = Duration::from_millis(100);

/// What annexd said about the app while it ran. The counters only grow, so the last look counts.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    pub pages_evicted: u64,
    pub pages_in: u64,
    pub faults: u64,
    pub zero_faults: u64,
    /// The most processes at once.
    pub processes: usize,
    pub max_evicted_bytes: u64,
    /// At how many looks, with something evicted, each percentage of its memory was resident.
    resident_shares: BTreeMap<u8, u32>,
    /// Looks at which it had more than twice its limit, and those of them that came with a note.
    pub looks_above: u32,
    pub notes_above: u32,
    pub last: Option<AppInfo>,
}

impl Seen {
    fn add(&mut self, app: AppInfo) {
        self.pages_evicted = self.pages_evicted.max(app.pages_evicted);
        self.pages_in = self.pages_in.max(app.pages_in);
        self.faults = self.faults.max(app.faults.major);
        self.zero_faults = self.zero_faults.max(app.faults.zero);
        self.processes = self.processes.max(app.pids.len());
        self.max_evicted_bytes = self.max_evicted_bytes.max(app.evicted);
        if app.evicted > 0 {
            let share = app.resident * 100 / (app.resident + app.evicted);
            *self.resident_shares.entry(share as u8).or_default() += 1;
        }
        if let Limit::Bytes(limit) = app.local
            && app.resident > 2 * limit
        {
            self.looks_above += 1;
            self.notes_above += u32::from(!app.note.is_empty());
        }
        self.last = Some(app);
    }

    /// The median of the resident shares, in percent; 100 if nothing was ever evicted.
    pub fn usual_share(&self) -> u8 {
        let half = self.resident_shares.values().sum::<u32>() / 2;
        let mut looks = 0;
        let reaches_half = |(_, count): &(&u8, &u32)| {
            looks += *count;
            looks > half
        };
        self.resident_shares.iter().find(reaches_half).map_or(100, |(share, _)| *share)
    }
}

/// How it ended.
#[derive(Debug)]
pub struct Outcome {
    pub name: String,
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
    pub seen: Seen,
    pub took: Duration,
    /// annexd's log at that moment, for messages.
    pub daemon_log: String,
}

impl Outcome {
    /// It ended with exit code 0.
    #[track_caller]
    pub fn succeeded(self) -> Outcome {
        assert!(self.status.success(), "{} failed: {self}", self.name);
        self
    }

    /// It was really paged: at least that many pages went out, and at least that many came back, by
    /// however many faults.
    #[track_caller]
    pub fn was_paged(self, out: u64, back: u64) -> Outcome {
        let Seen { pages_evicted, pages_in, .. } = self.seen;
        assert!(
            pages_evicted >= out && pages_in >= back && self.seen.faults > 0,
            "{} proves nothing: {pages_evicted} pages evicted (wanted {out}), {pages_in} came back (wanted {back}): {self}",
            self.name
        );
        self
    }

    /// It worked with no more than this percentage of its memory resident, most of the time.
    #[track_caller]
    pub fn worked_within(self, percent: u8) -> Outcome {
        let usual = self.seen.usual_share();
        assert!(usual <= percent, "{} had {usual} % of its memory resident, not {percent} %: {self}", self.name);
        self
    }

    /// The exit code, or 128 + the signal as a shell has it.
    pub fn code(&self) -> i32 {
        self.status.code().unwrap_or_else(|| 128 + self.status.signal().unwrap_or(0))
    }
}

impl std::fmt::Display for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Outcome { status, stdout, stderr, seen, took, daemon_log, .. } = self;
        let tail = |text: &str, most| text.chars().skip(text.chars().count().saturating_sub(most)).collect::<String>();
        write!(
            f,
            "{status} after {took:?}\nstdout: {}\nseen: {seen:?}\nthe end of annexd's log:\n{}\nstderr: {}",
            tail(stdout, 4_000),
            tail(daemon_log, 6_000),
            tail(stderr, 20_000)
        )
    }
}

pub struct Job {
    pub name: String,
    pub process: Process,
    started: Instant,
    seen: Arc<Mutex<Seen>>,
    ended: Arc<AtomicBool>,
    watcher: Option<JoinHandle<()>>,
    daemon_err: Box<dyn Fn() -> String + Send>,
}

impl Job {
    pub fn start(bed: &Testbed, name: &str, command: Command) -> Job {
        let process = Process::start(name, command, bed.path());
        let seen = Arc::new(Mutex::new(Seen::default()));
        let ended = Arc::new(AtomicBool::new(false));
        let watcher = std::thread::spawn({
            let (seen, ended, socket, name) = (seen.clone(), ended.clone(), bed.socket.clone(), name.to_owned());
            move || watch(&socket, &name, &seen, &ended)
        });
        let log = bed.annexd.log_reader();
        Job {
            name: name.into(),
            process,
            started: Instant::now(),
            seen,
            ended,
            watcher: Some(watcher),
            daemon_err: Box::new(log),
        }
    }

    pub fn pid(&self) -> i32 {
        self.process.pid()
    }

    pub fn signal(&self, signal: Signal) {
        self.process.signal(signal);
    }

    pub fn seen(&self) -> Seen {
        self.seen.lock().expect("the watcher does not panic").clone()
    }

    /// Asks annexd no more about it: for what is measured while nobody asks.
    pub fn stop_watching(&self) {
        self.ended.store(true, Relaxed);
    }

    /// Waits until its standard output or error holds `text`.
    ///
    /// # Panics
    /// When it ends before, or `limit` passes.
    #[track_caller]
    pub fn wait_says(&mut self, text: &str, limit: Duration) {
        let started = Instant::now();
        loop {
            let running = self.process.is_running();
            if self.process.stdout().contains(text) || self.process.stderr().contains(text) {
                return;
            }
            let why = if running { "did not say it in time" } else { "ended without saying it" };
            let late = started.elapsed() > limit;
            assert!(running && !late, "{} {why}: {text:?}\n{}{}", self.name, self.process.log(), (self.daemon_err)());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits for its end.
    ///
    /// # Panics
    /// When `limit` passes first; it is killed then.
    #[track_caller]
    pub fn wait(mut self, limit: Duration) -> Outcome {
        let status = self.process.wait(limit);
        let took = self.started.elapsed();
        self.ended.store(true, Relaxed);
        let hung = status.is_none().then(stacks::of_all);
        if hung.is_some() {
            self.process.kill();
        }
        if let Some(watcher) = self.watcher.take() {
            watcher.join().expect("the watcher does not panic");
        }
        let outcome = Outcome {
            name: self.name.clone(),
            status: status.unwrap_or(ExitStatus::from_raw(libc::SIGKILL)),
            stdout: self.process.stdout(),
            stderr: self.process.stderr(),
            seen: self.seen(),
            took,
            daemon_log: (self.daemon_err)(),
        };
        if let Some(stacks) = hung {
            panic!("{} was not done within {limit:?}: {outcome}\n{stacks}", self.name);
        }
        outcome
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        self.ended.store(true, Relaxed);
        if std::thread::panicking() {
            let runs = if self.process.is_running() { "still runs" } else { "has ended" };
            eprintln!("{} {runs}:\n{}", self.name, self.process.log());
        }
    }
}

fn watch(socket: &Path, name: &str, seen: &Mutex<Seen>, ended: &AtomicBool) {
    while !ended.load(Relaxed) {
        if let Ok(apps) = api::fetch::<Vec<AppInfo>>(socket, "/v1/apps")
            && let Some(app) = apps.into_iter().find(|app| app.name == name)
            && let Ok(mut seen) = seen.lock()
        {
            seen.add(app);
        }
        std::thread::sleep(LOOK);
    }
}

impl Testbed {
    /// Runs an `annex` command to its end.
    pub fn ask<S: AsRef<OsStr>>(&self, subcommand: &str, args: impl IntoIterator<Item = S>) -> Outcome {
        Job::start(self, "annex", self.annex(subcommand, args)).wait(Duration::from_secs(120))
    }

    /// Starts `command` under `annex run`; `name` is the app's name.
    pub fn run(&self, name: &str, local: &str, command: Command) -> Job {
        Job::start(self, name, self.under_run(name, local, command))
    }

    /// Starts `command` as it is, without annex.
    pub fn natively(&self, name: &str, command: Command) -> Job {
        Job::start(self, name, command)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_usual_share_is_the_median_of_all_looks() {
        let seen = |shares: &[(u8, u32)]| Seen { resident_shares: shares.iter().copied().collect(), ..Seen::default() };
        assert_eq!(seen(&[(25, 3), (90, 2)]).usual_share(), 25);
        assert_eq!(seen(&[(25, 2), (90, 3)]).usual_share(), 90);
        assert_eq!(seen(&[]).usual_share(), 100);
    }
}
