//! A child process that does not outlive its owner: own process group, output in files, ended by
//! PID when dropped.

use nix::errno::Errno;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// How long an orderly end may take before the process is killed.
const GRACE: Duration = Duration::from_secs(20);

static SERIAL: AtomicU32 = AtomicU32::new(0);

/// Bytes of memory that are a process's own: annexd has slabs of donors on its host mapped as well,
/// and those fill as programs are evicted.
///
/// # Errors
/// It has ended.
pub fn own_memory(pid: i32) -> std::io::Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
    kib.map(|kib| kib << 10).ok_or_else(|| std::io::Error::other(format!("process {pid} has no RssAnon: it has ended")))
}

pub struct Process {
    name: String,
    child: Child,
    out: PathBuf,
    err: PathBuf,
}

impl Process {
    /// Starts `command` in a process group of its own.
    ///
    /// # Panics
    /// When it can't be started.
    pub fn start(name: &str, mut command: Command, dir: &Path) -> Process {
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
        let (out, err) = (dir.join(format!("{serial}-{name}.out")), dir.join(format!("{serial}-{name}.err")));
        command.stdin(Stdio::null());
        command.stdout(File::create(&out).expect("the testbed's directory is writable"));
        command.stderr(File::create(&err).expect("the testbed's directory is writable"));
        command.process_group(0);
        // SAFETY: between fork and exec only prctl runs: the child ends with the test even if the
        // test is killed.
        unsafe {
            command.pre_exec(|| Ok(nix::sys::prctl::set_pdeathsig(Signal::SIGKILL)?));
        }
        let child = command.spawn().unwrap_or_else(|e| panic!("can't start {command:?}: {e}"));
        Process { name: name.into(), child, out, err }
    }

    pub fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    /// How often the thread of this name has gone to sleep.
    ///
    /// # Panics
    /// If there is no such thread.
    pub fn switches(&self, thread: &str) -> u64 {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.pid())).expect("the process runs");
        let read = |path: std::path::PathBuf| std::fs::read_to_string(path).unwrap_or_default();
        let mut named = tasks.flatten().map(|task| task.path()).filter(|task| read(task.join("comm")).trim() == thread);
        let status = read(named.next().unwrap_or_else(|| panic!("no thread {thread}")).join("status"));
        let count = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        count.and_then(|count| count.trim().parse().ok()).expect("proc_pid_status(5)")
    }

    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Sends a signal to the process alone.
    pub fn signal(&self, signal: Signal) {
        // Already gone is fine.
        let _ = nix::sys::signal::kill(Pid::from_raw(self.pid()), signal);
    }

    /// Its exit status, or `None` when `limit` passes first.
    pub fn wait(&mut self, limit: Duration) -> Option<ExitStatus> {
        let started = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("our child") {
                return Some(status);
            }
            if started.elapsed() > limit {
                return None;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    pub fn stdout(&self) -> String {
        read_lossy(&self.out)
    }

    pub fn stderr(&self) -> String {
        read_lossy(&self.err)
    }

    /// The end of what it wrote, for messages.
    pub fn log(&self) -> String {
        (self.log_reader())()
    }

    /// The same, for those who hold no reference to the process.
    pub fn log_reader(&self) -> impl Fn() -> String + Send + use<> {
        let (name, out, err) = (self.name.clone(), self.out.clone(), self.err.clone());
        let tail = |text: String| {
            let lines: Vec<_> = text.lines().collect();
            lines[lines.len().saturating_sub(40)..].join("\n")
        };
        move || format!("--- {name} ---\n{}\n{}\n", tail(read_lossy(&out)), tail(read_lossy(&err)))
    }

    /// Ends the whole group at once.
    pub fn kill(&mut self) {
        match killpg(Pid::from_raw(self.pid()), Signal::SIGKILL) {
            Ok(()) | Err(Errno::ESRCH | Errno::EPERM) => {}
            Err(e) => eprintln!("can't kill {}: {e}", self.name),
        }
        // Reaped or already reaped: both are the end.
        let _ = self.child.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.is_running() {
            self.signal(Signal::SIGTERM);
            self.wait(GRACE);
        }
        self.kill();
    }
}

pub fn read_lossy(path: &Path) -> String {
    std::fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
}
