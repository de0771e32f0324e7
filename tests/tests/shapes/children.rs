//! Hundreds of children that live for a moment: each is waited for once with the status that it
//! had, and nothing of them stays, neither in the family nor in annexd.

use crate::scene::{LIMIT, bed, programs};
use annex_tests::testbed::process::own_memory;
use annex_tests::testbed::{Testbed, wait_for};
use std::fs;
use std::path::Path;
use std::process::Command;

/// How many there are at first, and once more after it has been looked what annexd has.
const CHILDREN: u32 = 300;

/// What would stay for each of them is more, if it is 16 KiB.
const MOST_GROWTH: u64 = CHILDREN as u64 * (16 << 10);

#[test]
fn children_that_are_forked_and_end_at_once_leave_nothing() {
    leave_nothing("fork");
}

#[test]
fn children_that_are_vforked_and_end_at_once_leave_nothing() {
    leave_nothing("vfork");
}

#[test]
fn children_that_are_spawned_and_end_at_once_leave_nothing() {
    leave_nothing("spawn");
}

fn leave_nothing(how: &str) {
    let bed = bed();
    let programs = programs(&bed);
    let go = programs.join("go");
    fs::write(&go, "").expect("the testbed's directory is ours");
    let mut command = Command::new(programs.join("short_lived"));
    command.args([how, &CHILDREN.to_string()]).env("SHAPES_GO", &go);
    let mut job = bed.run(how, "10M", command);
    job.wait_says("ready", LIMIT);
    bed.wait_app(how, LIMIT, |app| app.evicted > 24 << 20);
    let tell = |stage: &str| fs::write(&go, stage).expect("the testbed's directory is ours");
    let alone = |job: &annex_tests::testbed::Job| {
        wait_for("its stub to be the only one", LIMIT, || stubs_with(&go) == 1);
        bed.wait_app(how, LIMIT, |app| app.pids == [job.pid()]);
    };
    tell("+");
    job.wait_says("once", 3 * LIMIT);
    alone(&job);
    let before = (descriptors(&bed), memory(&bed));
    tell("++");
    job.wait_says("twice", 3 * LIMIT);
    alone(&job);
    wait_for("annexd's descriptors to be as many as before", LIMIT, || descriptors(&bed) <= before.0);
    let grown = memory(&bed).saturating_sub(before.1);
    assert!(grown < MOST_GROWTH, "annexd has grown by {grown} bytes for {CHILDREN} children");
    tell("+++");
    let outcome = job.wait(LIMIT).succeeded();
    println!("{}annexd: {} descriptors, grown by {grown} bytes", outcome.stdout, before.0);
    assert!(outcome.stdout.ends_with("right\n"), "{outcome}");
    bed.wait_gone(how);
    wait_for("every slot to be free", LIMIT, || bed.status().pool.used == 0);
}

/// Stubs in programs that were told to wait for this file: a stub's environment is that of the
/// memory that it shares.
fn stubs_with(go: &Path) -> usize {
    let go = go.to_str().expect("of ASCII").as_bytes();
    let processes = fs::read_dir("/proc").expect("it is mounted").flatten().map(|entry| entry.path());
    let is_stub = |path: &Path| fs::read_to_string(path.join("comm")).is_ok_and(|comm| comm.trim() == "annex-stub");
    let has_it = |path: &Path| fs::read(path.join("environ")).is_ok_and(|all| all.windows(go.len()).any(|at| at == go));
    processes.filter(|path| is_stub(path) && has_it(path)).count()
}

fn descriptors(bed: &Testbed) -> usize {
    fs::read_dir(format!("/proc/{}/fd", bed.annexd.pid())).expect("annexd runs").count()
}

/// Bytes of annexd's heap. (What it shares, its own tables and the memory of donors on this host,
/// has descriptors.)
fn memory(bed: &Testbed) -> u64 {
    own_memory(bed.annexd.pid()).expect("annexd runs")
}
