//! `annex advise` on real programs whose cold memory is known.

use annex_tests::testbed::{Job, Outcome, Testbed, bins, nobody};
use nix::sys::signal::Signal;
use serde_json::Value;
use std::process::Command;
use std::time::Duration;

const MINUTE: Duration = Duration::from_secs(60);
const MIB: u64 = 1 << 20;

/// A program that has so many MiB and uses the first ones only.
fn part(size: u64, hot: u64, more: &[&str]) -> Command {
    let mut command = Command::new(bins::find("annex-access"));
    command.args(["part", "--size", &format!("{size}M"), "--hot", &format!("{hot}M")]).args(more);
    command
}

fn running(bed: &Testbed, name: &str, command: Command) -> Job {
    let mut job = bed.natively(name, command);
    job.wait_says("ready", MINUTE);
    job
}

fn ends_well(job: Job) {
    job.signal(Signal::SIGTERM);
    job.wait(MINUTE).succeeded();
}

/// What `annex advise --json` says of these processes.
fn advise(bed: &Testbed, time: &str, pids: &[i32]) -> Value {
    let pids = pids.iter().map(i32::to_string);
    let args = ["--json".to_owned(), "--for".into(), time.into()].into_iter().chain(pids);
    json(&bed.ask("advise", args).succeeded())
}

fn json(outcome: &Outcome) -> Value {
    serde_json::from_str(&outcome.stdout).unwrap_or_else(|e| panic!("{e}: {outcome}"))
}

/// The row of the program that this process brings.
fn row(report: &Value, pid: i32) -> &Value {
    let all = report["programs"].as_array().expect("a list");
    all.iter().find(|program| program["pid"] == pid).unwrap_or_else(|| panic!("no row for {pid}: {report:#}"))
}

fn bytes(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("a number of bytes: {value}"))
}

#[track_caller]
fn is_about(found: u64, expected: u64, what: &str) {
    let apart = found.abs_diff(expected);
    assert!(apart * 100 <= expected * 15, "{what}: {} MiB, not {} MiB", found / MIB, expected / MIB);
}

#[test]
fn cold_memory_of_ten_programs_is_found_within_15_percent() {
    let bed = Testbed::builder().alone().shm();
    let programs: [(u64, u64, &[&str]); 10] = [
        (96, 4, &[]),
        (96, 32, &[]),
        (96, 64, &[]),
        (160, 16, &[]),
        (160, 80, &["--rest", "50"]),
        (160, 128, &[]),
        (256, 32, &["--locked", "32M"]),
        (128, 64, &["--shared", "64M"]),
        (192, 64, &["--huge"]),
        (128, 0, &[]),
    ];
    let jobs: Vec<(Job, u64, u64)> = (programs.iter().enumerate())
        .map(|(i, &(size, hot, more))| (running(&bed, &format!("part-{i}"), part(size, hot, more)), size, hot))
        .collect();
    let pids: Vec<i32> = jobs.iter().map(|(job, ..)| job.pid()).collect();
    let report = advise(&bed, "8s", &pids);
    assert_eq!(report["interrupted"], false);
    for (job, size, hot) in &jobs {
        let found = row(&report, job.pid());
        let what = format!("{size} MiB, {hot} hot: {found:#}");
        is_about(bytes(&found["cold"]), (size - hot) * MIB, &format!("cold of {what}"));
        is_about(bytes(&found["takeable"]), size * MIB, &format!("takeable of {what}"));
        let looks = found["looks"].as_array().expect("a list");
        assert_eq!(looks.len(), 3, "{what}");
        // What stays and counts for the limit: locked memory, stacks, written pages of libraries.
        let limit = bytes(&found["limit"]);
        let locked = if size == &256 { 32 * MIB } else { 0 };
        assert!((hot * MIB + locked..(hot + 24) * MIB + locked).contains(&limit), "limit of {what}");
        let command = format!("annex attach {} --local {}M", job.pid(), limit / MIB);
        assert_eq!(found["command"], command, "{what}");
    }
    let stays = |job: &Job, why: &str| {
        let all = row(&report, job.pid())["untakeable"].as_array().expect("a list").clone();
        all.iter().find(|stays| stays["why"] == why).map_or(0, |stays| bytes(&stays["bytes"]))
    };
    is_about(stays(&jobs[6].0, "locked"), 32 * MIB, "locked");
    is_about(stays(&jobs[7].0, "shared"), 64 * MIB, "shared");
    jobs.into_iter().for_each(|(job, ..)| ends_well(job));
}

/// What it advises is what an attach then does.
#[test]
fn the_advised_limit_is_one_that_the_program_runs_well_with() {
    let bed = Testbed::shm();
    let job = running(&bed, "part", part(128, 32, &[]));
    let report = advise(&bed, "2s", &[job.pid()]);
    let command = row(&report, job.pid())["command"].as_str().expect("worth an attach").to_owned();
    let args: Vec<&str> = command.split(' ').skip(2).chain(["--name", "part"]).collect();
    bed.ask("attach", args).succeeded();
    let app = bed.wait_app("part", MINUTE, |app| app.evicted > 70 * MIB);
    assert!(app.resident < 60 * MIB, "{app:?}");

    // It is annexd's now, and its accessed bits too.
    let report = advise(&bed, "1s", &[job.pid()]);
    assert_eq!(report["programs"].as_array().map(Vec::len), Some(0), "{report:#}");
    let left = &report["left_out"][0];
    assert_eq!((&left["kind"], &left["pid"]), (&"attached".into(), &job.pid().into()), "{report:#}");
    assert!(left["why"].as_str().is_some_and(|why| why.contains("as part")), "{report:#}");
    ends_well(job);
}

#[test]
fn without_pids_what_is_large_is_found_and_without_annexd_too() {
    let bed = Testbed::shm();
    let large = running(&bed, "large", part(200, 10, &[]));
    let small = running(&bed, "small", part(20, 10, &[]));
    let mut annex = Command::new(bins::find("annex"));
    annex.args(["advise", "--socket", "/nonexistent", "--for", "2s", "--least", "150M"]);
    let report = json(&bed.natively("advise", with(annex, &["--json"])).wait(MINUTE).succeeded());
    is_about(bytes(&row(&report, large.pid())["cold"]), 190 * MIB, "cold");
    let all = report["programs"].as_array().expect("a list");
    assert!(all.iter().all(|program| program["pid"] != small.pid()), "{report:#}");
    assert!(bytes(&report["small"]["processes"]) > 0, "{report:#}");
    assert_eq!(report["fault_known_from"], "assumed");

    let text = bed.ask("advise", ["--for", "1s", &large.pid().to_string()]).succeeded().stdout;
    assert!(text.contains(&format!("    annex attach {} --local ", large.pid())), "{text}");
    let table: Vec<&str> = text.lines().take_while(|line| !line.starts_with("to move")).collect();
    assert!(table.len() > 3 && table.iter().all(|line| line.chars().count() <= 80), "{text}");
    ends_well(large);
    ends_well(small);
}

fn with(mut command: Command, args: &[&str]) -> Command {
    command.args(args);
    command
}

#[test]
fn an_interrupt_tells_what_there_is_and_a_program_that_ended_is_named() {
    let bed = Testbed::shm();
    let stays = running(&bed, "stays", part(100, 10, &[]));
    let ends = running(&bed, "ends", part(100, 10, &[]));
    let (stay, end) = (stays.pid(), ends.pid());
    let args = ["--json", "--for", "1h", &stay.to_string(), &end.to_string()].map(String::from);
    let advise = bed.natively("advise", bed.annex("advise", args));
    // It hears SIGINT from the moment it clears the accessed bits, or before.
    let referenced = || {
        let smaps = std::fs::read_to_string(format!("/proc/{end}/smaps")).unwrap_or_default();
        let sizes = smaps.lines().filter_map(|line| line.strip_prefix("Referenced:"));
        sizes.filter_map(|size| size.trim().trim_end_matches(" kB").parse::<u64>().ok()).sum::<u64>()
    };
    let until = std::time::Instant::now() + MINUTE;
    while referenced() > 50 << 10 {
        assert!(std::time::Instant::now() < until, "nothing was cleared");
        std::thread::sleep(Duration::from_millis(20));
    }
    ends_well(ends);
    advise.signal(Signal::SIGINT);
    let report = json(&advise.wait(MINUTE).succeeded());
    assert_eq!(report["interrupted"], true);
    is_about(bytes(&row(&report, stay)["cold"]), 90 * MIB, "cold");
    assert_eq!(row(&report, stay)["lost"], Value::Null, "one look tells no rate");
    let left = &report["left_out"][0];
    assert_eq!((&left["kind"], &left["pid"]), (&"ended".into(), &end.into()), "{report:#}");
    ends_well(stays);
}

/// A family that shares its memory after a fork has it once, and a vfork child has none of its own.
#[test]
fn a_forked_family_is_one_and_its_shared_pages_count_once() {
    let bed = Testbed::shm();
    let script = "
import mmap, os, sys, time
memory = mmap.mmap(-1, 120 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
memory.madvise(15)  # MADV_NOHUGEPAGE
for page in range(0, len(memory), 4096):
    memory[page] = 1
first = os.getpid()
for _ in range(2):
    if os.getpid() == first:
        os.fork()
if os.getpid() == first:
    print('ready', file=sys.stderr, flush=True)
time.sleep(1000)
";
    let mut python = Command::new("python3");
    python.args(["-c", script]);
    let job = running(&bed, "family", python);
    let report = advise(&bed, "1s", &[job.pid()]);
    let found = row(&report, job.pid());
    assert_eq!(found["processes"].as_array().map(Vec::len), Some(3), "{found:#}");
    let (takeable, cold) = (bytes(&found["takeable"]), bytes(&found["cold"]));
    is_about(takeable, 125 * MIB, "takeable");
    is_about(cold, 120 * MIB, "cold");
}

#[test]
fn a_user_is_told_of_their_own_programs_only() {
    let bed = Testbed::shm();
    let annex = nobody::copy("annex", bed.path(), 0o755);
    let program = nobody::copy("annex-access", bed.path(), 0o755);
    let others = running(&bed, "others", part(80, 10, &[]));
    let mut own = nobody::command();
    own.arg(program).args(["part", "--size", "80M", "--hot", "10M"]);
    let own = running(&bed, "own", own);
    let ask = |pids: &[i32]| {
        let mut command = nobody::command();
        command.arg(&annex).args(["advise", "--for", "1s", "--json", "--socket"]).arg(&bed.socket);
        command.args(pids.iter().map(i32::to_string)).current_dir("/");
        json(&bed.natively("advise", command).wait(MINUTE).succeeded())
    };
    let report = ask(&[own.pid(), others.pid()]);
    is_about(bytes(&row(&report, own.pid())["cold"]), 70 * MIB, "cold");
    let left = &report["left_out"][0];
    assert_eq!((&left["kind"], &left["pid"]), (&"not_allowed".into(), &others.pid().into()), "{report:#}");
    ends_well(own);
    ends_well(others);
}

#[test]
fn nothing_to_gain_is_said_and_is_no_error() {
    let bed = Testbed::shm();
    let busy = running(&bed, "busy", part(80, 80, &[]));
    let said = bed.ask("advise", ["--for", "1s", &busy.pid().to_string()]).succeeded().stdout;
    assert!(said.contains("nothing here is worth an attach") && !said.contains("annex attach"), "{said}");
    let missing = bed.ask("advise", ["--for", "1s", "4194303"]);
    assert!(missing.code() == 4 && missing.stderr.contains("there is no process 4194303"), "{missing}");
    let bad = bed.ask("advise", ["--for", "0s"]);
    assert!(bad.code() == 2 && bad.stderr.contains("give 1s to 24h"), "{bad}");
    ends_well(busy);
}
