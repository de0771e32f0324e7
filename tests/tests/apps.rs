//! Real programs, unchanged, on paged memory: each checks itself or is compared with its native
//! run, and each must really have been paged.

use annex_tests::redis::{self, Client, Values};
use annex_tests::testbed::{Testbed, bins, nobody, wait_for};
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::signal::Signal;
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

const MINUTE: Duration = Duration::from_secs(60);

/// What of its memory each of these programs may have resident while it works, in percent: with
/// more it would hardly be paged.
const SHARE: u8 = 60;

/// A program of the system.
///
/// # Panics
/// When it is not installed: `make setup` installs it.
fn system(name: &str) -> Command {
    let path = bins::system(name).unwrap_or_else(|| panic!("{name} is not installed: run `make setup`"));
    Command::new(path)
}

#[test]
fn redis_keeps_every_value_through_a_background_save() {
    let bed = Testbed::builder().mixed();
    let values = Values::of_total(192 << 20, 1024);
    let go_on = |_| Ok(());
    let job = bed.run("redis", "56M", redis::server(bed.path()));
    let mut client = Client::connect(bed.path(), values, MINUTE).expect("redis-server starts");
    client.store(0..values.count, 1, go_on).unwrap();
    let mut verdict = client.verify(0..values.count / 2, go_on).unwrap();
    client.command(&["BGSAVE"]).unwrap();
    let at_save = client.generations();
    client.store(0..values.count, 8, go_on).unwrap();
    verdict += client.verify(values.count / 2..values.count, go_on).unwrap();
    wait_for("BGSAVE", 2 * MINUTE, || client.background_save_done().expect("BGSAVE goes well"));
    verdict += client.verify(0..values.count, go_on).unwrap();
    assert_eq!((verdict.wrong, verdict.verified), (0, values.count * 2));
    // SHUTDOWN closes the connection instead of answering.
    let _ = client.command(&["SHUTDOWN", "NOSAVE"]);
    job.wait(MINUTE).succeeded().was_paged(20_000, 10_000).worked_within(SHARE);

    // What the forked child saw: another server loads the dump, natively.
    let other = bed.natively("redis-native", redis::server(bed.path()));
    let mut client = Client::connect(bed.path(), values, MINUTE).expect("redis-server loads the dump");
    client.expect(at_save);
    let verdict = client.verify(0..values.count, go_on).unwrap();
    assert_eq!((verdict.wrong, verdict.verified), (0, values.count));
    let _ = client.command(&["SHUTDOWN", "NOSAVE"]);
    other.wait(MINUTE).succeeded();
}

/// The end of a pipe that a program opens to read from.
fn wait_to_write(pipe: &Path) -> File {
    let mut file = None;
    wait_for("the pipe to be read", MINUTE, || {
        // Opened otherwise, one that nobody reads is waited for for ever.
        file = OpenOptions::new().write(true).custom_flags(libc::O_NONBLOCK).open(pipe).ok();
        file.is_some()
    });
    let file = file.expect("it was opened");
    fcntl(&file, FcntlArg::F_SETFL(OFlag::empty())).unwrap();
    file
}

#[test]
fn sort_of_a_file_larger_than_its_limit_is_that_of_a_native_run() {
    let bed = Testbed::builder().tcp();
    let mut text = Vec::new();
    let mut dice = annex_tests::stress::content::Dice::new(5);
    while text.len() < 16 << 20 {
        text.extend_from_slice(format!("{:016x}{:016x} {}\n", dice.roll(), dice.roll(), text.len()).as_bytes());
    }
    let sort = |lines: &Path, into: &str| {
        let mut command = system("sort");
        command.env("LC_ALL", "C").args(["-S", "1G", "--parallel=2", "-o"]).arg(bed.path().join(into)).arg(lines);
        command
    };
    // It is done in a second: its last lines come once it is paged.
    let pipe = bed.path().join("pipe");
    mkfifo(&pipe, Mode::S_IRWXU).unwrap();
    let job = bed.run("sort", "14M", sort(&pipe, "paged"));
    let mut lines = wait_to_write(&pipe);
    let (most, last) = text.split_at(text.len() / 16 * 15);
    lines.write_all(most).unwrap();
    bed.wait_app("sort", MINUTE, |app| app.pages_evicted > 0);
    lines.write_all(last).unwrap();
    drop(lines);
    job.wait(3 * MINUTE).succeeded().was_paged(10_000, 5_000).worked_within(SHARE);
    let file = bed.path().join("lines");
    std::fs::write(&file, &text).unwrap();
    bed.natively("sort-native", sort(&file, "native")).wait(MINUTE).succeeded();
    let (paged, native) = (std::fs::read(bed.path().join("paged")), std::fs::read(bed.path().join("native")));
    assert!(paged.unwrap() == native.unwrap(), "the sorted files differ");
}

#[test]
fn python_finds_its_dicts_and_arrays_as_it_left_them() {
    let bed = Testbed::builder().shm();
    let mut python = system("python3");
    python.arg(bins::script("dicts.py")).arg("160");
    let outcome =
        bed.run("dicts", "40M", python).wait(3 * MINUTE).succeeded().was_paged(10_000, 5_000).worked_within(SHARE);
    assert!(outcome.stdout.starts_with("checked "), "{outcome}");
}

#[test]
fn stress_ng_verifies_its_memory() {
    let bed = Testbed::builder().mixed();
    let mut stress = system("stress-ng");
    stress.args([
        "--vm",
        "2",
        "--vm-bytes",
        "96M",
        "--vm-method",
        "all",
        "--verify",
        "--timeout",
        "15",
        "--metrics-brief",
    ]);
    stress.arg("--temp-path").arg(bed.path());
    let outcome = bed.run("stress-ng", "64M", stress).wait(3 * MINUTE).succeeded().was_paged(10_000, 2_000);
    assert!(!outcome.stderr.contains("fail"), "{outcome}");
}

#[test]
fn sqlite_in_memory_answers_as_natively() {
    let bed = Testbed::builder().tcp();
    let sqlite = || {
        let mut command = system("sqlite3");
        // `.read` instead of standard input, which the testbed closes.
        command.args([":memory:", &format!(".read {}", bins::script("table.sql").display())]);
        command
    };
    let paged =
        bed.run("sqlite", "64M", sqlite()).wait(4 * MINUTE).succeeded().was_paged(10_000, 5_000).worked_within(SHARE);
    let native = bed.natively("sqlite-native", sqlite()).wait(MINUTE).succeeded();
    assert_eq!(paged.stdout, native.stdout);
    assert!(paged.stdout.starts_with("wrong|0\n") && paged.stdout.ends_with("ok\n"), "{paged}");
}

#[test]
fn node_finds_its_objects_after_its_garbage_collector_moved_them() {
    let bed = Testbed::builder().shm();
    let mut node = system("node");
    node.args(["--expose-gc", "--max-old-space-size=1024"]).arg(bins::script("objects.js")).arg("96");
    let outcome =
        bed.run("node", "96M", node).wait(4 * MINUTE).succeeded().was_paged(10_000, 5_000).worked_within(SHARE);
    assert!(outcome.stdout.starts_with("checked "), "{outcome}");
}

#[test]
fn a_shell_script_and_all_it_starts_share_one_limit() {
    let bed = Testbed::builder().mixed();
    let work = bed.path().join("work");
    std::fs::create_dir(&work).unwrap();
    let mut script = Command::new(bins::script("several.sh"));
    script.arg(bins::script("")).arg(&work);
    let outcome = bed.run("several", "96M", script).wait(4 * MINUTE).succeeded().was_paged(10_000, 3_000);
    assert!(outcome.stdout.ends_with("all done\n"), "{outcome}");
    assert!(outcome.seen.processes >= 4, "its children belong to the app: {outcome}");
}

#[test]
fn a_preforking_server_with_long_lived_workers_serves_and_keeps_what_each_worker_has() {
    let bed = Testbed::builder().mixed();
    let mut server = system("python3");
    server.arg(bins::script("prefork.py")).args(["96", "12"]);
    let outcome =
        bed.run("prefork", "64M", server).wait(4 * MINUTE).succeeded().was_paged(10_000, 5_000).worked_within(SHARE);
    assert!(outcome.stdout.contains("checked "), "{outcome}");
    assert!(outcome.seen.processes >= 5, "the workers belong to the app: {outcome}");
}

/// What a fork leaves shared can't be moved as it is: one page in 512 went, and a program that had
/// forked stayed above its limit.
#[test]
fn a_program_that_has_forked_stays_below_its_limit() {
    let bed = Testbed::builder().mixed();
    let mut forked = system("python3");
    forked.arg(bins::script("forked.py")).args(["128", "2"]);
    let mut job = bed.run("forked", "256M", forked);
    job.wait_says("forked", MINUTE);
    bed.ask("limit", ["forked", "40M"]).succeeded();
    let app = bed.wait_app("forked", MINUTE / 2, |app| app.pids.len() == 3 && app.resident <= 40 << 20);
    println!("{app:?}");
    job.signal(Signal::SIGUSR1);
    let outcome = job.wait(2 * MINUTE).succeeded().was_paged(50_000, 50_000).worked_within(SHARE);
    assert_eq!(outcome.stdout, "forked\nverified\n", "{outcome}");
}

#[test]
fn a_program_behind_a_strict_seccomp_filter_is_paged_like_any_other() {
    let bed = Testbed::builder().shm();
    let mut sealed = Command::new(bins::find("annex-sealed"));
    sealed.args(["96", "6"]);
    let outcome =
        bed.run("sealed", "24M", sealed).wait(2 * MINUTE).succeeded().was_paged(20_000, 20_000).worked_within(SHARE);
    assert_eq!(outcome.stdout, "sealed\nverified\n", "{outcome}");
}

#[test]
fn a_program_that_is_sealed_already_can_be_attached() {
    let bed = Testbed::builder().shm();
    let mut sealed = Command::new(bins::find("annex-sealed"));
    sealed.args(["96", "10"]);
    let mut job = bed.natively("sealed-late", sealed);
    job.wait_says("sealed", MINUTE);
    bed.ask("attach", [&job.pid().to_string(), "--name", "sealed-late", "--local", "24M"]).succeeded();
    let outcome = job.wait(2 * MINUTE).succeeded().was_paged(10_000, 5_000).worked_within(SHARE);
    assert_eq!(outcome.stdout, "sealed\nverified\n", "{outcome}");
}

/// The workload and `annex` where an ordinary user can run them, and a directory that user may
/// write to.
fn for_everyone(bed: &Testbed) -> (PathBuf, PathBuf, PathBuf) {
    let [stress, annex] = ["annex-stress", "annex"].map(|name| nobody::copy(name, bed.path(), 0o755));
    (stress, annex, nobody::scratch(bed.path()))
}

#[test]
fn a_program_that_drops_to_an_ordinary_user_is_paged() {
    let bed = Testbed::builder().shm();
    let (stress, _, scratch) = for_everyone(&bed);
    let mut command = nobody::command();
    command.arg(stress).args(["--size", "128M", "--seconds", "8", "--dir"]).arg(scratch);
    // How much of it is resident says nothing: it frees, forks and fills all the time.
    bed.run("nobody", "32M", command).wait(3 * MINUTE).succeeded().was_paged(20_000, 10_000);
}

#[test]
fn an_ordinary_user_runs_annex_for_their_own_program() {
    let bed = Testbed::builder().mixed();
    let (stress, annex, scratch) = for_everyone(&bed);
    let mut command = nobody::command();
    command.arg(annex).args(["run", "--socket"]).arg(&bed.socket).args(["--name", "own", "--local", "32M", "--"]);
    command.arg(stress).args(["--size", "128M", "--seconds", "8", "--dir"]).arg(scratch).stdin(Stdio::null());
    let outcome = bed.natively("own", command).wait(3 * MINUTE).succeeded().was_paged(5_000, 2_000);
    assert_eq!(outcome.seen.last.expect("it was seen").uid, nobody::UID);
}

/// Where annex could do nothing for a program, nobody was told.
#[test]
fn memory_that_is_not_paged_is_told_of() {
    let bed = Testbed::builder().shm();
    let python = |script: &str| {
        let mut python = system("python3");
        python.args(["-c", script]);
        python
    };
    let fill = "import mmap, time; b = mmap.mmap(-1, 64 << 20); b.write(b'\\1' * (64 << 20))";
    let shared = bed.run("shared", "50%", python(&format!("{fill}; time.sleep(600)")));
    let lock = "import ctypes; m = (ctypes.c_char * (64 << 20))(); ctypes.memset(m, 1, 64 << 20); \
                assert ctypes.CDLL(None).mlock(m, ctypes.c_size_t(64 << 20)) == 0; import time; time.sleep(600)";
    let locked = bed.run("locked", "16M", python(lock));
    bed.wait_app("shared", MINUTE, |app| app.note.contains("64 MiB of its memory is shared"));
    bed.wait_app("locked", MINUTE, |app| app.note.contains("nothing of that can be evicted"));
    let listed = bed.ask("apps", [""; 0]).succeeded().stdout;
    assert!(listed.contains("locked: more is resident than its limit"), "{listed}");
    for job in [shared, locked] {
        job.signal(Signal::SIGKILL);
        job.wait(MINUTE);
    }
}
