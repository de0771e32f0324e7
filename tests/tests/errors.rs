//! Bad input and bad luck: each has a clear message and an exit code of its own, and nothing is
//! lost.

use annex_shared::api::DonorState;
use annex_tests::testbed::census::stubs_of;
use annex_tests::testbed::{Donor, Job, Outcome, Testbed, bins, directory, wait_for};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

const MINUTE: Duration = Duration::from_secs(60);

// Exit codes of `annex` (see `annex --help`).
const BAD_REQUEST: i32 = 2;
const NOT_FOUND: i32 = 4;
const FORBIDDEN: i32 = 5;
const ALREADY: i32 = 6;
const UNSUITABLE: i32 = 7;
const NO_DONORS: i32 = 9;
const NOT_STARTED: i32 = 125;

/// It failed with this code, and said all of `words` on standard error.
#[track_caller]
fn refused(outcome: &Outcome, code: i32, words: &[&str]) {
    let said = outcome.stderr.to_lowercase();
    assert!(
        outcome.code() == code && words.iter().all(|w| said.contains(&w.to_lowercase())),
        "wanted {code} and {words:?}: {outcome}"
    );
    assert!(!said.contains("panicked"), "{outcome}");
}

fn stress(seconds: u64, size: &str) -> Command {
    let mut command = Command::new(bins::find("annex-stress"));
    command.args(["--size", size, "--threads", "2", "--seconds", &seconds.to_string(), "--dir"]).arg(directory());
    command
}

fn busy(bed: &Testbed) -> Job {
    let mut job = bed.natively("busy", stress(0, "32M"));
    job.wait_says("ready", MINUTE);
    job
}

fn end(job: Job) {
    job.signal(Signal::SIGTERM);
    job.wait(2 * MINUTE).succeeded();
}

fn attach(bed: &Testbed, pid: i32) -> Outcome {
    bed.ask("attach", [&pid.to_string(), "--local", "16M"])
}

#[test]
fn a_process_that_does_not_exist_is_named() {
    let bed = Testbed::builder().shm();
    // Above pid_max, which is at most 2^22.
    refused(&attach(&bed, 5_000_000), NOT_FOUND, &["5000000"]);
    refused(&bed.ask("detach", ["nothing-of-that-name"]), NOT_FOUND, &["nothing-of-that-name"]);
    refused(&bed.ask("limit", ["nothing-of-that-name", "1G"]), NOT_FOUND, &["nothing-of-that-name"]);
}

#[test]
fn a_limit_that_makes_no_sense_is_named() {
    let bed = Testbed::builder().shm();
    refused(&bed.ask("run", ["--local", "many", "--", "true"]), NOT_STARTED, &["many"]);
    refused(&bed.ask("attach", ["1", "--local", "0%"]), BAD_REQUEST, &["0%"]);
}

#[test]
fn a_run_without_a_name_is_named_after_its_program_and_the_next_one_after_its_process_too() {
    let bed = Testbed::builder().shm();
    let run = |job| bed.natively(job, bed.annex("run", ["--local", "16M", "--", "sleep", "600"]));
    let first = run("first");
    bed.wait_app("sleep", MINUTE, |app| app.pids == [first.pid()]);
    let second = run("second");
    bed.wait_app(&format!("sleep-{}", second.pid()), MINUTE, |app| app.pids == [second.pid()]);
    for job in [first, second] {
        job.signal(Signal::SIGKILL);
        job.wait(MINUTE);
    }
}

#[test]
fn a_donor_that_is_removed_already_is_removed_when_asked_again() {
    let bed = Testbed::builder().donor(Donor::shm()).donor(Donor::shm()).donor(Donor::tcp()).start();
    let name = bed.status().donors[2].name.clone();
    let remove = || bed.ask("donors", ["remove", &name]);
    remove().succeeded();
    wait_for("the donor to be gone", MINUTE, || bed.status().donors.len() == 2);
    for _ in 0..2 {
        let said = remove().succeeded().stdout;
        assert_eq!(said, format!("donor {name} is removed: nothing of this host's lies there\n"));
    }
    refused(&bed.ask("donors", ["remove", "nobody"]), NOT_FOUND, &["nobody"]);
}

#[test]
fn a_process_is_attached_once() {
    let bed = Testbed::builder().shm();
    let job = busy(&bed);
    attach(&bed, job.pid()).succeeded();
    refused(&attach(&bed, job.pid()), ALREADY, &[&job.pid().to_string()]);
    end(job);
}

/// `annex` as user nobody.
fn as_nobody(bed: &Testbed, args: &[&str]) -> Command {
    let annex = bed.path().join("annex");
    std::fs::copy(bins::find("annex"), &annex).unwrap();
    std::fs::set_permissions(&annex, PermissionsExt::from_mode(0o755)).unwrap();
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(annex);
    command.arg(args[0]).arg("--socket").arg(&bed.socket).args(&args[1..]);
    command
}

#[test]
fn another_users_process_is_not_attached() {
    let bed = Testbed::builder().shm();
    let job = busy(&bed);
    let pid = job.pid().to_string();
    let outcome = bed.natively("nobody", as_nobody(&bed, &["attach", &pid])).wait(MINUTE);
    refused(&outcome, FORBIDDEN, &[&pid]);
    // Nor is another user's app seen or let go.
    attach(&bed, job.pid()).succeeded();
    let outcome = bed.natively("nobody", as_nobody(&bed, &["apps", "--json"])).wait(MINUTE).succeeded();
    assert_eq!(outcome.stdout.trim(), "[]");
    let outcome = bed.natively("nobody", as_nobody(&bed, &["detach", &pid])).wait(MINUTE);
    assert!(matches!(outcome.code(), FORBIDDEN | NOT_FOUND), "{outcome}");
    end(job);
}

/// A 32-bit program of 20 bytes of code: sleeps for ever.
fn tiny_32_bit_program(dir: &std::path::Path) -> PathBuf {
    const BASE: u32 = 0x0804_8000;
    const HEADERS: u32 = 52 + 32;
    let code: [u8; 9] = [
        0xb8, 29, 0, 0, 0, // mov eax, 29 (pause)
        0xcd, 0x80, // int 0x80
        0xeb, 0xf7, // jmp back
    ];
    let mut elf: Vec<u8> = vec![0x7f, b'E', b'L', b'F', 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let half = |elf: &mut Vec<u8>, n: u16| elf.extend_from_slice(&n.to_le_bytes());
    let word = |elf: &mut Vec<u8>, n: u32| elf.extend_from_slice(&n.to_le_bytes());
    half(&mut elf, 2); // an executable
    half(&mut elf, 3); // for i386
    for n in [1, BASE + HEADERS, 52, 0, 0] {
        word(&mut elf, n); // version, entry, program headers, no section headers, no flags
    }
    for n in [52, 32, 1, 0, 0, 0] {
        half(&mut elf, n); // sizes and numbers of headers
    }
    let size = HEADERS + code.len() as u32;
    for n in [1, 0, BASE, BASE, size, size, 5, 0x1000] {
        word(&mut elf, n); // one segment to load, readable and executable
    }
    elf.extend_from_slice(&code);
    let path = dir.join("tiny32");
    std::fs::write(&path, elf).unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
    path
}

#[test]
fn a_32_bit_process_is_refused() {
    let bed = Testbed::builder().shm();
    let path = tiny_32_bit_program(bed.path());
    match Command::new(&path).spawn() {
        // Kernels without IA32 emulation can't have such a process at all.
        Err(e) if e.raw_os_error() == Some(libc::ENOEXEC) => {
            eprintln!("NOT TESTED: this kernel runs no 32-bit programs");
        }
        Err(e) => panic!("{}: {e}", path.display()),
        Ok(mut child) => {
            let outcome = attach(&bed, child.id() as i32);
            let running = child.try_wait().unwrap().is_none();
            child.kill().unwrap();
            child.wait().unwrap();
            refused(&outcome, UNSUITABLE, &["32-bit"]);
            assert!(running, "the process did not live through the refusal");
        }
    }
}

#[test]
fn a_process_that_a_debugger_has_is_refused_and_goes_on() {
    let bed = Testbed::builder().shm();
    let job = busy(&bed);
    let pid = nix::unistd::Pid::from_raw(job.pid());
    nix::sys::ptrace::seize(pid, nix::sys::ptrace::Options::empty()).expect("root may trace");
    let outcome = attach(&bed, job.pid());
    nix::sys::ptrace::interrupt(pid).expect("we trace it");
    nix::sys::wait::waitpid(pid, Some(nix::sys::wait::WaitPidFlag::__WALL)).expect("it stops");
    nix::sys::ptrace::detach(pid, None).expect("we trace it");
    refused(&outcome, UNSUITABLE, &["traced"]);
    attach(&bed, job.pid()).succeeded();
    end(job);
}

#[test]
fn kernel_threads_and_annexd_itself_are_refused() {
    let bed = Testbed::builder().shm();
    refused(&attach(&bed, 2), UNSUITABLE, &["2"]);
    let outcome = attach(&bed, bed.annexd.pid());
    assert!(!outcome.status.success(), "annexd must not page itself: {outcome}");
    bed.status();
}

#[test]
fn where_donors_are_required_and_missing_nothing_is_attached_and_the_reason_is_said() {
    let bed = Testbed::builder().donor(Donor::tcp().absent()).donor(Donor::tcp().absent()).start();
    let outcome = bed.ask("run", ["--require-donors", "--", "true"]);
    refused(&outcome, NOT_STARTED, &["donor"]);
    let job = busy(&bed);
    let attach = bed.ask("attach", ["--require-donors", &job.pid().to_string()]);
    refused(&attach, NO_DONORS, &["donor", "127.0.0.1"]);
    end(job);
    let status = bed.ask("status", [] as [&str; 0]).succeeded();
    assert!(status.stdout.contains("127.0.0.1"), "the address that leads nowhere is shown: {status}");
}

/// It did not start: a reboot of the donors kept every program down.
#[test]
fn a_program_starts_without_donors_says_so_and_is_paged_when_they_come() {
    let mut bed = Testbed::builder().donor(Donor::shm()).donor(Donor::tcp()).start();
    bed.agents.iter_mut().for_each(|agent| agent.kill());
    let up = |bed: &Testbed| bed.status().donors.iter().filter(|donor| donor.state == DonorState::Up).count();
    wait_for("the donors to be missed", MINUTE, || up(&bed) == 0);
    let mut job = bed.run("early", "16M", stress(0, "48M"));
    job.wait_says("ready", 2 * MINUTE);
    let said = job.process.stderr();
    assert!(said.contains("0 of 2 donors") && said.contains("keeps its pages until they are"), "{said}");
    bed.wait_app("early", MINUTE, |app| app.note.contains("no donor takes pages") && app.evicted == 0);
    (0..2).for_each(|nth| bed.start_agent_again(nth));
    bed.wait_app("early", 2 * MINUTE, |app| app.evicted > 16 << 20);
    end(job);
}

#[test]
fn with_one_donor_of_two_missing_the_missing_one_is_named() {
    let bed = Testbed::builder().donor(Donor::shm()).donor(Donor::tcp().absent()).start();
    let job = busy(&bed);
    refused(&bed.ask("attach", ["--require-donors", &job.pid().to_string()]), NO_DONORS, &["tcp1"]);
    end(job);
}

#[test]
fn when_the_pool_is_full_the_app_keeps_its_pages_and_stays_right() {
    let bed = Testbed::builder().donor(Donor::shm().capacity("128M")).donor(Donor::tcp().capacity("128M")).start();
    // No children: what they share with their parent is in the pool once and counted for each.
    let mut greedy = stress(15, "320M");
    greedy.args(["--without", "fork,exec"]);
    let outcome = bed.run("greedy", "32M", greedy).wait(3 * MINUTE).succeeded().was_paged(5_000, 1_000);
    assert!(outcome.seen.max_evicted_bytes <= 128 << 20, "{outcome}");
    // At the first looks it is not known yet. It was told at the last look only by chance once:
    // pages were evicted again and again, each as another made room.
    let (looks, notes) = (outcome.seen.looks_above, outcome.seen.notes_above);
    assert!(
        looks >= 20 && notes * 10 >= looks * 9,
        "that eviction stands still is said at {notes} of {looks} looks: {outcome}"
    );
}

#[test]
fn an_unknown_key_in_the_configuration_is_named_with_the_nearest_known_one() {
    let dir = tempfile::tempdir().unwrap();
    for (program, text, wrong, right) in [
        ("annexd", "[pool]\nreplcas = 2\n", "replcas", "replicas"),
        ("annex-agent", "capcity = \"1G\"\n", "capcity", "capacity"),
    ] {
        let file = dir.path().join("config.toml");
        std::fs::write(&file, text).unwrap();
        let output: Output = Command::new(bins::find(program)).arg("check-config").arg(&file).output().unwrap();
        let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(!output.status.success() && said.contains(wrong) && said.contains(right), "{program}: {said}");
    }
}

#[test]
fn check_config_refuses_what_annexd_could_put_no_page_with() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("annexd.toml");
    let check = |args: &[&str]| {
        let output = Command::new(bins::find("annexd")).args(args).output().unwrap();
        let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        (output.status.code(), said)
    };
    let path = file.to_str().unwrap();
    for (text, word) in [
        ("[[pool.donor]]\naddress = 'a:7411'\n", "replicas = 2 in [pool] needs 2 donors"),
        ("[[pool.donor]]\naddress = 'a:0'\n", "donor address 'a:0' is not host:port"),
        ("log = 'bogus'\n", "there is no log level 'bogus'"),
        ("local = '50'\n", "give a share (50%) or a unit (50M)"),
    ] {
        std::fs::write(&file, text).unwrap();
        for args in
            [&["check-config", path][..], &["--config", path, "check-config"], &["check-config", "--config", path]]
        {
            let (code, said) = check(args);
            assert!(code == Some(78) && said.contains(word), "{args:?}: {code:?} {said}");
        }
    }
    std::fs::write(&file, "[pool]\nreplicas = 1\n[[pool.donor]]\naddress = 'a:7411'\n").unwrap();
    assert_eq!(check(&["check-config", path]), (Some(0), format!("{path}: good (1 donors, 1 replicas)\n")));
    let (code, said) = check(&["check-config", "/nonexistent.toml"]);
    assert!(code == Some(78) && said.contains("/nonexistent.toml"), "{code:?} {said}");
    let (code, said) = check(&["--log", "bogus"]);
    assert!(code == Some(78) && said.contains("give error, warn, info, debug, trace or off"), "{code:?} {said}");
}

#[test]
fn annexd_without_privilege_says_what_it_lacks() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o777)).unwrap();
    let annexd = dir.path().join("annexd");
    std::fs::copy(bins::find("annexd"), &annexd).unwrap();
    std::fs::set_permissions(&annexd, PermissionsExt::from_mode(0o755)).unwrap();
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "timeout", "20"]).arg(annexd);
    let output = command.arg("--socket").arg(dir.path().join("s")).args(["--donor", "127.0.0.1:1"]).output().unwrap();
    let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    // EX_CONFIG: starting it again won't help, and its unit does not.
    assert_eq!(output.status.code(), Some(78), "{said}");
    assert!(said.contains("root"), "{said}");
}

#[test]
fn annex_without_annexd_says_so() {
    let output =
        Command::new(bins::find("annex")).args(["--socket", "/nonexistent/annexd.sock", "status"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{said}");
    assert!(said.contains("/nonexistent/annexd.sock"), "{said}");
}

#[test]
fn exit_codes_and_signals_pass_through_annex_run() {
    let bed = Testbed::builder().shm();
    let shell = |script: &str| {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    };
    assert_eq!(bed.run("seven", "50%", shell("exit 7")).wait(MINUTE).code(), 7);
    assert_eq!(bed.run("self", "50%", shell("kill -KILL $$")).wait(MINUTE).code(), 128 + 9);
    for (signal, code) in [(Signal::SIGINT, 0), (Signal::SIGTERM, 0), (Signal::SIGQUIT, 128 + 3)] {
        // The workload ends in order on SIGINT and SIGTERM, and verifies; SIGQUIT ends it as it
        // ends any program.
        let mut job = bed.run("signalled", "16M", stress(0, "64M"));
        job.wait_says("ready", MINUTE);
        bed.wait_app("signalled", MINUTE, |app| app.pages_evicted > 1000);
        job.signal(signal);
        assert_eq!(job.wait(2 * MINUTE).code(), code, "{signal}");
        bed.wait_gone("signalled");
    }
    let missing = bed.run("missing", "50%", Command::new("/no/such/program")).wait(MINUTE);
    refused(&missing, 127, &["/no/such/program"]);
    bed.wait_gone("missing");
}

#[test]
fn a_killed_app_leaves_nothing_in_the_pool() {
    let bed = Testbed::builder().mixed();
    let mut job = bed.run("victim", "24M", stress(0, "96M"));
    job.wait_says("ready", MINUTE);
    bed.wait_app("victim", MINUTE, |app| app.pages_evicted > 5000);
    job.process.kill();
    job.wait(MINUTE);
    bed.wait_gone("victim");
    wait_for("the pool to be empty", MINUTE, || bed.status().pool.used == 0);
}

#[test]
fn an_orderly_stop_of_annexd_brings_every_page_back() {
    let mut bed = Testbed::builder().mixed();
    let mut job = bed.run("survivor", "24M", stress(0, "96M"));
    job.wait_says("ready", MINUTE);
    bed.wait_app("survivor", MINUTE, |app| app.pages_evicted > 5000 && app.faults.major > 1000);
    bed.annexd.signal(Signal::SIGTERM);
    let status = bed.annexd.wait(MINUTE).expect("annexd stops");
    assert!(status.success(), "{status}\n{}", bed.annexd.log());
    // The workload goes on without annexd, then verifies everything.
    std::thread::sleep(Duration::from_secs(2));
    end(job);
}

/// With annexd the only way to the evicted pages is gone: the app must not run on and read zeros,
/// nor stand still without a word.
#[test]
fn when_annexd_is_killed_and_none_follows_its_programs_are_ended_and_it_is_said() {
    let mut bed = Testbed::builder().donor(Donor::shm()).donor(Donor::tcp()).daemon_arg("--takeover-wait=2s").start();
    let mut job = bed.run("victim", "24M", stress(0, "96M"));
    job.wait_says("ready", MINUTE);
    bed.wait_app("victim", MINUTE, |app| app.pages_evicted > 5000);
    let mut sleep = Command::new("sleep");
    sleep.arg("10");
    let untouched = bed.run("untouched", "24M", sleep);
    bed.wait_app("untouched", MINUTE, |_| true);
    bed.annexd.kill();
    let outcome = job.wait(MINUTE);
    assert_eq!(outcome.code(), 128 + 9, "{outcome}");
    assert!(!outcome.stderr.contains("expected"), "it met a wrong byte: {outcome}");
    wait_for("the keeper to say what happened", MINUTE, || {
        bed.annexd.log().contains("no annexd came to take them over; ending them")
    });
    // Nothing of this one was with donors.
    untouched.wait(MINUTE).succeeded();
}

/// A virtual machine that is suspended or moved: nobody ran, so nobody could renew a lease, and
/// nobody is gone for it.
#[test]
fn a_host_that_stands_still_for_a_while_loses_nothing() {
    let bed = Testbed::mixed();
    let mut job = bed.run("survivor", "24M", stress(0, "96M"));
    job.wait_says("ready", MINUTE);
    bed.wait_app("survivor", MINUTE, |app| app.pages_evicted > 5000);
    let all = || bed.agents.iter().chain([&bed.annexd, &job.process]);
    all().for_each(|process| process.signal(Signal::SIGSTOP));
    std::thread::sleep(Duration::from_secs(13));
    all().for_each(|process| process.signal(Signal::SIGCONT));
    let faults = bed.app("survivor").expect("it runs").faults.major;
    bed.wait_app("survivor", MINUTE, |app| app.faults.major > faults + 2000);
    assert_eq!(bed.status().pool.lost_extents, 0);
    end(job);
}

/// A frozen control group, or SIGSTOP for all that a program consists of. It may come when the
/// evictor has told the stub to move pages: what came of that must be known before anything else is
/// done about this program. One evictor and impatient workers let all others wait for it.
#[test]
fn a_program_that_is_frozen_while_its_pages_move_holds_up_nobody_else() {
    let bed = Testbed::shm();
    let program = |name| {
        let mut command = stress(0, "96M");
        command.args(["--features", "rw"]);
        let mut job = bed.run(name, "24M", command);
        job.wait_says("ready", MINUTE);
        bed.wait_app(name, MINUTE, |app| app.pages_evicted > 5000);
        job
    };
    let (frozen, other) = (program("frozen"), program("other"));
    let pid = bed.app("frozen").expect("it runs").pids[0];
    let all = || stubs_of(pid).into_iter().chain([pid]).map(Pid::from_raw);
    let said = bed.annexd.log_reader();
    let another_acts = || said().contains("looks after the other programs");
    let wake = || all().for_each(|process| kill(process, Signal::SIGCONT).expect("it is there"));
    // The stub first, and while the program goes on asking for pages, it is told to move some;
    // unless its turn did not come before it was missed.
    let is_frozen = (0..10).any(|_| {
        for process in all() {
            kill(process, Signal::SIGSTOP).expect("it runs");
            std::thread::sleep(Duration::from_millis(700));
        }
        let until = Instant::now() + Duration::from_secs(12);
        while Instant::now() < until && !another_acts() {
            std::thread::sleep(Duration::from_millis(100));
        }
        if !another_acts() {
            wake();
            let evicted = bed.app("frozen").expect("it runs").pages_evicted;
            bed.wait_app("frozen", MINUTE, |app| app.pages_evicted > evicted + 1000);
        }
        another_acts()
    });
    assert!(is_frozen, "no evictor was kept: {}", said());

    let faults = || bed.app("other").expect("it runs").faults.major;
    let mut before = faults();
    let each_second = [(); 10].map(|()| {
        std::thread::sleep(Duration::from_secs(1));
        let now = faults();
        now - std::mem::replace(&mut before, now)
    });
    assert!(each_second.iter().sum::<u64>() > 1000, "faults each second: {each_second:?}; {}", said());
    // Before the frozen one goes on.
    bed.ask("status", [""; 0]);

    wake();
    let brought = bed.app("frozen").expect("it runs").faults.major;
    bed.wait_app("frozen", MINUTE, |app| app.faults.major > brought + 1000);
    end(frozen);
    end(other);
}

#[test]
fn a_donor_killed_while_in_use_loses_no_page() {
    let mut bed = Testbed::builder().donor(Donor::shm()).donor(Donor::tcp()).donor(Donor::shm()).start();
    let mut job = bed.run("survivor", "24M", stress(0, "96M"));
    job.wait_says("ready", MINUTE);
    bed.wait_app("survivor", MINUTE, |app| app.pages_evicted > 5000);
    // Killed, not stopped: the replicas on it are lost, the other ones serve.
    bed.agents[1].kill();
    let faults = bed.app("survivor").expect("it runs").faults.major;
    bed.wait_app("survivor", MINUTE, |app| app.faults.major > faults + 2000);
    end(job);
}

/// A page is on its way for as long as the slowest donor takes, but its bytes are still here.
#[test]
fn pages_on_their_way_to_a_slow_donor_are_given_back_at_once() {
    let slow = Donor::shm().faults("delay=1/1:20s");
    let bed = Testbed::builder().donor(Donor::shm()).donor(slow).start();
    let mut command = stress(30, "64M");
    command.args(["--features", "rw", "--stall", "60"]);
    let outcome = bed.run("program", "24M", command).wait(4 * MINUTE).succeeded();
    let faults = &outcome.seen.last.as_ref().expect("it was seen").faults;
    println!("{faults:?}");
    assert!(faults.major > 100, "{outcome}");
    assert!(faults.max_us < 10e6, "{outcome}");
}

/// The end of the only donor of many pages: 510 equal lines were in the log within 40 ms.
#[test]
fn what_befalls_many_pages_at_once_is_told_in_few_lines() {
    let mut bed = Testbed::builder().replicas(1).donor(Donor::shm()).start();
    let mut sleeps = Command::new("python3");
    sleeps.args(["-c", "import time; b = bytearray(b'\\1' * (64 << 20)); print('ready', flush=True); time.sleep(600)"]);
    let mut job = bed.run("victim", "16M", sleeps);
    // From then on it touches nothing.
    job.wait_says("ready", MINUTE);
    std::thread::sleep(Duration::from_secs(1));
    bed.wait_app("victim", MINUTE, |app| app.evicted >= 32 << 20);
    bed.agents[0].kill();
    bed.start_agent_again(0);
    wait_for("the pages to be lost", MINUTE, || bed.status().pool.lost_extents > 0);
    bed.ask("detach", ["victim"]);
    job.process.signal(Signal::SIGKILL);
    job.wait(MINUTE);
    let log = bed.annexd.stdout() + &bed.annexd.stderr();
    let count = |what: &str| log.lines().filter(|line| line.contains(what)).count();
    let told = [count("failed to read a page"), count("is lost: no replica has its bytes")];
    assert!(told.iter().all(|lines| (1..=20).contains(lines)), "{told:?}: {}", bed.annexd.log());
}
