//! The last tier: pages that no donor has room for lie in a file on a disk, and come back byte for
//! byte.
//!
//! `ANNEX_STRESS_SECONDS` sets the length of each run.

use annex_shared::api::DonorInfo;
use annex_tests::testbed::{Donor, Job, Testbed, bins, directory, stress_seconds, wait_for};
use nix::sys::signal::Signal;
use std::process::Command;
use std::time::{Duration, Instant};

const MINUTE: Duration = Duration::from_secs(60);

fn stress(seconds: u64, seed: u64) -> Command {
    let mut command = Command::new(bins::find("annex-stress"));
    command.args(["--size", &(256u64 << 20).to_string(), "--threads", "4", "--seed", &seed.to_string()]);
    command.args(["--seconds", &seconds.to_string(), "--stall", "60"]).arg("--dir").arg(directory());
    command
}

/// A workload four times as large as what may be resident, of which most finds no room on the
/// donors. It goes on until it is told to end.
fn spilling(bed: &Testbed, seed: u64) -> Job {
    let mut job = bed.run("stress", "64M", stress(0, seed));
    job.wait_says("ready", MINUTE * 3);
    let started = Instant::now();
    while bed.status().pool.spilled <= 16 << 20 {
        let said = |job: &Job| format!("{:#?}{}{}", bed.status(), bed.annexd_logs(), job.process.log());
        assert!(job.process.is_running(), "it ended: {}", said(&job));
        assert!(started.elapsed() < MINUTE, "no pages lie in the spill file: {}", said(&job));
        std::thread::sleep(Duration::from_millis(50));
    }
    println!("16 MiB in the spill file after {:?}", started.elapsed());
    job
}

/// The spill file, as annexd lists it.
fn file(bed: &Testbed) -> DonorInfo {
    bed.status().donors.into_iter().find(|d| d.name == "spill").expect("it is listed")
}

fn ends_well(bed: &Testbed, job: Job) {
    let outcome = job.wait(Duration::from_secs(stress_seconds() * 4 + 120)).succeeded();
    let summary: serde_json::Value = serde_json::from_str(&outcome.stdout).expect("one line of JSON");
    println!("{summary}\n{:?}", outcome.seen);
    assert_eq!(summary["errors"], 0);
    bed.wait_gone("stress");
}

#[test]
fn no_wrong_byte_when_donors_have_room_for_a_third() {
    let tiny = || Donor::shm().capacity("64M");
    let bed = Testbed::builder().donor(tiny()).donor(tiny()).spill("2G").start();
    let job = spilling(&bed, 61);
    let status = bed.status();
    assert!(status.warnings.iter().any(|w| w.contains("the last tier is in use")), "{:?}", status.warnings);
    let listing = bed.ask("status", [] as [&str; 0]).succeeded().stdout;
    assert!(listing.contains("in the spill file") && listing.contains("file"), "{listing}");
    std::thread::sleep(Duration::from_secs(stress_seconds()));
    job.signal(Signal::SIGTERM);
    ends_well(&bed, job);
    let file = file(&bed);
    assert!(file.reads > 1000 && file.writes > 100 && file.checksum_errors == 0, "{file:?}");
}

#[test]
fn no_wrong_byte_when_the_only_donor_dies_and_the_backup_has_its_pages() {
    let mut bed = Testbed::builder().donor(Donor::shm()).replicas(1).spill("2G").start();
    // One process: it is stopped as a whole below.
    let mut command = stress(0, 62);
    command.args(["--features", "rw,scan"]);
    let mut job = bed.run("stress", "64M", command);
    job.wait_says("ready", MINUTE * 3);
    bed.wait_app("stress", MINUTE, |app| app.pages_evicted > 5000 && app.faults.major > 1000);
    // Stopped, so that the backup catches up: what it lacks when the donor dies would be gone, as
    // it must.
    job.signal(Signal::SIGSTOP);
    // A batch that is under way is written first.
    std::thread::sleep(Duration::from_millis(500));
    wait_for("the backup to have all", MINUTE * 2, || {
        let pool = bed.status().pool;
        pool.used > 0 && pool.backup_lag == 0
    });
    bed.agents[0].kill();
    // Not before its death is known: what is written to its slabs until then is nowhere else.
    wait_for("pages to be in the file alone", MINUTE, || bed.status().pool.spilled > 0);
    job.signal(Signal::SIGCONT);
    let before = file(&bed).reads;
    wait_for("faults to be served from it", MINUTE, || file(&bed).reads > before + 500);
    job.signal(Signal::SIGTERM);
    ends_well(&bed, job);
}

#[test]
fn annexd_killed_with_pages_in_the_file_loses_none() {
    let tiny = || Donor::shm().capacity("64M").lease_ttl("10s");
    let mut bed = Testbed::builder().donor(tiny()).donor(tiny()).spill("2G").start();
    let mut job = spilling(&bed, 63);
    for round in 0..10u64 {
        bed.annexd.kill();
        bed.start_again(None);
        wait_for("faults to be served", MINUTE, || {
            assert!(job.process.is_running(), "round {round}: {}{}", bed.annexd_logs(), job.process.log());
            bed.app("stress").is_some_and(|app| app.faults.major > 200)
        });
        std::thread::sleep(Duration::from_millis(round * 37 % 150));
    }
    assert!(bed.status().pool.spilled > 0);
    job.signal(Signal::SIGTERM);
    ends_well(&bed, job);
    wait_for("every slot to be free", MINUTE, || bed.status().pool.used == 0);
}

#[test]
fn a_spill_file_that_can_not_be_is_said_and_annexd_does_not_start() {
    let mut bed = Testbed::builder().donor(Donor::shm()).donor(Donor::shm()).spill("2G").start();
    bed.annexd.kill();
    std::fs::write(bed.path().join("spill"), "somebody's letters").expect("the testbed's directory is ours");
    let (code, said) = bed.start_in_vain();
    assert_eq!(code, Some(78), "{said}");
    assert!(said.contains("is no spill file of annex, and is not overwritten"), "{said}");
}
