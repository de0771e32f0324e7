//! Programs that replace themselves, start others and fork while their memory is evicted: all bytes are right in each of them, and nothing of annex stays behind.

use annex_tests::testbed::census::Census;
use annex_tests::testbed::{Outcome, Testbed, bins, wait_for};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::process::Command;
use std::time::Duration;

const MINUTE: Duration = Duration::from_secs(60);

fn family(args: &[&str]) -> Command {
    let mut python = Command::new("python3");
    python.arg(bins::script("family.py")).args(args);
    python
}

fn ended_well(bed: &Testbed, args: &[&str]) -> Outcome {
    let outcome = bed.run("family", "20M", family(args)).wait(4 * MINUTE).succeeded().was_paged(10_000, 3_000);
    assert!(outcome.stdout.ends_with("all right\n"), "{outcome}");
    bed.wait_gone("family");
    wait_for("every slot to be free", MINUTE, || bed.status().pool.used == 0);
    outcome
}

#[test]
fn programs_that_replace_each_other_while_evicted_find_their_bytes() {
    ended_well(&Testbed::builder().beside_another().mixed(), &["32", "chain", "4"]);
}

#[test]
fn a_thread_replaces_the_program_while_others_fault() {
    ended_well(&Testbed::builder().beside_another().shm(), &["32", "threads"]);
}

#[test]
fn a_program_that_starts_others_by_vfork_keeps_its_bytes() {
    let outcome = ended_well(&Testbed::builder().beside_another().mixed(), &["32", "spawn", "3"]);
    assert!(outcome.seen.processes >= 2, "what it starts belongs to the app: {outcome}");
}

/// Wrappers in a script language become the program they are named after by way of several others, and whoever attaches a program right after its start meets these.
#[test]
fn a_program_that_becomes_another_while_it_is_attached_is_attached_all_the_same() {
    let bed = Testbed::builder().beside_another().shm();
    for round in 0..10 {
        let mut wrapped = Command::new("bash");
        let becoming = "[ $1 = 0 ] && exec sleep 30; exec bash -c \"$0\" \"$0\" $(($1 - 1))";
        wrapped.args(["-c", becoming, becoming, "40"]);
        let job = bed.natively("wrapper", wrapped);
        std::thread::sleep(Duration::from_millis(3 * round));
        bed.ask("attach", [&job.pid().to_string(), "--name", "wrapped", "--local", "8M", "--no-wait"]).succeeded();
        wait_for("the last of them", MINUTE, || {
            std::fs::read_to_string(format!("/proc/{}/comm", job.pid())).is_ok_and(|name| name == "sleep\n")
        });
        bed.wait_app("wrapped", MINUTE, |app| app.pids.len() == 1);
        bed.ask("detach", ["wrapped"]).succeeded();
        let census = Census::of(job.pid());
        assert!(census.children.is_empty(), "the stub or a zombie is left: {census:?}");
        job.signal(Signal::SIGTERM);
        assert_eq!(job.wait(MINUTE).code(), 128 + 15);
    }
}

#[test]
fn a_detach_with_long_lived_children_leaves_each_as_it_was() {
    let bed = Testbed::builder().beside_another().mixed();
    let mut job = bed.natively("server", family(&["48", "serve", "3"]));
    // It fills its memory, and waits until that is evicted before it forks.
    bed.ask("attach", [&job.pid().to_string(), "--name", "server", "--local", "40%", "--no-wait"]).succeeded();
    job.wait_says("serving", 2 * MINUTE);
    bed.wait_app("server", MINUTE, |app| app.pids.len() == 4 && app.evicted > 30 << 20);
    let evicted = bed.app("server").expect("it runs");
    bed.ask("detach", ["server"]).succeeded();
    assert!(bed.app("server").is_none());
    let stubless = Census::of(job.pid());
    println!("{evicted:?}");
    assert_eq!(stubless.children.len(), 3, "the stub or a zombie is left: {stubless:?}");
    for pid in stubless.children.iter().copied().chain([job.pid()]) {
        let census = Census::of(pid);
        let ours = |name: &String| name.contains("memfd:") || name.contains("userfaultfd");
        assert!(!census.descriptors.values().any(ours), "{pid}: {census:?}");
        assert!(!census.named_mappings.keys().any(ours), "{pid}: {census:?}");
        assert_eq!((census.threads, census.tracer), (1, 0), "{pid}: {census:?}");
        let registered = std::fs::read_to_string(format!("/proc/{pid}/smaps")).expect("it runs");
        let flags = registered.lines().filter(|line| line.starts_with("VmFlags:"));
        let watched = flags.filter(|line| line.split_whitespace().any(|flag| flag == "um" || flag == "uw")).count();
        assert_eq!(watched, 0, "mappings of {pid} are still registered");
    }
    assert_eq!(bed.status().pool.used, 0, "the pool still has pages of a program that was let go");
    for child in &stubless.children {
        kill(Pid::from_raw(*child), None).expect("the children live on");
    }
    job.signal(Signal::SIGUSR1);
    let outcome = job.wait(2 * MINUTE).succeeded();
    assert_eq!(outcome.stdout, "serving\nall right\n", "{outcome}");
}
