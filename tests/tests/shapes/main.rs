//! Programs of every shape, met in every way: whatever becomes of the process that was attached, of
//! the stub and of annexd, no byte is lost and nothing is left.
//!
//! The programs are in `tests/programs/shapes`; each is right natively. `ANNEX_SHAPES_ONLY=text`
//! plays only cases whose name has the text, `ANNEX_SHAPES_TCP=1` all of them over TCP,
//! `ANNEX_SHAPES_KILLS=1000` kills that often. What the kernel makes impossible is in the tables
//! too, as `docs/limits.md` tells it.

mod cases;
mod children;
mod orphans;
mod scene;

use annex_tests::shapes::hunt::{Bag, Hunt, Kill};
use annex_tests::testbed::census::stubs_of;
use annex_tests::testbed::{Donor, Job, Testbed, bins, directory, stress_seconds, wait_for};
use cases::{AFTER_CHANGES, AFTER_DEATHS, BORROWING, FAMILIES, LIVES, MAPPINGS, PAGED, right};
use nix::sys::signal::Signal;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use scene::{Case, Comes, LIMIT, bed, bed_of, bed_that_lingers, kill, play, programs, stops_well};
use std::process::Command;
use std::time::{Duration, Instant, SystemTime};

#[test]
fn whoever_ends_first_the_memory_lives_on() {
    play(bed(), 3, LIVES);
}

#[test]
fn a_borrowed_thread_notices_nothing() {
    play(bed(), 4, BORROWING);
}

#[test]
fn memory_that_is_locked_or_that_the_kernel_touches_is_right() {
    play(bed(), 3, MAPPINGS);
}

/// A mapping that is split as it grows can't be resized as one any more. annexd lingers where that
/// had to happen.
#[test]
fn mappings_that_grow_while_they_are_registered_stay_whole() {
    let growing = right("grows-when-registered", &["grows_when_registered"], PAGED);
    play(bed_that_lingers("mapping-looked-up:10000"), 1, &[growing]);
}

/// Staging goes with the rest, and with it pages that have moved there and are not read yet: nobody
/// misses them. annexd lingers between.
#[test]
fn who_unmaps_everything_during_an_eviction_is_not_stopped_for_it() {
    let case = FAMILIES.iter().find(|case| case.name == "a-child-unmaps-everything").expect("it is in the table");
    let several = ["first", "second", "third", "fourth", "fifth", "sixth"].map(|name| Case { name, ..*case });
    play(bed_that_lingers("batch-moved:20000"), 3, &several);
}

#[test]
fn families_stay_together_and_see_no_stranger() {
    play(bed(), 3, FAMILIES);
}

#[test]
fn every_shape_outlives_deaths_of_annexd() {
    play(bed(), 1, AFTER_DEATHS);
}

#[test]
fn every_shape_outlives_changes_of_annexd() {
    play(bed(), 1, AFTER_CHANGES);
}

#[test]
fn the_worst_of_them_over_tcp() {
    let worst =
        ["main-thread-exits-1", "sharing-parent-ends-first", "stub-killed-while-moving", "locked-while-paged-both"];
    let all = [LIVES, MAPPINGS, FAMILIES].concat();
    let cases: Vec<Case> = all.into_iter().filter(|case| worst.contains(&case.name)).collect();
    assert_eq!(cases.len(), worst.len());
    play(bed_of(Donor::tcp), 2, &cases);
}

/// Every limit that a table asserts is told to users, and the other way round.
#[test]
fn the_documented_limits_are_those_that_are_tested() {
    let told = include_str!("../../../docs/limits.md");
    let in_a_line = told.split_whitespace().collect::<Vec<_>>().join(" ");
    let cases = [LIVES, BORROWING, MAPPINGS, FAMILIES, AFTER_DEATHS, AFTER_CHANGES].concat();
    let tested: Vec<&str> = cases
        .iter()
        .filter(|case| matches!(case.comes, Comes::Limit { why, .. } if in_a_line.contains(why)))
        .map(|c| c.name)
        .collect();
    let named: Vec<&str> = told.lines().filter_map(|line| line.strip_prefix("Test: `")?.strip_suffix('`')).collect();
    assert_eq!(tested, named);
}

/// A number that differs from run to run, printed so that a run can be repeated:
/// `$ANNEX_SHAPES_SEED`, or from the clock.
fn seed() -> u64 {
    let clock = || SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(1, |since| since.as_millis() as u64);
    let seed = std::env::var("ANNEX_SHAPES_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(clock);
    println!("ANNEX_SHAPES_SEED={seed}");
    seed
}

/// The workload that verifies every byte, being paged.
fn loaded(bed: &Testbed, seed: u64) -> Job {
    let mut command = Command::new(bins::find("annex-stress"));
    command.args(["--size", "48M", "--threads", "3", "--seconds", "0", "--stall", "60", "--seed", &seed.to_string()]);
    command.arg("--dir").arg(directory());
    let mut job = bed.run("loaded", "16M", command);
    job.wait_says("ready", LIMIT);
    bed.wait_app("loaded", LIMIT, |app| app.pages_evicted > 3000);
    job
}

fn still_right(bed: &Testbed, job: Job) {
    job.signal(Signal::SIGTERM);
    let outcome = job.wait(LIMIT).succeeded();
    let summary: serde_json::Value = serde_json::from_str(&outcome.stdout).expect("one line of JSON");
    assert_eq!(summary["errors"], 0, "{outcome}");
    bed.wait_gone("loaded");
    wait_for("every slot to be free", LIMIT, || bed.status().pool.used == 0);
}

/// How often something is killed, unless `ANNEX_SHAPES_KILLS` says so.
fn kills(default: u32) -> u32 {
    std::env::var("ANNEX_SHAPES_KILLS").map_or(default, |kills| kills.parse().expect("a number of kills"))
}

/// Waits until the workload's own process has a stub, and kills that.
fn kill_stub(bed: &Testbed, job: &mut Job, round: u32) {
    let started = Instant::now();
    loop {
        let stubs = stubs_of(job.pid());
        if let Some(stub) = stubs.first() {
            return kill(*stub);
        }
        let state = format!("in round {round}: {:?}\n{}{}", bed.app("loaded"), bed.annexd_logs(), job.process.log());
        assert!(job.process.is_running(), "the workload ended {state}");
        assert!(started.elapsed() < LIMIT, "there is no new stub {state}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn a_stub_killed_again_and_again_under_load_loses_no_byte() {
    let (bed, seed) = (bed(), seed());
    let mut dice = StdRng::seed_from_u64(seed);
    let mut job = loaded(&bed, seed);
    for round in 0..kills(30) {
        kill_stub(&bed, &mut job, round);
        std::thread::sleep(Duration::from_millis(dice.random_range(0..200)));
    }
    let before = bed.app("loaded").map_or(0, |app| app.pages_evicted);
    bed.wait_app("loaded", LIMIT, |app| app.pages_evicted > before + 1000);
    still_right(&bed, job);
}

#[test]
fn stub_and_annexd_killed_in_turn_lose_no_byte() {
    let (mut bed, seed) = (bed(), seed());
    let mut dice = StdRng::seed_from_u64(seed);
    let mut job = loaded(&bed, seed);
    for round in 0..kills(8) {
        kill_stub(&bed, &mut job, round);
        std::thread::sleep(Duration::from_millis(dice.random_range(0..100)));
        bed.annexd.kill();
        bed.start_again(None);
        std::thread::sleep(Duration::from_millis(dice.random_range(0..100)));
    }
    bed.wait_app("loaded", LIMIT, |app| app.pages_evicted > 1000 && app.faults.major > 200);
    still_right(&bed, job);
}

#[test]
fn annexd_stops_well_while_its_apps_are_being_killed() {
    let mut bed = bed();
    let programs = programs(&bed);
    for round in 0..4 {
        let start = |nth| {
            bed.run(&format!("killed-{nth}"), "4M", {
                let mut command = Command::new(programs.join("holds"));
                command.arg("12").env("SHAPES_GO", programs.join("nothing"));
                command
            })
        };
        let jobs: Vec<Job> = (0..8).map(start).collect();
        for job in &jobs {
            bed.wait_app(&job.name, LIMIT, |app| app.evicted > 4 << 20);
        }
        bed.annexd.signal(Signal::SIGTERM);
        for job in &jobs {
            kill(job.pid());
            std::thread::sleep(Duration::from_millis(3));
        }
        let status = bed.annexd.wait(LIMIT);
        assert!(status.is_some_and(|s| s.success()), "round {round}: {status:?}\n{}", bed.annexd.log());
        drop(jobs);
        bed.start_again(None);
        wait_for("every slot to be free", LIMIT, || bed.status().pool.used == 0);
    }
}

/// All of a tree, or nothing of it: children that were attached before their parent was refused
/// stayed so, and were killed when annexd had stopped.
#[test]
fn an_attach_that_fails_leaves_nothing_attached() {
    let mut bed = bed();
    let programs = programs(&bed);
    let go = programs.join("go");
    let mut command = Command::new(programs.join("vfork_parent"));
    command.arg(programs.join("holds")).env("SHAPES_GO", &go);
    let mut job = bed.natively("tree", command);
    job.wait_says("in vfork", LIMIT);
    wait_for("both children", LIMIT, || job.process.stdout().matches("ready").count() == 2);
    let outcome = bed.ask("attach", [&job.pid().to_string(), "--name", "tree", "--local", "10M", "--no-wait"]);
    let family = [job.pid()].into_iter().chain(children(job.pid())).collect::<Vec<i32>>();
    if outcome.code() != 0 {
        assert!(bed.app("tree").is_none(), "refused, and there: {outcome}");
        let stubs: Vec<i32> = family.iter().flat_map(|pid| stubs_of(*pid)).collect();
        assert!(stubs.is_empty(), "refused, and stubs of {family:?} are left: {stubs:?}");
    }
    stops_well(&mut bed);
    let registered = family.iter().filter(|pid| is_registered(**pid)).count();
    assert_eq!(registered, 0, "annexd has stopped, and processes are still paged by nobody");
    std::fs::write(&go, "+").expect("ours");
    let outcome = job.wait(LIMIT).succeeded();
    assert!(outcome.stdout.contains("all 0 failed: right"), "{outcome}");
    bed.start_again(None);
}

fn children(pid: i32) -> Vec<i32> {
    let list = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

fn is_registered(pid: i32) -> bool {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/smaps")).unwrap_or_default();
    let flags = maps.lines().filter(|line| line.starts_with("VmFlags:"));
    flags.flat_map(str::split_whitespace).any(|flag| flag == "um" || flag == "uw")
}

/// In a PID namespace of its own: an annexd that takes PID 1 takes the whole of it.
#[test]
fn whom_annex_must_not_page_is_refused() {
    let bed = bed();
    let mut inside = Command::new("unshare");
    inside.args(["-pf", "--mount-proc", "--kill-child", "sh", "-c", "\"$0\" \"$@\"; exit $?"]);
    inside.arg(std::env::current_exe().expect("/proc is mounted"));
    inside.args(["--ignored", "--exact", "refused_inside", "--nocapture"]);
    // The namespace has a testbed of its own: this one only keeps the place.
    let outcome = bed.natively("namespace", inside).wait(3 * LIMIT).succeeded();
    assert!(outcome.stdout.contains("test refused_inside ... ok") || outcome.stdout.contains("1 passed"), "{outcome}");
}

#[test]
#[ignore = "whom_annex_must_not_page_is_refused runs it, where no harm can come of it"]
fn refused_inside() {
    assert_eq!(std::os::unix::process::parent_id(), 1, "only in a PID namespace of its own");
    let donor = || Donor::shm().capacity("256M");
    let bed = Testbed::builder().beside_others().donor(donor()).donor(donor()).start();
    let programs = programs(&bed);
    let mut command = Command::new(programs.join("holds"));
    command.arg("40").env("SHAPES_GO", programs.join("nothing"));
    let app = bed.run("app", "10M", command);
    bed.wait_app("app", LIMIT, |app| app.evicted > 24 << 20);
    let stub = stubs_of(app.pid())[0];
    let ourselves = std::process::id() as i32;
    let whom = [
        ("annexd", bed.annexd.pid()),
        ("its keeper", bed.keeper()),
        ("an agent", bed.agents[0].pid()),
        ("a stub", stub),
        ("the process that started annexd", ourselves),
        ("PID 1", 1),
    ];
    let mut taken = Vec::new();
    for (who, pid) in whom {
        let mut command = Command::new("timeout");
        let attach = bed.annex("attach", [&pid.to_string(), "--name", "forbidden", "--no-wait"]);
        command.args(["-s", "KILL", "20"]).arg(attach.get_program()).args(attach.get_args());
        let answer = command.output().expect("timeout(1) runs");
        let said = String::from_utf8_lossy(&answer.stderr).into_owned();
        println!("{who}, PID {pid}: {} {said}", answer.status);
        let code = answer.status.code().unwrap_or(128 + 9);
        let is_clear = said.contains(&pid.to_string()) && said.len() > 30;
        if code == 0 || code > 128 || !is_clear || bed.app("forbidden").is_some() {
            taken.push(who);
            let _ = Command::new("timeout")
                .args(["-s", "KILL", "20"])
                .arg(bed.annex("detach", ["forbidden"]).get_program())
                .args(bed.annex("detach", ["forbidden"]).get_args())
                .output();
        }
    }
    assert!(taken.is_empty(), "not refused, or not clearly: {taken:?}\n{}", bed.annexd_logs());
    let faults = bed.app("app").map_or(0, |app| app.faults.major);
    bed.wait_app("app", LIMIT, |app| app.faults.major > faults + 500);
}

/// Kept seeds first, then random ones, for one and a half times the length of a stress.
#[test]
fn random_shapes_find_no_wrong_byte() {
    let time = Duration::from_secs(stress_seconds() * 3 / 2);
    let seed = seed() % 1_000_000_007;
    let kept = include_str!("../../shapes-seeds.txt").lines().filter_map(|line| line.split(' ').next()?.parse().ok());
    let kept: Vec<u64> = kept.collect();
    let hunt = Hunt { size: 24 << 20, local: "8M".into(), seconds: 4, kill: Kill::Varied, only: Vec::new() };
    let (mut bed, mut bag, started) = (bed(), Bag::default(), Instant::now());
    for (nth, seed) in kept.iter().copied().chain(seed..).enumerate() {
        if nth >= kept.len() && started.elapsed() > time {
            break;
        }
        println!("seed {seed} after {:.1?}", started.elapsed());
        hunt.round(&mut bed, seed, &mut bag).unwrap_or_else(|finding| panic!("{finding}"));
    }
    println!("{bag:?}");
    assert!(bag.checks > 10_000 && bag.pages_evicted > 500, "it proves nothing: {bag:?}");
    wait_for("every slot to be free", LIMIT, || bed.status().pool.used == 0);
}
