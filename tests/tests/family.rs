//! Programs that replace themselves, start others and fork while their memory is evicted: all bytes
//! are right in each of them, and nothing of annex stays behind.

use annex_tests::testbed::census::{Census, stubs_of};
use annex_tests::testbed::{Outcome, Testbed, bins, wait_for};
use nix::sys::signal::{Signal, kill};
use nix::sys::stat::Mode;
use nix::unistd::{Pid, mkfifo};
use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

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
    ended_well(&Testbed::builder().mixed(), &["32", "chain", "4"]);
}

#[test]
fn a_thread_replaces_the_program_while_others_fault() {
    ended_well(&Testbed::builder().shm(), &["32", "threads"]);
}

#[test]
fn a_program_that_starts_others_by_vfork_keeps_its_bytes() {
    let outcome = ended_well(&Testbed::builder().mixed(), &["32", "spawn", "3"]);
    assert!(outcome.seen.processes >= 2, "what it starts belongs to the app: {outcome}");
}

/// Wrappers in a script language become the program they are named after by way of several others,
/// and whoever attaches a program right after its start meets these.
#[test]
fn a_program_that_becomes_another_while_it_is_attached_is_attached_all_the_same() {
    let bed = Testbed::builder().shm();
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
    let bed = Testbed::builder().mixed();
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

fn runs(program: &Path) -> bool {
    let processes = std::fs::read_dir("/proc").expect("it is mounted").flatten();
    processes.into_iter().any(|process| std::fs::read_link(process.path().join("exe")).is_ok_and(|exe| exe == program))
}

/// Whether some of its memory is to be zeros in the child can't be known there. The child itself is
/// nobody's yet: it may run on, but not with zeros.
#[test]
fn a_program_that_forks_where_its_marks_can_not_be_read_is_stopped_and_its_child_finds_no_zeros() {
    let bed = Testbed::builder().shm();
    let (program, file) = (bed.path().join("fork"), bed.path().join("found"));
    let compiled = Command::new("cc")
        .args(["-Wall", "-Wextra", "-Werror", "-O2", "-o"])
        .arg(&program)
        .arg(bins::script("fork.c"))
        .status();
    assert!(compiled.expect("there is a C compiler").success());
    let marks = bed.path().join("marks");
    mkfifo(&marks, Mode::S_IRWXU).expect("a FIFO can be made");
    for readable in [true, false] {
        let mut command = Command::new(&program);
        command.arg(&file);
        let mut job = bed.natively("forks", command);
        job.wait_says("filled", MINUTE);
        bed.ask("attach", [&job.pid().to_string(), "--name", "forks", "--local", "4M", "--no-wait"]).succeeded();
        bed.wait_app("forks", MINUTE, |app| app.evicted > 26 << 20);
        if !readable {
            // annexd looks at the program's memory through the stub, which lives for as long as
            // that.
            let stub = stubs_of(job.pid())[0];
            let mounted = Command::new("mount").arg("--bind").arg(&marks).arg(format!("/proc/{stub}/smaps")).status();
            assert!(mounted.expect("mount runs").success());
        }
        job.signal(Signal::SIGUSR1);
        let found = || std::fs::read_to_string(&file).unwrap_or_default();
        if readable {
            job.wait(MINUTE).succeeded();
            assert_eq!(found(), "reading\nright\n");
            std::fs::remove_file(&file).expect("it was there");
            bed.wait_gone("forks");
            continue;
        }
        // annexd waits for what it is to read there. The child is there by then, and waits for its
        // pages.
        let mut garbage = OpenOptions::new().write(true).open(&marks).expect("annexd reads the marks");
        wait_for("the child to read", MINUTE, || found() == "reading\n");
        garbage.write_all(b"\xff\n").expect("annexd reads the marks");
        drop(garbage);
        let is_over = &AtomicBool::new(false);
        let outcome = std::thread::scope(|scope| {
            let marks = &marks;
            // It looks again and again: whoever it looks at might have ended just then.
            scope.spawn(move || {
                let until = Instant::now() + 2 * MINUTE;
                while !is_over.load(Relaxed) && Instant::now() < until {
                    let reader = OpenOptions::new().write(true).custom_flags(libc::O_NONBLOCK).open(marks);
                    let told = reader.and_then(|mut reader| reader.write_all(b"\xff\n"));
                    std::thread::sleep(Duration::from_millis(if told.is_ok() { 0 } else { 1 }));
                }
            });
            let outcome = job.wait(MINUTE);
            is_over.store(true, Relaxed);
            outcome
        });
        assert_eq!(outcome.code(), 128 + 9, "{outcome}");
        assert!(bed.annexd_logs().contains("which of its memory the child is to find wiped is not known"));
        wait_for("the child to end", MINUTE, || !runs(&program));
        assert_eq!(found(), "reading\n");
        wait_for("every slot to be free", MINUTE, || bed.status().pool.used == 0);
    }
}
