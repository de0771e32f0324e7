//! The self-verifying workload. It knows nothing of annex: it uses memory in every way a real
//! program does, knows at each moment what every byte must be, and checks. Run natively it must
//! pass; run on paged memory it must pass all the same.
//!
//! - [`content`]: what a page holds, and the comparison. [`set`]: the working set and who may touch
//!   which page.
//! - [`worker`]: one thread's loop over the features: [`transfer`] (read, write, O_DIRECT, pipes),
//!   [`churn`] (mmap and munmap at reused addresses), [`moves`] (mremap), [`discard`]
//!   (MADV_DONTNEED, MADV_FREE, mprotect, huge pages), [`family`] (fork, exec, threads).
//! - `touch`: reads and writes of the set, verified.
//! - [`board`]: counters shared with forked children. `watchdog`: ends the run when nothing
//!   progresses.

pub mod board;
mod churn;
pub mod content;
mod discard;
mod family;
pub mod map;
mod moves;
mod set;
mod touch;
mod transfer;
mod watchdog;
mod worker;

use board::Shared;
use clap::ValueEnum;
use content::Mismatch;
use serde::Serialize;
use set::Set;
use std::collections::BTreeMap;
use std::fmt;
use std::io::Write;
use std::path::PathBuf;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

pub use family::probe;

/// One way to use memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Feature {
    /// Random reads and writes.
    Rw,
    /// Reads of the whole set in order.
    Scan,
    /// read(), write(), pread(), pipes into and out of the set.
    Io,
    /// The same with O_DIRECT.
    Direct,
    /// mmap and munmap at reused addresses.
    Churn,
    /// mremap: grow, shrink, move, MREMAP_FIXED.
    Remap,
    /// MADV_DONTNEED.
    Discard,
    /// MADV_FREE.
    Free,
    /// mprotect back and forth.
    Protect,
    /// Huge pages on and off.
    Huge,
    /// Children that verify all they inherited.
    Fork,
    /// vfork and exec; the new program verifies its own memory.
    Exec,
    /// Threads that come and go.
    Threads,
}

impl Feature {
    pub const COUNT: usize = Feature::ALL.len();
    pub const ALL: [Feature; 13] = [
        Feature::Rw,
        Feature::Scan,
        Feature::Io,
        Feature::Direct,
        Feature::Churn,
        Feature::Remap,
        Feature::Discard,
        Feature::Free,
        Feature::Protect,
        Feature::Huge,
        Feature::Fork,
        Feature::Exec,
        Feature::Threads,
    ];
}

impl fmt::Display for Feature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = self.to_possible_value().expect("no feature is hidden");
        f.write_str(value.get_name())
    }
}

/// What to run.
#[derive(Clone, Debug)]
pub struct Plan {
    pub bytes: usize,
    pub threads: usize,
    /// Zero: until SIGTERM.
    pub duration: Duration,
    pub seed: u64,
    pub features: Vec<Feature>,
    /// Where scratch files go; O_DIRECT needs a real filesystem.
    pub directory: PathBuf,
    /// Without any progress for this long, the run is ended.
    pub stall: Duration,
}

/// Why a run failed.
#[derive(Debug, thiserror::Error)]
pub enum Trouble {
    #[error("wrong content after {doing}: page {page}, {mismatch}; {why}")]
    Wrong { doing: &'static str, page: usize, mismatch: Mismatch, why: String },
    #[error("{what} failed: {source}")]
    Call { what: &'static str, source: std::io::Error },
    #[error("a child {0}")]
    Child(String),
    #[error("a thread panicked")]
    Panic,
}

impl Trouble {
    fn call(what: &'static str) -> impl FnOnce(std::io::Error) -> Trouble {
        move |source| Trouble::Call { what, source }
    }
}

/// What is printed at the end, as one line of JSON.
#[derive(Debug, Serialize)]
pub struct Summary {
    /// Pages compared byte by byte, in all processes.
    pub checks: u64,
    pub errors: u64,
    pub seconds: f64,
    pub children: u64,
    /// In seconds; see `end_when_hung`.
    pub longest_child: f64,
    /// `used`, `refused` by the filesystem, or `off`.
    pub direct: &'static str,
    pub steps: BTreeMap<String, u64>,
    pub error: Option<String>,
}

/// Runs the plan to its end. The summary says whether all was well.
pub fn run(plan: &Plan) -> Result<Summary, Trouble> {
    let board = Shared::new().map_err(Trouble::call("mmap of the counters"))?;
    let started = Instant::now();
    stop_on_sigterm(board)?;
    let set = Set::new(plan.bytes / content::PAGE, plan.seed)?;
    if plan.features.contains(&Feature::Huge) {
        discard::hint_huge(&set)?;
    }
    let children = family::Children::new(plan.stall);
    let watchdog = watchdog::start(board, plan.stall);
    let workers: Vec<_> = (0..plan.threads)
        .map(|place| worker::Worker::new(place, plan, &set, board, &children))
        .collect::<Result<_, _>>()?;
    let outcome = std::thread::scope(|scope| {
        let threads: Vec<_> = workers.into_iter().map(|worker| scope.spawn(move || worker.run())).collect();
        let mut outcome = Ok(());
        for thread in threads {
            let ended = thread.join().unwrap_or(Err(Trouble::Panic));
            outcome = outcome.and(ended);
        }
        outcome
    })
    .and_then(|()| children.wait_all(board))
    .and_then(|()| touch::check_all(&set, board));
    watchdog.stop();
    if outcome.is_err() {
        board.errors.fetch_add(1, Relaxed);
    }
    let direct = match board.direct.load(Relaxed) {
        1 => "used",
        2 => "refused",
        _ => "off",
    };
    Ok(Summary {
        checks: board.checks.load(Relaxed),
        errors: board.errors.load(Relaxed),
        seconds: started.elapsed().as_secs_f64(),
        children: board.children.load(Relaxed),
        longest_child: board.longest_child.load(Relaxed) as f64 / 1e3,
        direct,
        steps: plan.features.iter().map(|f| (f.to_string(), board.steps(*f))).collect(),
        error: outcome.err().map(|e| e.to_string()),
    })
}

/// One line on stderr that says the set is filled and the run proper begins.
fn announce(board: Shared) {
    let line = format!("{{\"ready\":true,\"pid\":{},\"checks\":{}}}\n", std::process::id(), board.checks.load(Relaxed));
    // A closed stderr is no reason to end the run.
    let _ = std::io::stderr().write_all(line.as_bytes());
}

static STOP: std::sync::OnceLock<Shared> = std::sync::OnceLock::new();

/// SIGTERM and SIGINT end the run early but in order, with a summary.
fn stop_on_sigterm(board: Shared) -> Result<(), Trouble> {
    extern "C" fn stop(_signal: i32) {
        if let Some(board) = STOP.get() {
            board.stop.store(1, Relaxed);
        }
    }
    STOP.get_or_init(|| board);
    let action = nix::sys::signal::SigAction::new(
        nix::sys::signal::SigHandler::Handler(stop),
        nix::sys::signal::SaFlags::SA_RESTART,
        nix::sys::signal::SigSet::empty(),
    );
    for signal in [nix::sys::signal::SIGTERM, nix::sys::signal::SIGINT] {
        // SAFETY: the handler only stores to an atomic.
        unsafe { nix::sys::signal::sigaction(signal, &action) }
            .map_err(|e| Trouble::Call { what: "sigaction", source: e.into() })?;
    }
    Ok(())
}
