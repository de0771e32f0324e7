//! A program that verifies each byte of its memory, most of which is in the pool, in one case.

use crate::case::{Case, Fault};
use annex_shared::api::AppInfo;
use annex_tests::chaos::watch::Watch;
use annex_tests::testbed::{Testbed, bins, directory, wait_for};
use nix::sys::signal::Signal;
use std::process::Command;
use std::time::{Duration, Instant};

/// For how long the donors are away: longer than an operation may take (3 s), and than they are
/// waited for (`lost_after`, 5 s).
const AWAY: Duration = Duration::from_millis(6500);
/// What is under way when they go has ended one way or another by then.
const NOTICED: Duration = Duration::from_millis(1500);
const MINUTE: Duration = Duration::from_secs(60);
const APP: &str = "stress";
const SIGBUS: i32 = 128 + Signal::SIGBUS as i32;

/// What came of it.
pub struct Outcome {
    /// Pages that went out, and faults that were served, while the donors were away and that was
    /// known.
    evicted: u64,
    served: u64,
    /// The longest time without a fault served.
    stall: Duration,
    /// The program's exit code, and what it found.
    code: i32,
    checks: u64,
    errors: u64,
    note: String,
    pub log: String,
}

pub const HEAD: &str = "| case | pages evicted meanwhile | faults served meanwhile | longest without one, ms | ended with | \
     pages verified | wrong |\n| --- | --- | --- | --- | --- | --- | --- |";

impl Outcome {
    /// A line of the table in Markdown.
    pub fn line(&self, case: &Case) -> String {
        let Outcome { evicted, served, stall, code, checks, errors, .. } = self;
        format!("| {case} | {evicted} | {served} | {} | {code} | {checks} | {errors} |", stall.as_millis())
    }

    /// What is not as it must be.
    pub fn faults(&self, case: &Case) -> Vec<String> {
        let mut faults = Vec::new();
        let mut must = |holds: bool, what: &str| {
            if !holds {
                faults.push(what.to_owned());
            }
        };
        if case.may_lose() {
            // It touches a page that nobody has any more.
            must(self.code == SIGBUS, "the program was not stopped by SIGBUS");
            must(self.log.contains("lost"), "annexd's log does not tell that pages are lost");
            return faults;
        }
        must(self.code == 0 && self.errors == 0, "the program failed");
        must(self.checks > 10_000, "too few pages were verified to prove anything");
        must(!self.note.contains("lost"), "pages are lost");
        if case.keeps_all_within_reach() {
            must(self.evicted > 500, "hardly a page went out");
            must(self.served > 500, "hardly a fault was served");
        }
        faults
    }
}

pub fn run(case: &Case) -> Outcome {
    let mut bed = case.bed().start();
    let mut command = Command::new(bins::find("annex-stress"));
    command.args(["--size", "96M", "--threads", "2", "--seconds", "0", "--features", "rw,scan,discard"]);
    command.args(["--stall", "60", "--dir"]).arg(directory());
    let mut job = bed.run(APP, "32M", command);
    job.wait_says("ready", MINUTE);
    bed.wait_app(APP, MINUTE, |app| app.pages_evicted > 10_000 && app.faults.major > 1_000);
    wait_for("all is whole", MINUTE, || bed.status().pool.degraded_extents == 0);
    let watch = Watch::start(&bed.socket, APP);
    let struck = Instant::now();
    let under_way = case.strike(&mut bed);
    std::thread::sleep(NOTICED);
    let before = look(&bed);
    std::thread::sleep(AWAY - NOTICED);
    let after = look(&bed);
    let stall = watch.longest_since(struck);
    case.undo(&mut bed, under_way);
    if !case.may_lose() {
        let now = look(&bed).faults.major;
        wait_for("faults to be served again", MINUTE, || {
            !job.process.is_running() || look(&bed).faults.major > now + 500
        });
        job.signal(Signal::SIGTERM);
    }
    let outcome = job.wait(2 * MINUTE);
    let summary: serde_json::Value = serde_json::from_str(&outcome.stdout).unwrap_or_default();
    let count = |what: &str| summary[what].as_u64().unwrap_or(0);
    watch.end();
    Outcome {
        evicted: after.pages_evicted - before.pages_evicted,
        served: after.faults.major - before.faults.major,
        stall,
        code: outcome.code(),
        checks: count("checks"),
        errors: count("errors"),
        note: after.note,
        log: format!("{}\n{}", outcome.stderr, bed.annexd_logs()),
    }
}

fn look(bed: &Testbed) -> AppInfo {
    bed.app(APP).expect("annexd has the program")
}

impl Case {
    /// Each page has a copy on a donor that answers. One that is drained does.
    fn keeps_all_within_reach(&self) -> bool {
        self.fault == Fault::Drained || self.away < usize::from(self.replicas)
    }
}
