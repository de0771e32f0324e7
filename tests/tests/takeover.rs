//! annexd is killed under load, and the next one takes over: programs pause, and nothing is lost.
//!
//! `ANNEX_KILLS` sets how often it is killed in a row.

use annex_tests::kv::wire::Wire;
use annex_tests::programs::suites::java;
use annex_tests::redis::{self, Client, Values, Verdict};
use annex_tests::testbed::{Donor, Job, Testbed, bins, directory, wait_for};
use nix::sys::signal::Signal;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

const MINUTE: Duration = Duration::from_secs(60);

fn stress(seconds: u64, seed: u64) -> Command {
    let mut command = Command::new(bins::find("annex-stress"));
    command.args(["--size", &(96u64 << 20).to_string(), "--threads", "4", "--seed", &seed.to_string()]);
    command.args(["--seconds", &seconds.to_string(), "--stall", "60"]).arg("--dir").arg(directory());
    command
}

/// How often something is killed, unless `ANNEX_KILLS` says so.
fn kills(default: u32) -> u32 {
    std::env::var("ANNEX_KILLS").map_or(default, |kills| kills.parse().expect("a number of kills"))
}

/// What the dead ones had under way rests for one and a half times a lease: a short one, so that
/// the test can wait for it.
fn bed(donors: [Donor; 2]) -> Testbed {
    bed_of_leases(donors, "10s")
}

fn bed_of_leases(donors: [Donor; 2], ttl: &'static str) -> Testbed {
    donors.into_iter().fold(Testbed::builder(), |bed, donor| bed.donor(donor.lease_ttl(ttl))).start()
}

/// A workload under annex that is being paged, and its annexd.
fn paged(bed: &Testbed, seed: u64) -> Job {
    let mut job = bed.run("survivor", "24M", stress(0, seed));
    job.wait_says("ready", MINUTE);
    bed.wait_app("survivor", MINUTE, |app| app.pages_evicted > 5000 && app.faults.major > 1000);
    job
}

/// The present annexd serves its faults.
fn goes_on(bed: &Testbed, job: &mut Job, what: &str) {
    let started = Instant::now();
    let log = |job: &Job| format!("{}{}{}", bed.annexd_logs(), bed.annexd_logs_of("survivor"), job.process.log());
    while bed.app("survivor").is_none_or(|app| app.faults.major < 200) {
        let ended = job.process.wait(Duration::ZERO);
        assert!(ended.is_none(), "the workload ended with {ended:?} {what}: {}", log(job));
        assert!(started.elapsed() < MINUTE, "no fault is served {what}: {}", log(job));
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// It ends by itself, all its bytes are right, and nothing of it is left in the pool.
fn ends_well(bed: &Testbed, job: Job) {
    job.signal(Signal::SIGTERM);
    let outcome = job.wait(MINUTE).succeeded();
    let summary: serde_json::Value = serde_json::from_str(&outcome.stdout).expect("one line of JSON");
    assert_eq!(summary["errors"], 0);
    bed.wait_gone("survivor");
    wait_for("every slot to be free", MINUTE, || bed.status().pool.used == 0);
}

/// Kills annexd again and again under a workload that checks every byte.
fn killed_again_and_again(mut bed: Testbed, seed: u64) {
    let mut job = paged(&bed, seed);
    let mut took = Vec::new();
    for round in 0..kills(25) {
        bed.annexd.kill();
        took.push(bed.start_again(None));
        goes_on(&bed, &mut job, &format!("in round {round}"));
        std::thread::sleep(Duration::from_millis(u64::from(round) * 37 % 150));
    }
    took.sort();
    println!("take-over, {} kills: p50 {:?}, max {:?}", took.len(), took[took.len() / 2], took[took.len() - 1]);
    ends_well(&bed, job);
}

#[test]
fn annexd_killed_again_and_again_loses_no_page_over_shm() {
    killed_again_and_again(bed([Donor::shm(), Donor::shm()]), 21);
}

#[test]
fn annexd_killed_again_and_again_loses_no_page_on_mixed_donors() {
    killed_again_and_again(bed([Donor::tcp(), Donor::shm()]), 22);
}

/// Killed between any two steps of what it does to a program's state, not only at random.
#[test]
fn annexd_killed_at_each_step_loses_no_page() {
    let while_it_works = [
        "batch-planned:3",
        "moves-rung:2",
        "moves-rung:40",
        "moves-interrupted:1",
        "moves-interrupted:40",
        "moves-given-up:1",
        "moves-given-up:3",
        "batch-moved:5",
        "record-flipped:1",
        "record-flipped:100",
        "better-noted:7",
        "batch-written:4",
        "batch-concluded:4",
        "page-copied:30",
        "page-copied:300",
        "change-applied:1",
        "change-applied:40",
        "change-committed:2",
        "userfaultfd-kept:2",
    ];
    let while_it_takes_over = ["userfaultfd-kept:1", "adopted", "caught-up", "rolled-back"];
    let mut bed = bed([Donor::tcp(), Donor::shm()]);
    let mut job = paged(&bed, 23);
    for point in while_it_works {
        bed.annexd.kill();
        bed.start_again(Some(point));
        let died = bed.annexd.wait(5 * MINUTE);
        assert!(died.is_some(), "annexd did not come by {point} in five minutes: {}", bed.annexd_logs());
        bed.start_again(None);
        goes_on(&bed, &mut job, &format!("after a death at {point}"));
    }
    for point in while_it_takes_over {
        // Each time with an eviction, or a change, left half done.
        for before in ["moves-rung:3", "change-applied:5", "batch-written:2"] {
            bed.annexd.kill();
            bed.start_again(Some(before));
            bed.annexd.wait(MINUTE).expect("annexd dies where it is told to");
            bed.start_again(Some(point));
            bed.annexd.wait(MINUTE).expect("annexd dies where it is told to");
            bed.start_again(None);
            goes_on(&bed, &mut job, &format!("after deaths at {before} and {point}"));
        }
    }
    ends_well(&bed, job);
}

/// Each annexd dies at a point of its own, before it has undone what the one before it left:
/// `ANNEX_KILLS` such deaths in all, by `ANNEX_SEED`.
#[test]
fn annexd_killed_before_it_has_mended_what_a_kill_left_loses_no_page() {
    const POINTS: [&str; 23] = [
        "adopted",
        "batch-concluded",
        "batch-moved",
        "batch-planned",
        "batch-written",
        "bequeathed",
        "better-noted",
        "caught-up",
        "change-applied",
        "change-committed",
        "child-followed",
        "moves-begin",
        "moves-given-up",
        "moves-interrupted",
        "moves-rung",
        "page-copied",
        "page-put-back",
        "record-flipped",
        "rolled-back",
        "stub-goes",
        "stub-gone",
        "stub-placed",
        "userfaultfd-kept",
    ];
    let clock = || std::time::UNIX_EPOCH.elapsed().map_or(1, |time| time.as_nanos() as u64);
    let seed = std::env::var("ANNEX_SEED").map_or_else(|_| clock(), |seed| seed.parse().expect("a number"));
    println!("ANNEX_SEED={seed}");
    let mut dice = StdRng::seed_from_u64(seed);
    // Several annexds in a row may renew nothing.
    let mut bed = bed_of_leases([Donor::tcp(), Donor::shm()], "30s");
    let mut job = paged(&bed, seed);
    let (mut deaths, mut chains) = (0, 0);
    while deaths < kills(30) {
        bed.annexd.kill();
        let mut chain = Vec::new();
        for _ in 0..dice.random_range(2..=5) {
            let point = format!("{}:{}", POINTS[dice.random_range(0..POINTS.len())], dice.random_range(1..=3));
            bed.start_again(Some(&point));
            // A point that nothing comes by, as things are: killed there, wherever it is.
            let died = bed.annexd.wait(Duration::from_millis(dice.random_range(100..=1000))).is_some();
            chain.push(if died { point } else { "anywhere".into() });
            deaths += 1;
        }
        bed.start_again(None);
        goes_on(&bed, &mut job, &format!("after deaths at {}", chain.join(", ")));
        chains += 1;
    }
    println!("{deaths} deaths in {chains} chains");
    ends_well(&bed, job);
}

/// A program that others wrote, which checks itself and says at its end that all was right.
struct Other {
    name: &'static str,
    local: &'static str,
    command: fn(&Testbed) -> Command,
    /// How its last line begins.
    right: &'static str,
}

fn python(_: &Testbed) -> Command {
    let mut python = Command::new("python3");
    python.arg(bins::script("dicts.py")).arg("64");
    python
}

fn node(_: &Testbed) -> Command {
    let mut node = Command::new("node");
    node.args(["--expose-gc", "--max-old-space-size=1024"]).arg(bins::script("objects.js")).arg("48");
    node
}

fn jvm(bed: &Testbed) -> Command {
    let built = java::built(bed.path()).expect("Debian's default-jdk-headless is installed");
    java::verify(Command::new("java"), &built)
}

/// Kills annexd again and again under redis and these, each of which is started anew when it has
/// ended.
fn killed_under(others: &[Other]) {
    let mut bed = bed([Donor::tcp(), Donor::shm()]);
    let values = Values::of_total(48 << 20, 1024);
    let server = bed.run("redis", "16M", redis::server(bed.path()));
    let (folder, over) = (bed.path().to_owned(), AtomicBool::new(false));
    let mut ended = 0;
    let use_redis = || {
        let mut client = Client::connect(&folder, values, MINUTE).expect("redis-server starts");
        let mut verdict = Verdict::default();
        client.store(0..values.count, 1, |_| Ok(())).expect("redis-server goes on");
        while !over.load(Relaxed) {
            client.store(0..values.count, 8, |_| Ok(())).expect("redis-server goes on");
            verdict += client.verify(0..values.count, |_| Ok(())).expect("redis-server goes on");
        }
        // The connection is closed instead of an answer.
        let _ = client.command(&["SHUTDOWN", "NOSAVE"]);
        verdict
    };
    let is_right = |other: &Other, job: Job| {
        let outcome = job.wait(4 * MINUTE).succeeded();
        assert!(outcome.stdout.starts_with(other.right), "{outcome}");
    };
    let verdict = std::thread::scope(|scope| {
        let client = scope.spawn(use_redis);
        let mut jobs: Vec<Option<Job>> = others.iter().map(|_| None).collect();
        for round in 0..kills(6) {
            for (other, job) in others.iter().zip(&mut jobs) {
                if job.as_mut().is_some_and(|job| !job.process.is_running()) {
                    job.take().into_iter().for_each(|job| is_right(other, job));
                    ended += 1;
                }
                if job.is_none() {
                    *job = Some(bed.run(other.name, other.local, (other.command)(&bed)));
                    bed.wait_app(other.name, MINUTE, |app| app.pages_evicted > 1000);
                }
            }
            bed.annexd.kill();
            let took = bed.start_again(None);
            println!("kill {}: back after {took:.1?}; {ended} programs have ended well", round + 1);
            std::thread::sleep(Duration::from_millis(u64::from(round) * 137 % 900));
        }
        others.iter().zip(jobs).for_each(|(other, job)| job.into_iter().for_each(|job| is_right(other, job)));
        over.store(true, Relaxed);
        client.join().expect("redis is right")
    });
    server.wait(MINUTE).succeeded().was_paged(5_000, 5_000);
    assert!(verdict.wrong == 0 && verdict.verified >= values.count, "{verdict:?}");
    wait_for("every slot to be free", MINUTE, || bed.status().pool.used == 0);
}

#[test]
fn annexd_killed_again_and_again_under_redis_python_and_node() {
    killed_under(&[
        Other { name: "python", local: "20M", command: python, right: "checked " },
        Other { name: "node", local: "40M", command: node, right: "checked " },
    ]);
}

#[test]
#[ignore = "`make test-jvm` installs a JDK and runs it"]
fn annexd_killed_again_and_again_under_a_jvm() {
    killed_under(&[Other { name: "java", local: "40M", command: jvm, right: "right " }]);
}

/// A program with one thread, whose moves are made a few after each fault: killed when only some of
/// a batch have been made, and nobody rings for the rest any more.
#[test]
fn annexd_killed_between_two_portions_of_a_batch_loses_no_page() {
    let mut bed = bed([Donor::shm(), Donor::shm()]);
    // Each page carries its number, which is checked whenever it is read. On a CPU that has a fault
    // worker.
    let mut random = Command::new("taskset");
    random.args(["-c", "0"]).arg(bins::find("annex-access")).args(["pattern", "random", "--size", "96M"]);
    random.args(["--threads", "1", "--seconds", "20"]);
    let mut job = bed.run("survivor", "24M", random);
    bed.wait_app("survivor", MINUTE, |app| app.pages_evicted > 5000 && app.faults.major > 1000);
    for point in ["chunk-rung:1", "chunk-rung:2", "chunk-rung:3", "chunk-rung:50", "chunk-rung:999"] {
        bed.annexd.kill();
        bed.start_again(Some(point));
        assert!(bed.annexd.wait(MINUTE).is_some(), "no moves in portions in a minute: {}", bed.annexd_logs());
        bed.start_again(None);
        goes_on(&bed, &mut job, &format!("after a death at {point}"));
    }
    job.wait(MINUTE).succeeded();
}

/// Parts of what has just been moved are unmapped, and mapped anew, and annexd dies before the
/// batch is over: what the records say since then counts.
#[test]
fn annexd_killed_as_a_change_ends_a_batch_leaves_the_change_in_force() {
    // It lingers where a change finds a batch under way.
    let builder = Testbed::builder().linger_at("moves-begin:5000");
    let mut bed = builder.donor(Donor::shm().lease_ttl("10s")).donor(Donor::shm().lease_ttl("10s")).start();
    let mut holes = Command::new(bins::find("annex-holes"));
    holes.args(["40", "0", "100"]);
    let mut job = bed.run("survivor", "12M", holes);
    bed.wait_app("survivor", MINUTE, |app| app.pages_evicted > 1000);
    let (began, mut deaths) = (Instant::now(), 0);
    while began.elapsed() < Duration::from_secs(20) {
        bed.annexd.kill();
        bed.start_again(Some("moves-given-up:3"));
        assert!(bed.annexd.wait(MINUTE).is_some(), "no change met a batch in a minute: {}", bed.annexd_logs());
        bed.start_again(None);
        goes_on(&bed, &mut job, "after a death as a change ended a batch");
        deaths += 1;
    }
    let outcome = job.wait(2 * MINUTE).succeeded();
    let summary: serde_json::Value = serde_json::from_str(&outcome.stdout).expect("one line of JSON");
    assert!(deaths >= 2 && summary["wrong"] == 0, "{deaths} deaths: {summary}");
}

/// The journal of messages said on and on then that its first one is applied. The next annexd,
/// killed in turn, left there one that was not, and pages came back that the program had thrown
/// away.
#[test]
fn annexd_killed_between_a_change_and_its_next_read_forgets_no_later_change() {
    let mut bed = bed([Donor::shm(), Donor::shm()]);
    let mut discards = Command::new("python3");
    discards.arg(bins::script("discards.py")).arg("64");
    let mut job = bed.run("survivor", "12M", discards);
    job.wait_says("filled", 2 * MINUTE);
    bed.wait_app("survivor", MINUTE, |app| app.evicted > 40 << 20);
    job.signal(Signal::SIGUSR1);
    for _ in 0..10 {
        for point in ["change-committed:1", "change-applied:1"] {
            bed.start_again(Some(point));
            assert!(bed.annexd.wait(MINUTE).is_some(), "annexd did not come by {point}: {}", bed.annexd_logs());
        }
    }
    bed.start_again(None);
    job.wait(2 * MINUTE).succeeded();
}

#[test]
fn a_program_that_ends_while_there_is_no_annexd_leaves_nothing_behind() {
    let mut bed = bed([Donor::shm(), Donor::shm()]);
    let mut job = paged(&bed, 24);
    bed.annexd.kill();
    job.process.kill();
    bed.start_again(None);
    bed.wait_gone("survivor");
    wait_for("every slot to be free", MINUTE, || bed.status().pool.used == 0);
}

#[test]
fn a_new_build_takes_the_place_of_the_old_one() {
    let mut bed = bed([Donor::shm(), Donor::shm()]);
    let mut job = paged(&bed, 25);
    let before = bed.annexd.pid();
    let took = bed.take_over();
    assert_ne!(bed.annexd.pid(), before);
    goes_on(&bed, &mut job, "after the upgrade");
    println!("upgrade in place: {took:?}");
    ends_well(&bed, job);
}

/// The page tables that are kept while there is no annexd, and the layout version in them.
fn saved_tables(keeper: i32) -> (Vec<std::fs::File>, u32) {
    let open = |path: &std::path::PathBuf| {
        std::fs::OpenOptions::new().read(true).write(true).open(path).expect("the keeper holds it")
    };
    let tables: Vec<std::fs::File> = memfds(keeper, "annex-pages").iter().map(open).collect();
    let mut version = [0; 4];
    tables[0].read_exact_at(&mut version, 8).expect("a memfd");
    (tables, u32::from_le_bytes(version))
}

fn put_version(tables: &[std::fs::File], version: u32) {
    tables.iter().for_each(|table| table.write_all_at(&version.to_le_bytes(), 8).expect("a memfd"));
}

/// A state that this build can't read is none of its business: it says so, touches nothing, and the
/// build that wrote it goes on with it.
#[test]
fn a_newer_state_is_refused_and_left_alone() {
    let mut bed = bed([Donor::shm(), Donor::shm()]);
    let mut job = paged(&bed, 26);
    let keeper = bed.keeper();
    bed.annexd.kill();
    let (tables, version) = saved_tables(keeper);
    let newer = version + 1;
    put_version(&tables, newer);
    let (code, said) = bed.start_in_vain();
    assert_eq!(code, Some(78), "{said}");
    let why = format!("layout version {newer}, this annexd knows {version}: start the annexd that wrote it");
    assert!(said.contains(&why), "{said}");
    assert!(job.process.is_running());
    put_version(&tables, version);
    bed.start_again(None);
    goes_on(&bed, &mut job, "with its own build again");
    ends_well(&bed, job);
}

/// Before it asks the one that runs to go, an annexd looks whether it can start itself.
#[test]
fn an_annexd_that_can_not_start_takes_nobodys_place() {
    let mut bed = bed([Donor::shm(), Donor::shm()]);
    let mut job = paged(&bed, 27);
    let dir = tempfile::tempdir_in(directory()).expect("a directory");
    let file = dir.path().join("annexd.toml");
    std::fs::write(&file, "[tls]\nca = '/nonexistent/ca.pem'\ncert = '/nonexistent/c'\nkey = '/nonexistent/k'\n")
        .expect("a file");
    let mut next = Command::new(bins::find("annexd"));
    next.arg("--config").arg(&file).arg("--socket").arg(&bed.socket).arg("--take-over");
    let output = next.output().expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(78), "{said}");
    assert!(said.contains("/nonexistent/"), "{said}");
    assert!(bed.annexd.is_running());
    goes_on(&bed, &mut job, "with the annexd that ran");
    ends_well(&bed, job);
}

/// Waits until the keeper of an annexd that has ended has closed what is not kept: it answers then.
fn settled(bed: &Testbed, annexd: i32) {
    let path = format!("{}.keeper-{annexd}", bed.socket.display());
    let answer = || {
        let mut stream = UnixStream::connect(&path)?;
        stream.write_all(b"T")?;
        let mut answer = [0];
        stream.read_exact(&mut answer).map(|()| answer)
    };
    wait_for("the keeper to have what is kept, and nothing else", MINUTE, || {
        answer().is_ok_and(|answer| answer == *b"M")
    });
}

/// Takes the entries of these kinds out of a keeper's index, and gives what puts them back.
fn forget(keeper: i32, kinds: &[u32]) -> impl FnOnce() + use<> {
    let path = memfds(keeper, "annex-index").remove(0);
    let index = std::fs::OpenOptions::new().read(true).write(true).open(path).expect("the keeper holds it");
    let mut forgotten = Vec::new();
    for at in (4096..8192).step_by(16) {
        let mut kind = [0; 4];
        index.read_exact_at(&mut kind, at).expect("a memfd");
        if kinds.contains(&u32::from_le_bytes(kind)) {
            index.write_all_at(&[0; 4], at).expect("a memfd");
            forgotten.push((at, kind));
        }
    }
    assert_eq!(forgotten.len(), kinds.len());
    move || forgotten.iter().for_each(|(at, kind)| index.write_all_at(kind, *at).expect("a memfd"))
}

/// A log page of keys names a slot of the pool that was: in a fresh pool it would be another's.
#[test]
fn keys_without_the_tables_of_their_pool_are_refused_and_left_alone() {
    const LEDGER: u32 = 4;
    const EXTENTS: u32 = 5;
    const SLOTS: u32 = 6;
    let mut bed = Testbed::builder().donor(Donor::shm()).donor(Donor::shm()).kv("").start();
    let mut wire = Wire::unix(&bed.kv_socket()).expect("the KV API listens");
    wire.talk("SET k v", "+OK\r\n");
    let (keeper, annexd) = (bed.keeper(), bed.annexd.pid());
    bed.annexd.kill();
    settled(&bed, annexd);
    let put_back = forget(keeper, &[LEDGER, EXTENTS, SLOTS]);
    let (code, said) = bed.start_in_vain();
    assert_eq!(code, Some(78), "{said}");
    assert!(said.contains("the pool's tables are not among what was kept with them"), "{said}");
    put_back();
    bed.start_again(None);
    wait_for("the key to be there", MINUTE, || {
        let reply = Wire::unix(&bed.kv_socket()).and_then(|mut wire| wire.ask(&["GET", "k"]));
        reply.is_ok_and(|reply| reply == b"$1\r\nv\r\n")
    });
}

#[test]
fn a_state_of_the_layout_before_is_migrated() {
    let mut bed = bed([Donor::shm(), Donor::shm()]);
    // Without changes of mappings, which the layout before wrote down in another way while they
    // were under way.
    let mut command = stress(0, 27);
    command.args(["--features", "rw,scan"]);
    let mut job = bed.run("survivor", "24M", command);
    job.wait_says("ready", MINUTE);
    bed.wait_app("survivor", MINUTE, |app| app.pages_evicted > 5000 && app.faults.major > 1000);
    let keeper = bed.keeper();
    bed.annexd.kill();
    let (tables, version) = saved_tables(keeper);
    put_version(&tables, version - 1);
    bed.start_again(None);
    goes_on(&bed, &mut job, "after the upgrade");
    assert_eq!(saved_tables(bed.keeper()).1, version);
    ends_well(&bed, job);
}

fn memfds(pid: i32, name: &str) -> Vec<std::path::PathBuf> {
    let entries = std::fs::read_dir(format!("/proc/{pid}/fd")).expect("it runs").flatten();
    let is = |path: &std::path::PathBuf| std::fs::read_link(path).is_ok_and(|to| to.to_string_lossy().contains(name));
    entries.map(|e| e.path()).filter(is).collect()
}
