//! Neighbours that mean harm: whoever has an app may reach into its processes and its stub, and
//! must not stop annexd by it.

mod attaches;
mod lies;
mod lying_client;
mod lying_donor;
mod rings;
mod scripted_donor;
mod users;

use annex_tests::testbed::census::stubs_of;
use annex_tests::testbed::{Job, Testbed, bins, directory, nobody, wait_for};
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::signal::Signal;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::{Command, Stdio};
use std::time::Duration;

const MINUTE: Duration = Duration::from_secs(60);

/// The files that a process has open whose name has this in it, opened anew.
fn open_files(pid: i32, name: &str) -> Vec<File> {
    let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).expect("it runs").flatten().map(|entry| entry.path());
    let has_name = |path: &std::path::PathBuf| fs::read_link(path).is_ok_and(|t| t.to_string_lossy().contains(name));
    let open = |path| File::options().read(true).write(true).open(path).expect("it is ours");
    descriptors.filter(has_name).map(open).collect()
}

/// Copies of all descriptors that a process has.
fn descriptors(pid: i32) -> Vec<OwnedFd> {
    // SAFETY: both calls take numbers only, and give a new descriptor or none.
    let call = |number, args: [i32; 3]| unsafe {
        let fd = libc::syscall(number, args[0], args[1], args[2]);
        (fd >= 0).then(|| OwnedFd::from_raw_fd(fd as i32))
    };
    let process = call(libc::SYS_pidfd_open, [pid, 0, 0]).expect("it runs");
    let numbers = fs::read_dir(format!("/proc/{pid}/fd")).expect("it runs").flatten();
    let numbers = numbers.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    numbers.filter_map(|fd| call(libc::SYS_pidfd_getfd, [process.as_raw_fd(), fd, 0])).collect()
}

fn stress(name: &str, bed: &Testbed) -> Job {
    let mut stress = Command::new(bins::find("annex-stress"));
    stress.args(["--size", "48M", "--threads", "2", "--seconds", "0", "--seed", "29"]).arg("--dir").arg(directory());
    let mut job = bed.run(name, "16M", stress);
    job.wait_says("ready", MINUTE);
    bed.wait_app(name, MINUTE, |app| app.pages_evicted > 3000);
    job
}

fn goes_on(name: &str, bed: &Testbed) {
    let before = bed.app(name).map_or(0, |app| app.faults.major);
    bed.wait_app(name, MINUTE, |now| now.faults.major > before + 1000);
}

/// The descriptors of a stub are made to wait for whoever uses them, and stub and program are
/// stopped: no message comes, and nothing is answered. Only that program waits, and the next annexd
/// starts.
#[test]
fn a_stub_whose_descriptors_wait_holds_up_its_own_program_only() {
    let mut bed = Testbed::builder().shm();
    let (hostile, other) = (stress("hostile", &bed), stress("other", &bed));
    let stubs = || -> Vec<i32> {
        let app = bed.app("hostile").expect("it runs");
        app.pids.iter().flat_map(|pid| stubs_of(*pid)).collect()
    };
    let send = |pid: i32, signal| nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), signal);
    let stop = |stub: &i32| {
        send(*stub, Signal::SIGSTOP).expect("it runs");
        for fd in descriptors(*stub) {
            let _ = fcntl(&fd, FcntlArg::F_SETFL(OFlag::empty()));
            // As much as an eventfd takes.
            let _ = nix::unistd::write(&fd, &(u64::MAX - 1).to_ne_bytes());
        }
    };
    let stopped = stubs();
    assert!(!stopped.is_empty());
    stopped.iter().for_each(stop);
    let program = bed.app("hostile").expect("it runs").pids;
    program.iter().for_each(|pid| send(*pid, Signal::SIGSTOP).expect("it runs"));
    goes_on("other", &bed);
    bed.annexd.kill();
    let took = bed.start_again(None);
    println!("the next annexd answered after {took:?}");
    goes_on("other", &bed);
    other.signal(Signal::SIGTERM);
    other.wait(MINUTE).succeeded();
    // And it goes on itself when it is let: its stub, or one in place of it.
    for pid in program.iter().chain(&stopped) {
        let _ = send(*pid, Signal::SIGCONT);
    }
    goes_on("hostile", &bed);
    hostile.signal(Signal::SIGTERM);
    hostile.wait(MINUTE).succeeded();
}

/// annexd has it mapped: of one that became shorter it would die by SIGBUS, and with it every
/// program's memory would be away.
#[test]
fn a_stubs_shared_page_keeps_its_size() {
    let bed = Testbed::builder().shm();
    let job = stress("victim", &bed);
    let app = bed.app("victim").expect("it runs");
    let stubs: Vec<i32> = app.pids.iter().flat_map(|pid| stubs_of(*pid)).collect();
    let pages: Vec<File> = stubs.iter().flat_map(|stub| open_files(*stub, "annex-stub-page")).collect();
    assert!(!pages.is_empty(), "no stub has its shared page open: {stubs:?}");
    for page in pages {
        let length = page.metadata().expect("it is open").len();
        for other in [0, length - 4096, length + 4096] {
            let refused = page.set_len(other).map_err(|error| error.kind());
            assert_eq!(refused, Err(io::ErrorKind::PermissionDenied), "{length} to {other} bytes");
        }
    }
    goes_on("victim", &bed);
    job.signal(Signal::SIGTERM);
    job.wait(MINUTE).succeeded();
}

/// A set-user-ID program that a user runs under annex has rights of root's. It is not paged with
/// that user's limit, nor is anything of ours put into it.
#[test]
fn a_program_with_more_rights_than_its_user_leaves_the_app() {
    let bed = Testbed::builder().shm();
    let (stress, annex) = (nobody::copy("annex-stress", bed.path(), 0o4755), nobody::copy("annex", bed.path(), 0o755));
    let scratch = nobody::scratch(bed.path());
    // In place of the program that was attached, and as its child.
    for (name, wrapper) in [("exec", "exec \"$@\""), ("child", "\"$@\"; exit $?")] {
        let mut command = nobody::command();
        command.arg(&annex).args(["run", "--socket"]).arg(&bed.socket).args(["--name", name, "--local", "16M", "--"]);
        command.args(["sh", "-c", wrapper, "sh"]).arg(&stress).args(["--size", "64M", "--seconds", "0", "--dir"]);
        command.arg(&scratch).stdin(Stdio::null());
        let mut job = bed.natively(name, command);
        job.wait_says("ready", MINUTE);
        let is_it = |pid: &i32| fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe == stress);
        let programs = || fs::read_dir("/proc").expect("it is mounted").flatten();
        let pids = || programs().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter(is_it);
        let pid: i32 = pids().next().expect("it says that it runs");
        let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
        assert!(status.contains(&format!("Uid:\t{}\t0\t0\t0", nobody::UID)), "{status}");
        // A child is looked at again and again, and never becomes a part of it.
        let is_judged = || bed.annexd_logs().contains("it leaves the app") || !stubs_of(pid).is_empty();
        wait_for("annexd to look at it", MINUTE, || name == "child" || is_judged());
        std::thread::sleep(Duration::from_secs(3));
        assert!(stubs_of(pid).is_empty(), "{name}: it has a stub");
        assert!(bed.app(name).is_none_or(|app| app.pages_evicted == 0), "{name}: {:?}", bed.app(name));
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), Signal::SIGTERM).expect("it runs");
        job.wait(MINUTE).succeeded();
    }
}
