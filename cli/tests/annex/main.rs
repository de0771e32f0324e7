//! The `annex` binary against a real control socket with a scripted pager and pool behind it.
//!
//! - [`annexd`]: that socket, and the binary asking it.
//! - [`doctor`]: `annex doctor`.
//! - [`terminal`]: the binary on a terminal whose screen the test reads.
//! - [`top`]: `annex top`.

mod annexd;
mod doctor;
mod terminal;
mod top;

use annex_daemon::control::Apps;
use annex_shared::api::{ApiError, AppInfo, ErrorCode, Limit, SlabInfo, Status};
use annexd::{Annexd, NOBODY, Said};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

#[test]
fn donors_are_listed_added_and_removed() {
    let annexd = Annexd::start();
    let listed = annexd.annex(&["donors"]);
    assert!(listed.code == Some(0) && listed.out.contains("rack1-db7") && listed.out.contains("lost"), "{listed:?}");
    let added = annexd.annex(&["donors", "add", "10.0.2.1:7411", "--name", "rack3-a", "--transport", "tcp"]);
    assert!(added.code == Some(0) && added.out.starts_with("added donor rack3-a"), "{added:?}");
    // As it is written in annexd's flags and in its configuration.
    let added = annexd.annex(&["donors", "add", "10.0.2.2:7411,transport=shm,name=rack3-b"]);
    assert!(added.code == Some(0) && added.out.starts_with("added donor rack3-b"), "{added:?}");
    let removed = annexd.annex(&["--json", "donors", "remove", "rack1-db7"]);
    assert!(removed.code == Some(0) && removed.out.contains("\"draining\": true"), "{removed:?}");
    assert_eq!(annexd.annex(&["donors", "remove", "nobody"]).code, Some(4));
    assert_eq!(annexd.annex(&["donors", "add", "h:1", "--transport", "rdma"]).code, Some(2));
}

#[test]
fn donors_are_not_for_everybody_to_change() {
    let annexd = Annexd::start();
    assert_eq!(annexd.annex_as_nobody(&["donors", "add", "h:1"]).code, Some(5));
    assert_eq!(annexd.annex_as_nobody(&["donors", "remove", "rack1-db7"]).code, Some(5));
    assert_eq!(annexd.annex_as_nobody(&["donors"]).code, Some(0));
}

fn error(kind: ErrorCode, message: &str, remedy: &str) -> ApiError {
    ApiError { kind, message: message.into(), remedy: remedy.into() }
}

#[test]
fn a_run_command_is_the_commands_own_exit_code() {
    let annexd = Annexd::start();
    assert_eq!(annexd.annex(&["run", "--", "sh", "-c", "exit 7"]).code, Some(7));
    assert_eq!(annexd.annex(&["run", "true"]).code, Some(0));
}

#[test]
fn a_run_command_gets_its_input_arguments_and_app_id() {
    let annexd = Annexd::start();
    let said = annexd.annex(&["run", "--name", "job", "--", "sh", "-c", "echo \"$ANNEX_APP $$ $1\"", "sh", "--json"]);
    let app = annexd.apps.find("job").unwrap();
    assert_eq!(said.out, format!("{} {} --json\n", app.id, app.pids[0]));
    assert_eq!(said.err, "");
}

#[test]
fn a_signal_kills_the_command_itself() {
    let annexd = Annexd::start();
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let mut child = annexd.command(&["run", "--", "sleep", "1000"]).spawn().unwrap();
        while fs::read_to_string(format!("/proc/{}/comm", child.id())).unwrap() != "sleep\n" {
            assert_eq!(child.try_wait().unwrap(), None);
            thread::sleep(Duration::from_millis(5));
        }
        kill(Pid::from_raw(child.id() as i32), signal).unwrap();
        assert_eq!(child.wait().unwrap().signal(), Some(signal as i32));
    }
}

#[test]
fn a_run_command_finds_signals_and_descriptors_as_without_annex() {
    let annexd = Annexd::start();
    let probe = "grep -E '^(SigIgn|SigBlk|SigCgt)' /proc/self/status; ls /proc/self/fd";
    for prelude in ["", "trap '' PIPE; ", "trap '' HUP; "] {
        let run = |prefix: &str| {
            let script = format!("{prelude}{prefix} sh -c \"$0\"");
            let output = Command::new("sh").args(["-c", &script, probe]).stdin(Stdio::null()).output().unwrap();
            Said::of(output)
        };
        let native = run("exec");
        let under = run(&format!("exec {} --socket {} run", env!("CARGO_BIN_EXE_annex"), annexd.socket().display()));
        assert_eq!((native.code, under.code), (Some(0), Some(0)), "{under:?}");
        assert_eq!(native.out, under.out, "after {prelude:?}");
    }
}

#[test]
fn a_command_that_can_not_be_executed_leaves_no_app_behind() {
    let annexd = Annexd::start();
    let missing = annexd.annex(&["run", "--", "no-such-command-here"]);
    assert_eq!(missing.code, Some(127));
    assert_eq!(missing.err, "annex: failed to run 'no-such-command-here': command not found\n");
    let folder = annexd.annex(&["run", "--", "/etc"]);
    assert_eq!(folder.code, Some(126));
    assert!(folder.err.starts_with("annex: failed to run '/etc': Permission denied"), "{folder:?}");
    assert!(annexd.apps.apps().is_empty());
}

#[test]
fn without_annexd_run_fails_before_the_command_starts() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("annexd.sock");
    let witness = dir.path().join("ran");
    let annex = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_annex"));
        Said::of(command.arg("--socket").arg(&socket).args(args).output().unwrap())
    };
    let said = annex(&["run", "--", "touch", witness.to_str().unwrap()]);
    assert_eq!(said.code, Some(125));
    let expected = format!(
        "annex: annexd is not running: nothing answers on {}\n  remedy: start it (systemctl start annexd), or name its socket with --socket; \
         programs that it paged wait for the next one as long as takeover_wait says\n",
        socket.display()
    );
    assert_eq!(said.err, expected);
    assert!(!witness.exists());
    assert_eq!(annex(&["status"]).code, Some(3));
    assert_eq!(annex(&["events"]).code, Some(3));
}

#[test]
fn without_donors_run_and_attach_fail_if_donors_are_required() {
    let annexd = Annexd::start();
    annexd.pool.fail(error(ErrorCode::NoDonors, "2 donors are needed, none is up", "start annex-agent on a donor"));
    let said = annexd.annex(&["run", "--require-donors", "--", "true"]);
    assert_eq!(said.code, Some(125));
    assert_eq!(said.err, "annex: 2 donors are needed, none is up\n  remedy: start annex-agent on a donor\n");
    assert_eq!(annexd.annex(&["attach", "--require-donors", "1"]).code, Some(9));
}

#[test]
fn a_bad_limit_is_explained_with_runs_own_exit_code() {
    let annexd = Annexd::start();
    let run = annexd.annex(&["run", "--local", "12Q", "--", "true"]);
    assert_eq!(run.code, Some(125));
    assert!(run.err.contains("bad limit '12Q': give bytes with a unit (512M, 2G) or a share (50%)"), "{run:?}");
    assert_eq!(annexd.annex(&["limit", "x", "0%"]).code, Some(2));
    assert_eq!(annexd.annex(&["run"]).code, Some(125));
}

#[test]
fn an_attach_waits_until_the_app_is_down_to_its_limit() {
    let annexd = Annexd::start();
    let said = annexd.annex(&["attach", "4242", "--local", "256M", "--name", "redis"]);
    assert_eq!(said.code, Some(0), "{said:?}");
    assert_eq!(said.out, "attached redis (id 1): 256 MiB resident (limit 256 MiB), 768 MiB in the pool\n");
    let app: AppInfo = annexd.annex(&["attach", "4343", "--no-wait", "--json"]).json();
    assert_eq!((app.resident, app.evicted), (1 << 30, 0));
}

#[test]
fn attach_errors_say_why_and_have_their_own_exit_codes() {
    let annexd = Annexd::start();
    annexd.apps.fail_attach(error(ErrorCode::NotFound, "there is no process 999999", ""));
    let missing = annexd.annex(&["attach", "999999"]);
    assert_eq!((missing.code, missing.err.as_str()), (Some(4), "annex: there is no process 999999\n"));
    annexd.apps.add("redis", 77, 0);
    assert_eq!(annexd.annex(&["attach", "77"]).code, Some(6));
    annexd.apps.fail_attach(error(ErrorCode::Unsuitable, "process 5 is a 32-bit program", "run it natively"));
    assert_eq!(annexd.annex(&["attach", "5"]).code, Some(7));
    annexd.apps.fail_attach(error(ErrorCode::NoMemory, "the pool is full", "add donors"));
    let full = annexd.annex(&["attach", "6", "--json"]);
    assert_eq!(full.code, Some(10));
    let json: serde_json::Value = serde_json::from_str(&full.err).unwrap();
    assert_eq!(json["error"]["kind"], "no_memory");
    assert_eq!(json["error"]["remedy"], "add donors");
}

#[test]
fn an_ordinary_user_can_not_attach_roots_process() {
    let annexd = Annexd::start();
    let said = annexd.annex_as_nobody(&["attach", &std::process::id().to_string()]);
    assert_eq!(said.code, Some(5));
    let expected = format!(
        "annex: may not attach process {}: it belongs to user 0, you are user {NOBODY}\n  remedy: ask as root or as a member of group annex\n",
        std::process::id()
    );
    assert_eq!(said.err, expected);
    let run = annexd.annex_as_nobody(&["run", "--name", "theirs", "--", "id", "-u"]);
    assert_eq!((run.code, run.out.as_str()), (Some(0), "65534\n"), "{run:?}");
    assert_eq!(annexd.apps.find("theirs").map(|app| app.uid), Some(NOBODY));
}

#[test]
fn a_detach_tells_how_much_came_back() {
    let annexd = Annexd::start();
    annexd.apps.add("redis", 77, 0);
    assert_eq!(annexd.annex(&["detach", "redis"]).out, "detached redis (512 MiB brought back)\n");
    assert_eq!(annexd.annex(&["detach", "redis"]).code, Some(4));
    annexd.apps.add("redis", 77, 0);
    let json: serde_json::Value = annexd.annex(&["detach", "77", "--json"]).json();
    assert_eq!(json["brought_back"], 512 << 20);
}

#[test]
fn a_detach_that_fails_half_way_says_so() {
    let annexd = Annexd::start();
    annexd.apps.add("redis", 77, 0);
    annexd.apps.fail_detach(error(ErrorCode::NoMemory, "1 GiB of local memory is missing", "free it"));
    let said = annexd.annex(&["detach", "redis"]);
    assert_eq!(said.code, Some(10));
    assert_eq!(said.err, "annex: 1 GiB of local memory is missing\n  remedy: free it\n");
}

#[test]
fn a_limit_can_be_changed() {
    let annexd = Annexd::start();
    annexd.apps.add("redis", 77, 0);
    assert_eq!(annexd.annex(&["limit", "redis", "512M"]).out, "redis may keep 512 MiB resident\n");
    let app: AppInfo = annexd.annex(&["limit", "77", "25%", "--json"]).json();
    assert_eq!(app.local, Limit::Percent(25));
}

#[test]
fn annexd_can_be_asked_to_find_a_limit() {
    let annexd = Annexd::start();
    annexd.apps.add("redis", 77, 0);
    let said = annexd.annex(&["limit", "redis", "auto"]);
    assert_eq!(said.out, "annexd finds the limit of redis: it may wait 1 % of the time\n");
    annexd.annex(&["limit", "redis", "512M"]);
    annexd.annex(&["limit", "redis", "auto:2.5%"]);
    for command in ["apps", "status"] {
        let listed = annexd.annex(&[command]).out;
        assert!(listed.contains("auto (512 MiB)"), "{listed}");
        let line = "  redis: stall 0.2 %, target 2.5 %; lowering: waited 0.2 % of 1 %";
        assert!(listed.lines().any(|l| l == line), "{listed}");
    }
    for (args, code) in [
        (&["run", "--local", "auto:0%", "--", "true"][..], 125),
        (&["attach", "4242", "--local", "auto:200%"][..], 2),
        (&["limit", "redis", "auto:x"][..], 2),
    ] {
        let said = annexd.annex(args);
        assert_eq!(said.code, Some(code), "{said:?}");
        assert!(said.err.contains("behind auto: stands the share of time"), "{said:?}");
    }
}

#[test]
fn an_app_without_a_name_is_called_after_its_program() {
    let annexd = Annexd::start();
    assert_eq!(annexd.annex(&["run", "--", "/usr/bin/env", "true"]).code, Some(0));
    let names: Vec<String> = annexd.apps.apps().into_iter().map(|app| app.name).collect();
    assert_eq!(names, ["env"]);
}

#[test]
fn few_bytes_are_no_limit_without_a_unit() {
    let annexd = Annexd::start();
    annexd.apps.add("redis", 77, 0);
    for (args, code) in [
        (&["run", "--local", "50", "--", "true"][..], 125),
        (&["attach", "4242", "--local", "50"][..], 2),
        (&["limit", "redis", "50"][..], 2),
    ] {
        let said = annexd.annex(args);
        assert_eq!(said.code, Some(code), "{said:?}");
        assert!(said.err.contains("give a share (50%) or a unit (50M)"), "{said:?}");
    }
    let app: AppInfo = annexd.annex(&["limit", "redis", "64K", "--json"]).json();
    assert_eq!(app.local, Limit::Bytes(64 << 10));
}

#[test]
fn names_from_others_reach_no_terminal_raw() {
    let annexd = Annexd::start();
    let app = annexd.apps.add("a\x1b[2J\nforged\u{9b}\u{202e}", 77, 0);
    for args in [&["apps"][..], &["status"], &["apps", "--json"], &["limit", "77", "25%"], &["detach", "no\x1b[2J"]] {
        let said = annexd.annex(args);
        let odd = |c: char| c != '\n' && (c.is_control() || c == '\u{202e}');
        assert!(!said.out.contains(odd) && !said.err.contains(odd), "{args:?}: {said:?}");
        assert!(!said.out.lines().any(|line| line.starts_with("forged")), "{args:?}: {said:?}");
    }
    assert_eq!(annexd.annex(&["apps", "--json"]).json::<Vec<AppInfo>>()[0].name, app.name);
}

/// Sends SIGINT as soon as `is_time`, and what came of it.
fn interrupted(mut command: Command, is_time: impl Fn() -> bool) -> Said {
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    while !is_time() {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    kill(Pid::from_raw(child.id() as i32), Signal::SIGINT).unwrap();
    Said::of(child.wait_with_output().unwrap())
}

#[test]
fn sigint_during_an_attach_says_that_it_goes_on_and_how_to_undo_it() {
    let annexd = Annexd::start();
    annexd.apps.shrink_by(2 << 20);
    // Seen above its limit by this many looks: the command is waiting.
    let said = interrupted(annexd.command(&["attach", "4242", "--name", "redis"]), || {
        annexd.apps.find("redis").is_some_and(|app| app.evicted > 0)
    });
    assert_eq!(said.code, Some(130), "{said:?}");
    assert!(said.err.contains("redis stays attached") && said.err.contains("annex detach redis undoes it"), "{said:?}");
}

#[test]
fn sigint_during_a_detach_says_that_it_goes_on() {
    let annexd = Annexd::start();
    annexd.apps.add("redis", 77, 0);
    let hold = annexd.apps.hold_detach();
    let said = interrupted(annexd.command(&["detach", "redis"]), || annexd.apps.is_held());
    assert_eq!(said.code, Some(130), "{said:?}");
    assert!(said.err.contains("goes on to bring the memory of redis back"), "{said:?}");
    drop(hold);
}

#[test]
fn status_in_a_pipe_has_each_thing_on_one_line() {
    let annexd = Annexd::start();
    let said = annexd.annex(&["status"]);
    assert!(said.out.lines().any(|line| line.starts_with("warning:") && line.len() > 80), "{}", said.out);
    assert!(said.out.lines().any(|line| line.starts_with("health:") && line.len() > 80), "{}", said.out);
}

#[test]
fn status_check_tells_the_health_by_its_exit_code() {
    let annexd = Annexd::start();
    // One of two donors is lost, and of 16 extents one copy is left.
    assert_eq!(annexd.annex(&["status"]).code, Some(0));
    let said = annexd.annex(&["status", "--check"]);
    assert!(said.code == Some(2) && said.out.contains("health: AT RISK: 16 of 16"), "{said:?}");
}

#[test]
fn events_are_listed_even_if_there_are_none() {
    let annexd = Annexd::start();
    assert_eq!(annexd.annex(&["events"]).out, "no events\n");
    assert_eq!(annexd.annex(&["events", "--json", "--since", "10m"]).out, "[]\n");
    let wrong = annexd.annex(&["events", "--since", "yesterday"]);
    assert!(wrong.code == Some(2) && wrong.err.contains("give a number with a unit"), "{wrong:?}");
}

#[test]
fn status_tells_what_needs_attention() {
    let annexd = Annexd::start();
    annexd.apps.add("redis-server.service", 77, 0);
    let said = annexd.annex(&["status"]);
    assert_eq!(said.code, Some(0), "{said:?}");
    for part in [
        "rack1-db7",
        "10.0.0.7:7411",
        "tcp",
        "lost",
        "16/56",
        "redis-server",
        "16 degraded",
        "warning: donor rack2-db9",
    ] {
        assert!(said.out.contains(part), "{part} is missing in\n{}", said.out);
    }
    let status: Status = annexd.annex(&["status", "--json"]).json();
    assert_eq!(status.donors.len(), 2);
}

#[test]
fn apps_and_slabs_are_listed_for_people_and_for_programs() {
    let annexd = Annexd::start();
    assert_eq!(annexd.annex(&["apps"]).out, "no apps (annex run and annex attach make them)\n");
    assert_eq!(annexd.annex(&["apps", "--json"]).json::<Vec<AppInfo>>().len(), 0);
    annexd.apps.add("redis", 77, 0);
    let text = annexd.annex(&["apps"]).out;
    assert!(
        text.starts_with("ID  APP    PID  USER  STATE    LOCAL  RESIDENT  IN POOL  FAULTS     P50      P99\n"),
        "{text}"
    );
    assert!(text.contains(" 1  redis  77   root  running    50%   768 MiB  256 MiB    1.2k  8.5 µs"), "{text}");
    assert!(annexd.annex(&["slabs"]).out.contains("rack1-db7     3       1     0  64 MiB  12 MiB  tcp  live"));
    assert_eq!(annexd.annex(&["slabs", "--json"]).json::<Vec<SlabInfo>>()[0].slab, 3);
}

#[test]
fn a_reader_that_has_seen_enough_is_no_error() {
    let annexd = Annexd::start();
    let mut child = annexd.command(&["status"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), output.stderr), (Some(0), Vec::new()));
}

#[test]
fn the_version_is_told() {
    let said = Said::of(Command::new(env!("CARGO_BIN_EXE_annex")).arg("--version").output().unwrap());
    assert_eq!(said.out, format!("annex {}\n", env!("CARGO_PKG_VERSION")));
}
