//! `annex top` on a terminal, and without one.

use crate::annexd::{Annexd, NOBODY, Said};
use crate::terminal::Terminal;
use annex_daemon::control::Apps;
use annex_shared::api::{ErrorCode, Limit};
use nix::sys::signal::{Signal, kill};
use nix::sys::termios::LocalFlags;
use nix::unistd::Pid;
use std::process::{Command, Stdio};
use std::time::Duration;

const ENTER: &str = "\x1b[?1049h";
const LEAVE: &str = "\x1b[?1049l";
const SHOW_CURSOR: &str = "\x1b[?25h";

/// The screen that was there before, and the cursor, are back.
fn assert_screen_is_back(terminal: &Terminal) {
    let written = terminal.written();
    assert!(written.contains(ENTER), "{written:?}");
    let (left, shown) = (written.rfind(LEAVE), written.rfind(SHOW_CURSOR));
    assert!(left > written.rfind(ENTER) && shown > written.rfind("\x1b[?25l"), "{written:?}");
}

#[test]
fn q_leaves_the_terminal_as_it_was() {
    let annexd = Annexd::start();
    annexd.apps.add("redis", 77, 0);
    let (mut terminal, before) = Terminal::run(&annexd.command(&["top"]));
    terminal.wait_shows("!! AT RISK: 16 of 16 extents have one copy left");
    terminal.wait_shows("> redis");
    assert!(!terminal.settings().local_flags.contains(LocalFlags::ICANON), "keys come one by one");
    terminal.press("q");
    assert_eq!(terminal.wait_ends().code(), Some(0));
    assert_eq!(terminal.settings(), before);
    assert_screen_is_back(&terminal);
}

#[test]
fn ctrl_c_and_sigterm_leave_the_terminal_as_it_was() {
    let annexd = Annexd::start();
    let (mut terminal, before) = Terminal::run(&annexd.command(&["top"]));
    terminal.wait_shows("rack1-db7");
    terminal.press("\x03");
    assert_eq!(terminal.wait_ends().code(), Some(0));
    assert_eq!(terminal.settings(), before);
    assert_screen_is_back(&terminal);

    let (mut terminal, before) = Terminal::run(&annexd.command(&["top"]));
    terminal.wait_shows("rack1-db7");
    kill(Pid::from_raw(terminal.pid()), Signal::SIGTERM).unwrap();
    assert_eq!(terminal.wait_ends().code(), Some(143));
    assert_eq!(terminal.settings(), before);
    assert_screen_is_back(&terminal);
}

#[test]
fn a_dead_annexd_is_said_and_waited_for() {
    let dir = Annexd::folder();
    let mut command = Command::new(env!("CARGO_BIN_EXE_annex"));
    command.arg("--socket").arg(dir.path().join("annexd.sock")).arg("top");
    let (mut terminal, _) = Terminal::run(&command);
    terminal.wait_shows("annexd is not running: nothing answers on");
    let annexd = Annexd::start_in(dir);
    annexd.apps.add("redis", 77, 0);
    terminal.wait_shows("> redis");
    terminal.wait_shows("by what hurts");
    drop(annexd);
    terminal.wait_shows("waiting for it; below is what it said last");
    terminal.press("q");
    assert_eq!(terminal.wait_ends().code(), Some(0));
}

#[test]
fn limits_are_changed_and_apps_are_detached_by_keys() {
    let annexd = Annexd::start();
    annexd.apps.add("redis", 77, 0);
    let (mut terminal, _) = Terminal::run(&annexd.command(&["top"]));
    terminal.wait_shows("> redis");
    terminal.press("l25%\r");
    terminal.wait_shows("redis may keep 25% resident");
    assert_eq!(annexd.apps.find("redis").map(|app| app.local), Some(Limit::Percent(25)));
    terminal.press("d");
    terminal.wait_shows("detach redis and bring");
    terminal.press("n\r");
    terminal.wait_shows("redis (id 1), running");
    terminal.press("dy");
    terminal.wait_shows("detached redis (512 MiB brought back)");
    terminal.wait_shows("the app has ended");
    assert!(annexd.apps.find("redis").is_none());
}

#[test]
fn quitting_while_a_detach_runs_says_that_it_goes_on() {
    let annexd = Annexd::start();
    annexd.apps.add("redis", 77, 0);
    let hold = annexd.apps.hold_detach();
    let (mut terminal, _) = Terminal::run(&annexd.command(&["top"]));
    terminal.wait_shows("> redis");
    terminal.press("dyq");
    assert_eq!(terminal.wait_ends().code(), Some(0));
    let written = terminal.written();
    let (_, after) = written.rsplit_once(LEAVE).unwrap();
    assert!(after.contains("annexd goes on with what was asked"), "{after:?}");
    assert!(annexd.apps.is_held());
    drop(hold);
}

#[test]
fn what_annexd_refuses_is_shown_with_the_remedy() {
    let annexd = Annexd::start();
    annexd.apps.add("redis", 77, 0);
    annexd.apps.fail_detach(crate::error(ErrorCode::NoMemory, "1 GiB of local memory is missing", "free it"));
    let (mut terminal, _) = Terminal::run(&annexd.command(&["top"]));
    terminal.wait_shows("> redis");
    terminal.press("dy");
    terminal.wait_shows("1 GiB of local memory is missing: free it");
    assert!(annexd.apps.find("redis").is_some());
}

#[test]
fn an_ordinary_user_sees_their_own_apps() {
    let annexd = Annexd::start();
    annexd.apps.add("redis", 77, 0);
    annexd.apps.add("theirs", 78, NOBODY);
    let command = annexd.command_as_nobody(&["top"]);
    // A terminal is opened by root, and the program on it becomes nobody.
    let mut as_nobody = Command::new("setpriv");
    as_nobody.args(["--reuid", &NOBODY.to_string(), "--regid", &NOBODY.to_string(), "--clear-groups"]);
    as_nobody.arg(command.get_program()).args(command.get_args());
    let (mut terminal, before) = Terminal::run(&as_nobody);
    terminal.wait_shows("> theirs");
    terminal.press("q");
    assert_eq!(terminal.wait_ends().code(), Some(0));
    assert!(!terminal.written().contains("redis"));
    assert_eq!(terminal.settings(), before);
}

#[test]
fn a_screen_on_which_nothing_changes_is_not_drawn_again() {
    let annexd = Annexd::start();
    let (terminal, _) = Terminal::run(&annexd.command(&["top"]));
    terminal.wait_shows("no apps");
    // The curve of the pool grows by a letter a second.
    std::thread::sleep(Duration::from_secs(2));
    let before = terminal.written().len();
    std::thread::sleep(Duration::from_secs(3));
    let more = terminal.written().len() - before;
    assert!(more < 3 * 100, "{more} bytes in three seconds");
}

#[test]
fn without_a_terminal_it_is_said_what_to_do() {
    let annexd = Annexd::start();
    let said = annexd.annex(&["top"]);
    assert_eq!(said.code, Some(2));
    assert_eq!(
        said.err,
        "annex: annex top needs a terminal, and standard input is none\n  remedy: annex top --once prints one frame as text\n"
    );
}

#[test]
fn one_frame_is_for_scripts() {
    let annexd = Annexd::start();
    annexd.apps.add("redis", 77, 0);
    let said = annexd.annex(&["top", "--once"]);
    assert_eq!((said.code, said.err.as_str()), (Some(0), ""));
    for part in ["!! AT RISK", "pool", "rack2-db9", "lost", "redis", "FAULTS/S", "STALL"] {
        assert!(said.out.contains(part), "{part} is missing in\n{}", said.out);
    }
    assert!(!said.out.contains('\x1b') && said.out.lines().all(|line| !line.ends_with(' ')), "{}", said.out);
    let json: serde_json::Value = annexd.annex(&["top", "--once", "--json"]).json();
    assert_eq!((&json["apps"][0]["app"]["name"], &json["apps"][0]["faults_per_s"]), (&"redis".into(), &0.0.into()));
    assert_eq!(annexd.annex(&["top", "--once", "--interval", "1ms"]).code, Some(2));
}

#[test]
fn one_frame_needs_annexd() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_annex"));
    let dir = Annexd::folder();
    command.arg("--socket").arg(dir.path().join("annexd.sock")).args(["top", "--once"]).stdin(Stdio::null());
    assert_eq!(Said::of(command.output().unwrap()).code, Some(3));
}
