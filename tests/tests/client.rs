//! Regions of programs that take their faults themselves (`annex-client`).

use annex_tests::testbed::{Donor, Job, Testbed, bins, wait_for};
use nix::sys::signal::Signal;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

const MINUTE: Duration = Duration::from_secs(60);
const NAME: &str = "region";

fn program(socket: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(bins::find("annex-region"));
    command.arg("--socket").arg(socket).args(["--size", "64M", "--local", "16M", "--name", NAME]).args(args);
    command
}

fn start(bed: &Testbed, args: &[&str]) -> Job {
    bed.natively(NAME, program(&bed.socket, args))
}

/// The workload, once it is being paged.
fn paged(bed: &Testbed, args: &[&str]) -> Job {
    let mut job = start(bed, args);
    job.wait_says("ready", MINUTE);
    bed.wait_app(NAME, MINUTE, |app| app.pages_evicted > 20_000 && app.faults.major > 20_000);
    job
}

/// It ends by itself, all its bytes are right, and nothing of it is left in the pool.
fn ends_well(bed: &Testbed, job: Job) {
    job.signal(Signal::SIGTERM);
    let outcome = job.wait(MINUTE).succeeded();
    let summary: serde_json::Value = serde_json::from_str(&outcome.stdout).expect("one line of JSON");
    assert_eq!(summary["errors"], 0);
    is_clean(bed);
}

fn is_clean(bed: &Testbed) {
    bed.wait_gone(NAME);
    wait_for("every slot to be free", MINUTE, || bed.status().pool.used == 0);
}

fn donors(donors: [Donor; 2]) -> Testbed {
    donors.into_iter().fold(Testbed::builder(), |bed, donor| bed.donor(donor.lease_ttl("10s"))).start()
}

#[test]
fn four_threads_on_a_region_four_times_its_limit_find_every_byte() {
    // One testbed after the other: they take turns.
    for first in [Donor::shm(), Donor::tcp()] {
        let bed = donors([first, Donor::shm()]);
        let job = paged(&bed, &[]);
        bed.wait_app(NAME, MINUTE, |app| app.faults.major > 100_000);
        // It grows over its limit while a donor is slow to take pages, as it may be at any one
        // moment, but not most of the time.
        let mut resident: Vec<u64> = Vec::new();
        for _ in 0..21 {
            std::thread::sleep(Duration::from_millis(50));
            resident.extend(bed.app(NAME).map(|app| app.resident));
        }
        resident.sort_unstable();
        assert!(resident[10] <= 18 << 20, "bytes that were resident: {resident:?}");
        ends_well(&bed, job);
    }
}

#[test]
fn more_threads_than_slots_take_turns() {
    let bed = Testbed::builder().shm();
    let job = paged(&bed, &["--threads", "100"]);
    ends_well(&bed, job);
}

#[test]
fn annexd_killed_again_and_again_loses_no_page_of_a_region() {
    let mut bed = donors([Donor::tcp(), Donor::shm()]);
    let mut job = paged(&bed, &["--seed", "2"]);
    let goes_on = |bed: &Testbed, job: &mut Job, what: &str| {
        let started = Instant::now();
        while bed.app(NAME).is_none_or(|app| app.faults.major < 500) {
            assert!(job.process.is_running(), "it ended {what}: {}\n{}", job.process.log(), bed.annexd_logs());
            assert!(started.elapsed() < MINUTE, "no fault is served {what}: {}", bed.annexd_logs());
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    for round in 0..10u64 {
        bed.annexd.kill();
        std::thread::sleep(Duration::from_millis(round * 37 % 150));
        bed.start_again(None);
        goes_on(&bed, &mut job, &format!("in round {round}"));
    }
    for point in ["moves-rung:2", "batch-moved:5", "record-flipped:100", "batch-written:4", "page-copied:300"] {
        bed.annexd.kill();
        bed.start_again(Some(point));
        bed.annexd.wait(MINUTE).expect("annexd dies where it is told to");
        bed.start_again(None);
        goes_on(&bed, &mut job, &format!("after a death at {point}"));
    }
    ends_well(&bed, job);
}

#[test]
fn a_program_goes_on_with_all_of_its_region_when_it_is_detached_and_limits_can_be_changed() {
    let bed = Testbed::builder().shm();
    let mut job = paged(&bed, &[]);
    bed.ask("limit", [NAME, "32M"]).succeeded();
    bed.wait_app(NAME, MINUTE, |app| app.resident > 28 << 20);
    bed.ask("detach", [NAME]).succeeded();
    is_clean(&bed);
    std::thread::sleep(Duration::from_millis(200));
    assert!(job.process.is_running());
    ends_well(&bed, job);
}

#[test]
fn a_region_is_closed_and_opened_again_and_there_is_one_at_a_time() {
    let bed = Testbed::builder().shm();
    let outcome = start(&bed, &["--twice"]).wait(MINUTE).succeeded();
    assert_eq!(outcome.stdout, "this process has a region already: there can be one; close it first\n");
    is_clean(&bed);
}

#[test]
fn a_child_has_no_region_and_a_system_call_finds_what_was_touched() {
    let bed = Testbed::builder().shm();
    let outcome = start(&bed, &["--limits"]).wait(MINUTE).succeeded();
    assert_eq!(outcome.stdout, "child: SIGSEGV\nmissed and then written: true\n");
}

/// All that is written is spoilt on its way, on all donors.
#[test]
fn a_page_that_no_donor_has_is_sigbus_and_not_zeros() {
    let bed = donors([Donor::shm().faults("corrupt=1/1"), Donor::shm().faults("corrupt=1/1")]);
    let outcome = start(&bed, &[]).wait(MINUTE);
    assert_eq!(outcome.code(), 128 + libc::SIGBUS, "{outcome}");
    assert!(outcome.daemon_log.contains("is lost: no replica has its bytes"), "{outcome}");
}

#[test]
fn who_can_not_have_a_region_is_told_why() {
    let bed = Testbed::builder().shm();
    let refused = |outcome: annex_tests::testbed::Outcome, why: &str| {
        assert!(outcome.code() == 1 && outcome.stderr.contains(why), "{outcome}");
    };
    let nowhere = bed.natively("r", program(&bed.path().join("nobody.sock"), &[])).wait(MINUTE);
    refused(nowhere, "annexd does not run, or not at ");
    refused(start(&bed, &["--size", "8K"]).wait(MINUTE), "it has 64 KiB at least and 2 TiB at most");
    let whole = bed.run("whole", "1G", program(&bed.socket, &[])).wait(MINUTE);
    refused(whole, "is managed already, as part of app 'whole'; use 'annex limit whole'");
    let named = paged(&bed, &[]);
    refused(start(&bed, &[]).wait(MINUTE), "there is an app called 'region' already");
    let attached = bed.ask("attach", [named.process.pid().to_string()]);
    assert!(attached.stderr.contains("has a region already, which is app 'region'"), "{attached}");
    ends_well(&bed, named);
}

#[test]
fn a_c_program_uses_the_header_and_the_library() {
    let bed = Testbed::builder().shm();
    let library = bins::find("libannex_client.so");
    let (place, program) = (library.parent().expect("a file has a folder"), bed.path().join("region"));
    let header = Path::new(env!("CARGO_MANIFEST_DIR")).join("../client/c/include");
    let compiled = Command::new("cc")
        .args(["-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic", "-O2", "-o"])
        .arg(&program)
        .arg(bins::script("region.c"))
        .arg("-I")
        .arg(header)
        .arg("-L")
        .arg(place)
        .arg(format!("-Wl,-rpath,{}", place.display()))
        .arg("-lannex_client")
        .output()
        .expect("there is a C compiler");
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    let run = |length: &str, local: &str| {
        let mut command = Command::new(&program);
        command.arg(&bed.socket).args([length, local]);
        bed.natively("c-program", command).wait(MINUTE)
    };
    let outcome = run("33554432", "8M").succeeded();
    assert_eq!(outcome.stdout, "4194304 words, 0 wrong\n");
    assert!(outcome.seen.pages_evicted > 5_000, "{outcome}");
    let outcome = run("33554432", "little");
    assert!(outcome.code() == 1 && outcome.stderr.contains("bad limit 'little'"), "{outcome}");
}
