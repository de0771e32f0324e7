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
mod plan;
mod set;
mod touch;
mod transfer;
mod trouble;
mod watchdog;
mod worker;

use board::Shared;
use serde::Serialize;
use set::Set;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

pub use family::probe;
pub use plan::{Feature, Plan};
pub use trouble::Trouble;

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
