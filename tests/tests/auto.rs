//! `--local auto`: the limit of a real program follows what it uses, and what it has stays right.

use annex_shared::api::{AppInfo, Limit};
use annex_tests::testbed::{Donor, Job, Testbed, bins};
use nix::sys::signal::Signal;
use std::process::Command;
use std::time::Duration;

const MINUTE: Duration = Duration::from_secs(60);
const MIB: u64 = 1 << 20;

/// A program that has 128 MiB and uses 32 MiB of them.
fn working_set() -> Command {
    let mut python = Command::new("python3");
    python.arg(bins::script("working_set.py")).args(["128", "32"]);
    python
}

fn limit(app: &AppInfo) -> u64 {
    let Limit::Bytes(bytes) = app.local else { panic!("a limit that is found is one in bytes: {app:?}") };
    bytes
}

fn target(app: &AppInfo) -> Option<f64> {
    app.auto.as_ref().map(|auto| auto.target)
}

fn ends_well(bed: &Testbed, job: Job) {
    job.signal(Signal::SIGTERM);
    let outcome = job.wait(2 * MINUTE).succeeded();
    assert!(outcome.stdout.ends_with("all right\n"), "{outcome}");
    bed.wait_gone("steered");
}

#[test]
fn the_limit_follows_what_a_program_uses_and_outlives_annexd() {
    let mut bed = Testbed::builder().mixed();
    let mut job = bed.run("steered", "auto", working_set());
    job.wait_says("ready", MINUTE);
    let app = bed.wait_app("steered", 3 * MINUTE, |app| app.evicted > 0 && app.resident < 64 * MIB);
    assert_eq!(target(&app), Some(0.01));

    bed.annexd.kill();
    bed.start_again(None);
    let app = bed.app("steered").expect("the next annexd has it");
    assert_eq!(target(&app), Some(0.01), "{app:?}");
    assert!(limit(&app) < 100 * MIB, "it goes on where the one before was: {app:?}");

    job.signal(Signal::SIGUSR1);
    bed.wait_app("steered", 2 * MINUTE, |app| limit(app) > 110 * MIB && app.resident > 110 * MIB);
    job.wait_says("went over all", MINUTE);
    ends_well(&bed, job);
}

#[test]
fn a_fixed_limit_ends_it_and_auto_begins_it_again() {
    let bed = Testbed::builder().shm();
    let mut job = bed.run("steered", "auto:5%", working_set());
    job.wait_says("ready", MINUTE);
    let listed = bed.ask("apps", [""; 0]).succeeded().stdout;
    assert!(listed.contains("auto (") && listed.contains("target 5 %"), "{listed}");

    let said = bed.ask("limit", ["steered", "64M"]).succeeded().stdout;
    assert_eq!(said, "steered may keep 64 MiB resident\n");
    let app = bed.wait_app("steered", MINUTE, |app| app.resident <= 64 * MIB);
    assert_eq!((target(&app), limit(&app)), (None, 64 * MIB));

    for bad in ["auto:0%", "auto:200%", "auto:x"] {
        let refused = bed.ask("limit", ["steered", bad]);
        let why = format!("bad limit '{bad}': behind auto: stands the share of time that may be waited");
        assert!(refused.code() == 2 && refused.stderr.contains(&why), "{refused}");
    }
    assert_eq!(bed.app("steered").and_then(|app| app.auto), None);

    let said = bed.ask("limit", ["steered", "auto"]).succeeded().stdout;
    assert_eq!(said, "annexd finds the limit of steered: it may wait 1 % of the time\n");
    let app = bed.wait_app("steered", 3 * MINUTE, |app| limit(app) < 60 * MIB);
    assert_eq!(target(&app), Some(0.01));
    ends_well(&bed, job);
}

/// What the pool can't take stays, without a limit that it is always above.
#[test]
fn a_full_pool_ends_the_lowering_and_nothing_else() {
    let small = || Donor::shm().capacity("64M");
    let bed = Testbed::builder().donor(small()).donor(small()).start();
    let mut job = bed.run("steered", "auto", working_set());
    job.wait_says("ready", MINUTE);
    let is_full = |app: &AppInfo| app.auto.as_ref().is_some_and(|auto| auto.doing == "holding: the pool is full");
    let app = bed.wait_app("steered", 3 * MINUTE, |app| is_full(app) && limit(app) > app.resident);
    assert!(app.evicted > 32 * MIB, "{app:?}");
    ends_well(&bed, job);
}

#[test]
fn auto_can_be_the_default_and_is_of_use_to_a_program_that_runs() {
    let bed = Testbed::builder().daemon_arg("--local").daemon_arg("auto:2%").shm();
    let mut job = bed.natively("steered", working_set());
    job.wait_says("ready", MINUTE);
    bed.ask("attach", [&job.pid().to_string(), "--name", "steered"]).succeeded();
    let app = bed.wait_app("steered", 3 * MINUTE, |app| app.evicted > 0 && app.resident < 100 * MIB);
    assert_eq!(target(&app), Some(0.02));
    bed.ask("detach", ["steered"]).succeeded();
    ends_well(&bed, job);
}
