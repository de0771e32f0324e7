//! Neighbours that mean harm: whoever has an app may reach into its processes and its stub, and must not stop annexd by it.

use annex_tests::testbed::census::stubs_of;
use annex_tests::testbed::{Testbed, bins, directory, nobody, wait_for};
use nix::sys::signal::Signal;
use std::fs::{self, File};
use std::io;
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

/// annexd has it mapped: of one that became shorter it would die by SIGBUS, and with it every program's memory would be away.
#[test]
fn a_stubs_shared_page_keeps_its_size() {
    let bed = Testbed::builder().beside_another().shm();
    let mut stress = Command::new(bins::find("annex-stress"));
    stress.args(["--size", "48M", "--threads", "2", "--seconds", "0", "--seed", "29"]).arg("--dir").arg(directory());
    let mut job = bed.run("victim", "16M", stress);
    job.wait_says("ready", MINUTE);
    let app = bed.wait_app("victim", MINUTE, |app| app.pages_evicted > 3000);
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
    bed.wait_app("victim", MINUTE, |now| now.faults.major > app.faults.major + 1000);
    job.signal(Signal::SIGTERM);
    job.wait(MINUTE).succeeded();
}

/// A set-user-ID program that a user runs under annex has rights of root's. It is not paged with that user's limit, nor is anything of ours put into it.
#[test]
fn a_program_with_more_rights_than_its_user_leaves_the_app() {
    let bed = Testbed::builder().beside_another().shm();
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
