//! The self-verifying workload, natively and on paged memory: not one wrong byte, on every fabric,
//! with faults too.
//!
//! `ANNEX_STRESS_SECONDS` sets the length of each run.

use annex_tests::testbed::census::stubs_of;
use annex_tests::testbed::{Donor, Testbed, bins, directory, stress_seconds};
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

const MIB: u64 = 1 << 20;

fn stress(size: u64, seed: u64, seconds: u64) -> Command {
    stress_with(4, size, seed, seconds)
}

fn stress_with(threads: u32, size: u64, seed: u64, seconds: u64) -> Command {
    let mut command = Command::new(bins::find("annex-stress"));
    command.args(["--size", &size.to_string(), "--seed", &seed.to_string(), "--threads", &threads.to_string()]);
    command.args(["--seconds", &seconds.to_string()]).arg("--dir").arg(directory());
    command
}

/// What the workload says at its end.
fn summary(stdout: &str) -> serde_json::Value {
    serde_json::from_str(stdout).expect("one line of JSON")
}

fn not_one_wrong_byte(bed: &Testbed, seed: u64) {
    not_one_wrong_byte_in(bed, 4, seed);
}

/// Runs everything with a quarter of the set resident and asserts that it was paged.
fn not_one_wrong_byte_in(bed: &Testbed, threads: u32, seed: u64) {
    let size = 256 * MIB;
    let limit = Duration::from_secs(stress_seconds() * 4 + 120);
    let command = stress_with(threads, size, seed, stress_seconds());
    let outcome = bed.run("stress", "64M", command).wait(limit).succeeded();
    println!("{}{:?}", outcome.stdout, outcome.seen);
    let summary = summary(&outcome.stdout);
    assert_eq!(summary["errors"], 0);
    assert_eq!(summary["direct"], "used", "O_DIRECT must be part of this");
    assert!(summary["checks"].as_u64() > Some(size / 4096 * 2), "{summary}");
    assert!(summary["children"].as_u64() > Some(0), "{summary}");
    outcome.was_paged(10_000, 5_000);
}

#[test]
fn no_wrong_byte_over_shm() {
    not_one_wrong_byte(&Testbed::builder().shm(), 11);
}

/// Moves are made in portions, where the one thread runs that faults.
#[test]
fn no_wrong_byte_in_a_program_with_one_thread() {
    not_one_wrong_byte_in(&Testbed::builder().shm(), 1, 18);
}

/// What is left resident lies apart, so a batch is many moves of few pages. They are made by a stub
/// that has the program's CPU, a few after each fault, and changes come in between.
#[test]
fn no_wrong_byte_where_the_stub_has_the_programs_cpu() {
    let bed = Testbed::builder().shm();
    let mut command = Command::new("taskset");
    let stress = stress_with(1, 128 * MIB, 19, stress_seconds());
    command.args(["-c", "0"]).arg(stress.get_program()).args(stress.get_args());
    command.args(["--features", "rw,io,direct,churn,remap,discard,free,protect"]);
    let mut job = bed.run("apart", "32M", command);
    job.wait_says("ready", Duration::from_secs(120));
    let app = bed.wait_app("apart", Duration::from_secs(60), |app| app.pages_evicted > 20_000);
    let stubs: Vec<i32> = app.pids.iter().flat_map(|pid| stubs_of(*pid)).collect();
    // For the whole run: the stub is let go whenever another thread faults, and how long for
    // depends on the machine.
    let (running, end) = channel();
    let watch = std::thread::spawn(move || watch_stubs(&stubs, "0", &end));
    let outcome = job.wait(Duration::from_secs(stress_seconds() * 4 + 120)).succeeded();
    drop(running);
    let (kept, looks) = watch.join().expect("watching does not panic");
    println!("kept {kept} of {looks}");
    assert!(kept > looks / 5, "the stub was kept on the program's CPU in {kept} of {looks} looks");
    let summary = summary(&outcome.stdout);
    assert!(summary["errors"] == 0 && summary["checks"].as_u64() > Some(100_000), "{summary}");
    outcome.was_paged(30_000, 20_000);
}

/// A signal takes away the fault that was to be read, and its handler changes the mappings: what is
/// read beside the stub's moves is that change, for which nothing may move.
#[test]
fn no_wrong_byte_where_signals_take_faults_away_while_pages_move() {
    let bed = Testbed::builder().linger_at("faults-counted:3000").shm();
    // annexd lingers before it reads, and the stub goes on: what has moved by then may have been
    // something else already, which ends the program. Before it can read something wrong.
    let is_stopped = (0..8).any(|nth| {
        let mut signals = Command::new(bins::find("annex-signals"));
        signals.args(["15", "2000"]);
        let outcome = bed.run(&format!("signals-{nth}"), "12M", signals).wait(Duration::from_secs(180));
        assert!(outcome.code() == 0 || outcome.code() == 128 + 9, "{outcome}");
        outcome.code() != 0
    });
    assert!(is_stopped, "no signal came in the right moment");
    assert!(bed.annexd.log().contains("a signal took away the fault"), "{}", bed.annexd.log());
}

/// How often one of the stubs was allowed these CPUs only, which nobody but annexd sees to, and how
/// often it was looked.
fn watch_stubs(stubs: &[i32], cpus: &str, end: &Receiver<()>) -> (usize, usize) {
    let (mut kept, mut looks) = (0, 0);
    while end.recv_timeout(Duration::from_millis(50)) == Err(RecvTimeoutError::Timeout) {
        let are_kept = |stub: &i32| allowed_cpus(*stub).is_some_and(|allowed| allowed == cpus);
        kept += usize::from(stubs.iter().any(are_kept));
        looks += 1;
    }
    (kept, looks)
}

/// The CPUs that a process may use, as the kernel lists them.
fn allowed_cpus(pid: i32) -> Option<String> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    Some(allowed.trim().to_owned())
}

/// Runs `annex-holes`, with holes that stay open for so many microseconds.
fn not_one_wrong_byte_beside_holes(bed: &Testbed, open: &str, rest: &str) {
    let mut holes = Command::new(bins::find("annex-holes"));
    holes.args([&stress_seconds().max(10).to_string(), open, rest]);
    let outcome = bed.run("holes", "12M", holes).wait(Duration::from_secs(stress_seconds() * 4 + 120)).succeeded();
    let summary = summary(&outcome.stdout);
    assert!(summary["wrong"] == 0 && summary["checks"].as_u64() > Some(100_000), "{summary}");
    assert!(summary["taken"].as_u64() < Some(16), "too few holes are left: {summary}");
    outcome.was_paged(10_000, 5_000);
}

/// A hole that a mapping had just as it was registered: what was mapped there next passed for
/// registered, was moved out, and read as zeros. annexd lingers where that had to happen.
#[test]
fn no_wrong_byte_in_mappings_with_holes_that_come_and_go() {
    let bed = Testbed::builder().linger_at("mapping-looked-up:10000").shm();
    not_one_wrong_byte_beside_holes(&bed, "15000", "0");
}

/// What is to be moved next is unmapped, and mapped anew, in the middle of a batch: at the address
/// is another mapping by then, of which annexd knows nothing.
#[test]
fn no_wrong_byte_where_holes_come_and_go_while_pages_move() {
    let bed = Testbed::builder().linger_at("moves-begin:20000").shm();
    not_one_wrong_byte_beside_holes(&bed, "0", "100");
}

#[test]
fn no_wrong_byte_over_tcp() {
    not_one_wrong_byte(&Testbed::builder().tcp(), 12);
}

#[test]
fn no_wrong_byte_on_mixed_donors() {
    not_one_wrong_byte(&Testbed::builder().mixed(), 13);
}

/// Two donors promise to outlive one fault, so no page meets two here: one donor spoils even pages
/// only, the other odd ones, and no donor is ever away.
#[test]
fn no_wrong_byte_when_the_fabric_fails_corrupts_and_delays() {
    let faulty = |pages| format!("fail=1/97,corrupt=1/499:{pages},delay=1/211:2ms,seed=7");
    let (even, odd) = (Donor::tcp().faults(&faulty("even")), Donor::shm().faults(&faulty("odd")));
    let bed = Testbed::builder().donor(even).donor(odd).start();
    not_one_wrong_byte(&bed, 14);
    let status = bed.status();
    let checksum_errors: u64 = status.donors.iter().map(|d| d.checksum_errors).sum();
    let errors: u64 = status.donors.iter().map(|d| d.errors).sum();
    assert!(checksum_errors > 0 && errors > 0, "the faults did not happen: {:?}", status.donors);
}

/// Operations that get no answer, nearly always some on both donors. The agents answer, so no donor
/// is out of reach. Nor are they so many that hardly a replica is brought up to date (some 500
/// WRITEs) before it is away again: at one in 1009 that went on for minutes in one run of twelve,
/// each READ that got no answer then had no second replica to go to, and a child of the workload
/// took longer than it may.
#[test]
fn no_wrong_byte_and_no_lost_donor_when_operations_get_no_answer() {
    let faulty = "fail=1/97,drop=1/4001,delay=1/211:2ms,seed=7,timeout=3100ms";
    let bed = Testbed::builder().donor(Donor::tcp().faults(faulty)).donor(Donor::shm().faults(faulty)).start();
    not_one_wrong_byte(&bed, 17);
    let log = bed.annexd_logs();
    let lost: Vec<&str> = log.lines().filter(|line| line.contains("was out of reach for too long")).collect();
    let donors = bed.status().donors;
    let unanswered = donors.iter().flat_map(|d| &d.traffic).filter_map(|t| t.errors.get("retry exceeded"));
    assert!(unanswered.sum::<u64>() > 0, "the faults did not happen: {donors:?}");
    assert!(lost.is_empty(), "{lost:#?}");
}

/// Six threads move, grow, shrink and unmap small mappings side by side: each lands where another
/// one's was a moment ago, and what they tell us of it comes in another order than it happened.
#[test]
fn no_wrong_byte_where_mappings_move_over_each_other() {
    let bed = Testbed::builder().mixed();
    let mut command = Command::new(bins::find("annex-stress"));
    command.args(["--features", "remap,churn", "--size", "8M", "--threads", "6", "--seed", "18"]);
    command.args(["--seconds", &stress_seconds().to_string()]).arg("--dir").arg(directory());
    let limit = Duration::from_secs(stress_seconds() * 4 + 120);
    let outcome = bed.run("moves", "4M", command).wait(limit).succeeded();
    let summary = summary(&outcome.stdout);
    assert_eq!(summary["errors"], 0);
    assert!(summary["steps"]["remap"].as_u64() > Some(2000), "{summary}");
    outcome.was_paged(2_000, 1_000);
}

/// The evictor reads pages that a fork left shared. Meanwhile mappings move, and where such a page
/// was may lie one that was evicted in the same batch: who waits for that one waits for the batch,
/// and the evictor must not be among them. It lingers before it reads.
#[test]
fn no_hang_where_mappings_move_over_pages_that_a_fork_left_shared() {
    let bed = Testbed::builder().linger_at("pages-shared:20000").shm();
    let mut over = Command::new("python3");
    over.arg(bins::script("over.py")).arg(stress_seconds().div_ceil(2).to_string());
    let limit = Duration::from_secs(stress_seconds() * 4 + 60);
    let outcome = bed.run("over", "12M", over).wait(limit).succeeded();
    let moved = outcome.stdout.lines().last().and_then(|line| line.parse::<u64>().ok());
    assert!(moved > Some(500), "{outcome}");
    outcome.was_paged(2_000, 1_000);
}

/// Where annexd lingers, and for how many microseconds: at places that it comes by for each page,
/// for less.
const LINGERS: [&str; 14] = [
    "batch-concluded:10000",
    "batch-moved:10000",
    "batch-planned:10000",
    "batch-written:10000",
    "change-applied:3000",
    "change-committed:3000",
    "moves-given-up:10000",
    "moves-interrupted:10000",
    "moves-rung:10000",
    "page-copied:1000",
    "page-put-back:1000",
    "pages-shared:10000",
    "chunk-rung:1000",
    "record-flipped:300",
];

/// Races in which one thread stands still for long at some place, as on a busy host, with donors
/// that are slow now and then.
#[test]
fn no_wrong_byte_and_no_hang_wherever_annexd_lingers() {
    for (n, linger) in LINGERS.into_iter().enumerate() {
        let slow = "delay=1/20:30ms,fail=1/301,seed=7";
        let (tcp, shm) = (Donor::tcp().faults(slow), Donor::shm().faults(slow));
        let bed = Testbed::builder().linger_at(linger).donor(tcp).donor(shm).start();
        let mut command = stress(16 * MIB, 40 + n as u64, stress_seconds().div_ceil(8));
        command.args(["--stall", "20"]);
        let outcome = bed.run("lingers", "6M", command).wait(Duration::from_secs(stress_seconds() + 120)).succeeded();
        let summary = summary(&outcome.stdout);
        println!("{linger}: {summary}");
        assert!(summary["errors"] == 0 && summary["checks"].as_u64() > Some(10_000), "{linger}: {summary}");
        outcome.was_paged(500, 200);
    }
}

#[test]
fn the_workload_passes_natively() {
    let mut command = stress(64 * MIB, 15, 3);
    let output = command.output().expect("annex-stress starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// The proof of the proof: bytes that change behind its back make it fail.
#[test]
fn the_workload_fails_when_one_page_changes_behind_its_back() {
    let mut command = stress(32 * MIB, 16, 60);
    command.args(["--features", "rw,scan"]).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("annex-stress starts");
    let mut stderr = BufReader::new(child.stderr.take().expect("piped"));
    let mut said = String::new();
    stderr.read_line(&mut said).expect("it says when its memory is filled");
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", child.id())).expect("our own child");
    let ranges = maps.lines().filter(|line| line.contains(" rw-p ")).filter_map(|line| {
        let (from, to) = line.split_whitespace().next()?.split_once('-')?;
        Some((u64::from_str_radix(from, 16).ok()?, u64::from_str_radix(to, 16).ok()?))
    });
    let (from, to) = ranges.max_by_key(|(from, to)| to - from).expect("the set is mapped");
    assert!(to - from >= 32 * MIB, "{maps}");
    let mut memory =
        std::fs::OpenOptions::new().write(true).open(format!("/proc/{}/mem", child.id())).expect("our own child");
    // Pages are rewritten all the time, so one overwritten page may be gone before it is read:
    // overwrite many.
    for page in (from / 4096..to / 4096).step_by(16) {
        memory.seek(SeekFrom::Start(page * 4096 + 1000)).expect("an address");
        memory.write_all(b"not what was here").expect("the child's memory is writable");
    }
    stderr.read_to_string(&mut said).expect("its messages");
    let status = child.wait().expect("our own child");
    assert_eq!(status.code(), Some(1), "{said}");
    assert!(said.contains("wrong content"), "{said}");
}
