//! Neighbours that mean harm: whoever has an app may reach into its processes and its stub, and must not stop annexd by it.

use annex_tests::testbed::census::stubs_of;
use annex_tests::testbed::{Testbed, bins, directory};
use nix::sys::signal::Signal;
use std::fs::{self, File};
use std::io;
use std::process::Command;
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
