//! Children whose parent has ended when the next annexd comes.

use super::scene::{LIMIT, bed, programs};
use annex_tests::testbed::{Job, Testbed, wait_for};
use std::process::Command;

/// annexd dies with a fork that it has read and not applied, or not wholly. The parent has gone on
/// at the read, and ended: it was taken for an address space of no account, and with it the
/// userfaultfd of the child was lost. What was evicted of that read as zeros.
#[test]
fn a_child_whose_parent_has_ended_before_its_fork_was_applied_loses_no_page() {
    let mut bed = bed();
    let programs = programs(&bed);
    let go = programs.join("go");
    let mut command = Command::new(programs.join("orphans"));
    command.env("SHAPES_GO", &go);
    let mut job = bed.run("orphans", "10M", command);
    job.wait_says("ready", LIMIT);
    // Forks of the program and of its children come in turn.
    for point in ["change-applied", "change-committed"] {
        for nth in 1..=6 {
            let point = format!("{point}:{nth}");
            bed.annexd.kill();
            bed.start_again(Some(&point));
            assert!(bed.annexd.wait(LIMIT).is_some(), "no fork: {}", bed.annexd_logs());
            bed.start_again(None);
            forks_go_on(&bed, &mut job, &point);
        }
    }
    std::fs::write(&go, "+").expect("ours");
    let outcome = job.wait(LIMIT).succeeded();
    assert!(outcome.stdout.contains("right"), "{outcome}");
    wait_for("every slot to be free", LIMIT, || bed.status().pool.used == 0);
}

/// Grandchildren look at pages that are out.
fn forks_go_on(bed: &Testbed, job: &mut Job, point: &str) {
    wait_for("faults, or the end", LIMIT, || {
        !job.process.is_running() || bed.app("orphans").is_some_and(|app| app.faults.major > 2000)
    });
    assert!(job.process.is_running(), "it ended after a death at {point}: {}{}", bed.annexd_logs(), job.process.log());
}
