//! What a program says to the kernel about its memory (madvise, mlock, mprotect, also about pages
//! that are evicted) means the same as without annex.

use annex_tests::testbed::{Outcome, Testbed, bins};
use nix::sys::signal::Signal;
use std::process::Command;
use std::time::Duration;

const MINUTE: Duration = Duration::from_secs(60);

/// 32 MiB at a time in a program that may keep 14: Python itself has some.
fn tried(trials: &[&str]) -> Outcome {
    let bed = Testbed::builder().mixed();
    let mut python = Command::new("python3");
    python.arg(bins::script("advice.py")).arg("32").args(trials);
    let outcome = bed.run("advice", "14M", python).wait(4 * MINUTE).succeeded().was_paged(10_000, 5_000);
    assert_eq!(outcome.stdout.lines().collect::<Vec<_>>(), trials, "{outcome}");
    outcome
}

/// The child took over the records of all evicted pages, and got its parent's bytes where it was to
/// find zeros.
#[test]
fn memory_that_is_wiped_on_fork_is_zeros_in_the_child_though_it_was_evicted() {
    tried(&["wiped_on_fork", "half_is_wiped_on_fork", "kept_on_fork_after_all"]);
}

/// The child took over records of addresses that it has no mapping at, and what it mapped there
/// later began with its parent's bytes.
#[test]
fn memory_that_a_fork_leaves_out_does_not_show_in_what_the_child_maps_there() {
    tried(&["not_there_after_a_fork"]);
}

#[test]
fn dropped_pages_stay_dropped_and_new_ones_hold() {
    tried(&["dropped", "freed", "removed"]);
}

#[test]
fn advice_that_changes_no_byte_changes_none() {
    tried(&["cold", "populated", "collapsed"]);
}

#[test]
fn locked_and_inaccessible_memory_has_its_bytes_afterwards() {
    tried(&["locked", "made_inaccessible"]);
}

/// A guard that was put over evicted pages vanished when they were installed, and after it was
/// removed they had their old bytes.
#[test]
fn guards_over_evicted_pages_hold_and_leave_zeros_behind() {
    let bed = Testbed::builder().mixed();
    let mut python = Command::new("python3");
    python.arg(bins::script("guards.py")).arg("48");
    let mut job = bed.run("guards", "20M", python);
    job.wait_says("guarded", 2 * MINUTE);
    bed.wait_app("guards", MINUTE, |app| app.note.contains("guards stay"));
    job.signal(Signal::SIGUSR2);
    job.wait_says("bare", MINUTE);
    bed.ask("detach", ["guards"]).succeeded();
    job.signal(Signal::SIGUSR1);
    let outcome = job.wait(2 * MINUTE).succeeded().was_paged(5_000, 1_000);
    assert_eq!(outcome.stdout, "guarded\nbare\nverified\n", "{outcome}");
}
