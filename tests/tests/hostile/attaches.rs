//! Programs that can't be stopped: the parents of vforks, which are in D state until their children
//! call exec. An attach waits 5 s for such a one, and all other attaches waited with it.

use super::{MINUTE, stress};
use annex_tests::testbed::{Testbed, nobody, wait_for};
use nix::sys::signal::Signal;
use nix::sys::stat::Mode;
use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Attaches of one ordinary user that are taken at a time.
const AT_A_TIME: usize = 8;
/// What root's takes beside them: less than two of theirs, on any machine that these tests run on.
const PROMPT: Duration = Duration::from_secs(9);

/// A Python program that is a vfork's parent for as long as nobody writes to the pipe, which its
/// child opens before it calls exec.
fn parent(megabytes: usize) -> String {
    format!(
        "import os, sys\nheld = bytearray(b'x') * ({megabytes} << 20)\n\
         os.posix_spawn('/bin/true', ['true'], {{}}, file_actions=[(os.POSIX_SPAWN_OPEN, 0, sys.argv[1], os.O_RDONLY, 0)])"
    )
}

/// Nobody writes to it, until it is let go of.
struct Pipe(PathBuf);

impl Pipe {
    fn new(folder: &Path) -> Pipe {
        let pipe = folder.join("pipe");
        nix::unistd::mkfifo(&pipe, Mode::from_bits_truncate(0o666)).expect("the folder is ours");
        // Whatever the umask is.
        fs::set_permissions(&pipe, Permissions::from_mode(0o666)).expect("it is ours");
        Pipe(pipe)
    }

    fn let_go(&self) -> File {
        File::options().read(true).write(true).open(&self.0).expect("it is ours")
    }
}

fn state(pid: i32) -> char {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next()).unwrap_or('?')
}

fn python() -> PathBuf {
    PathBuf::from("/usr/bin/python3")
}

#[test]
fn attaches_that_wait_for_their_programs_hold_up_no_other() {
    let bed = Testbed::builder().shm();
    let pipe = Pipe::new(bed.path());
    let annex = nobody::copy("annex", bed.path(), 0o755);
    let mut parents: Vec<Child> = (0..=AT_A_TIME)
        .map(|_| {
            let mut command = nobody::command();
            command.arg(python()).arg("-c").arg(parent(1)).arg(&pipe.0).stdin(Stdio::null());
            command.spawn().expect("python3 runs")
        })
        .collect();
    let pids: Vec<i32> = parents.iter().map(|child| child.id() as i32).collect();
    wait_for("the parents to wait for their children", MINUTE, || pids.iter().all(|pid| state(*pid) == 'D'));
    let attach = |pid: i32| -> Command {
        let mut command = nobody::command();
        command.arg(&annex).args(["attach", "--no-wait", "--socket"]).arg(&bed.socket).arg(pid.to_string());
        command.stdin(Stdio::null()).stderr(Stdio::piped());
        command
    };
    let hostile = || pids[..AT_A_TIME].iter().map(|pid| attach(*pid).spawn().expect("annex runs"));
    let mut attaches: Vec<Child> = hostile().collect();
    wait_for("all of them to be under way", MINUTE, || bed.status().apps.len() == AT_A_TIME);
    let one_more = attach(pids[AT_A_TIME]).output().expect("annex runs");
    let said = String::from_utf8_lossy(&one_more.stderr).into_owned();
    let began = Instant::now();
    let mut root = Command::new(python());
    root.args(["-c", "import time; held = bytearray(b'x') * (32 << 20); time.sleep(600)"]);
    let root = bed.natively("root", root);
    bed.ask("attach", [&root.pid().to_string(), "--name", "honest", "--no-wait"]).succeeded();
    let took = began.elapsed();
    println!("root's attach took {took:?} beside {AT_A_TIME} that wait");
    assert!(took < PROMPT, "root's attach took {took:?}");
    assert!(!one_more.status.success() && said.contains("has 8 attaches under way"), "{said}");
    for attach in &mut attaches {
        assert!(!attach.wait().expect("it ends").success(), "a process in D state was attached");
    }
    drop(pipe.let_go());
    root.signal(Signal::SIGKILL);
    root.wait(MINUTE);
    for parent in &mut parents {
        let _ = parent.kill();
        let _ = parent.wait();
    }
}

/// The same for processes that an app has anyway, and that grow: the one thread that follows all
/// apps waited for each of them in turn.
#[test]
fn an_app_whose_processes_cant_be_stopped_is_followed_by_itself() {
    let bed = Testbed::builder().shm();
    let pipe = Pipe::new(bed.path());
    let annex = nobody::copy("annex", bed.path(), 0o755);
    let mut command = nobody::command();
    command.arg(&annex).args(["run", "--socket"]).arg(&bed.socket).args(["--name", "stiff", "--local", "8M", "--"]);
    // As many at a time as there can be: some are stopped before they have called vfork.
    let all = "for i in 1 2 3 4 5 6 7 8 9 10; do \"$0\" -c \"$1\" \"$2\" & done; wait";
    command.args(["sh", "-c", all]).arg(python()).arg(parent(24)).arg(&pipe.0).stdin(Stdio::null());
    let stiff = bed.natively("stiff", command);
    let in_d_state = || {
        let pids = bed.app("stiff").map(|app| app.pids).unwrap_or_default();
        pids.into_iter().filter(|pid| state(*pid) == 'D').count()
    };
    wait_for("processes that can't be stopped", MINUTE, || in_d_state() >= 5);
    let began = Instant::now();
    let honest = stress("honest", &bed);
    println!("root's program was followed {:?} after its start, beside {} in D state", began.elapsed(), in_d_state());
    assert!(began.elapsed() < PROMPT * 2, "{:?}", began.elapsed());
    honest.signal(Signal::SIGTERM);
    honest.wait(MINUTE).succeeded();
    let pids = bed.app("stiff").map(|app| app.pids).unwrap_or_default();
    for pid in pids {
        let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), Signal::SIGKILL);
    }
    drop(pipe.let_go());
    stiff.wait(MINUTE);
}
