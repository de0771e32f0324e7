//! annexd is killed in the midst of what it does to a program: attach, eviction, detach, take-over,
//! stop.
//!
//! The program verifies its memory all the time. After each kill the next annexd either has the
//! program or there is nothing of annex left in it, and it goes on. `ANNEX_KILLS` sets how many
//! random kills each of these gets; a kill counts if it came while that was under way.

use annex_shared::api::AppInfo;
use annex_tests::testbed::census::stubs_of;
use annex_tests::testbed::process::Process;
use annex_tests::testbed::{Job, Testbed, bins, directory, wait_for};
use nix::sys::signal::Signal;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::process::Command;
use std::time::{Duration, Instant, SystemTime};

const MINUTE: Duration = Duration::from_secs(60);
const NAME: &str = "survivor";
const LOCAL: &str = "12M";
const MIB: u64 = 1 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Attach,
    Eviction,
    Detach,
    TakeOver,
    Stop,
}

/// Something that is under way.
enum Act {
    /// A command of ours waits for it.
    Asked(Process),
    /// Another annexd takes the place of this one.
    Another(Process),
    /// It is annexd's own.
    Annexd,
}

struct Scene {
    bed: Testbed,
    job: Job,
    dice: StdRng,
}

impl Scene {
    fn new() -> Scene {
        let clock =
            SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(1, |since| since.as_millis() as u64);
        let seed = std::env::var("ANNEX_SHAPES_SEED").map_or(clock, |seed| seed.parse().expect("a seed"));
        println!("ANNEX_SHAPES_SEED={seed}");
        let bed = Testbed::builder().shm();
        let mut stress = Command::new(bins::find("annex-stress"));
        stress.args(["--size", "48M", "--threads", "3", "--seconds", "0", "--stall", "60"]);
        stress.args(["--seed", &seed.to_string(), "--dir"]).arg(directory());
        let mut job = bed.natively(NAME, stress);
        job.wait_says("ready", MINUTE);
        Scene { bed, job, dice: StdRng::seed_from_u64(seed) }
    }

    /// All that can be told when something is not as it must be.
    fn told(&mut self) -> String {
        let runs = if self.job.process.is_running() { "runs" } else { "HAS ENDED" };
        let app = self.bed.app(NAME);
        format!("the program {runs}, {app:?}\n{}{}", self.bed.annexd_logs(), self.job.process.log())
    }

    #[track_caller]
    fn until(&mut self, what: &str, holds: impl Fn(Option<&AppInfo>) -> bool) {
        let started = Instant::now();
        while !holds(self.bed.app(NAME).as_ref()) {
            let goes_on = self.job.process.is_running() && self.bed.annexd.is_running() && started.elapsed() < MINUTE;
            assert!(goes_on, "waited in vain for {what}: {}", self.told());
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// The program's first process is in the app.
    fn has_it(&self) -> bool {
        self.bed.app(NAME).is_some_and(|app| app.pids.contains(&self.job.pid()))
    }

    /// annexd pages it, and pages leave and come back.
    fn is_paged(&mut self) {
        if !self.has_it() {
            self.is_free();
            self.bed
                .ask("attach", [&self.job.pid().to_string(), "--name", NAME, "--local", LOCAL, "--no-wait"])
                .succeeded();
        }
        let before = self.bed.app(NAME).map_or((0, 0), |app| (app.pages_evicted, app.faults.major));
        self.until("pages to leave and come back", |app| {
            app.is_some_and(|app| app.pages_evicted > before.0 + 300 && app.faults.major > before.1 + 100)
        });
    }

    /// annexd has it no more, and has left nothing in it.
    fn is_free(&mut self) {
        if self.bed.app(NAME).is_some() {
            let outcome = self.bed.ask("detach", [NAME]);
            // What was left of the app may have ended by itself just now.
            assert!(outcome.code() == 0 || self.bed.app(NAME).is_none(), "{outcome}");
        }
        let pid = self.job.pid();
        assert!(self.bed.app(NAME).is_none() && self.job.process.is_running(), "{}", self.told());
        assert!(stubs_of(pid).is_empty(), "annexd does not have it, and it has stubs: {}", self.told());
        assert!(!is_registered(pid), "annexd does not have it, and its memory is registered: {}", self.told());
    }

    fn make_ready(&mut self, phase: Phase) {
        match phase {
            Phase::Attach => self.is_free(),
            Phase::Detach | Phase::TakeOver | Phase::Stop => self.is_paged(),
            Phase::Eviction => {
                self.is_paged();
                self.bed.ask("limit", [NAME, "300M"]).succeeded();
                self.until("it to be resident", |app| app.is_some_and(|app| app.resident > 36 * MIB));
            }
        }
    }

    fn begin(&self, phase: Phase, die_at: Option<&str>) -> Act {
        let ask =
            |subcommand, args: &[&str]| Process::start(subcommand, self.bed.annex(subcommand, args), self.bed.path());
        match phase {
            Phase::Attach => {
                let pid = self.job.pid().to_string();
                Act::Asked(ask("attach", &[&pid, "--name", NAME, "--local", LOCAL, "--no-wait"]))
            }
            Phase::Eviction => {
                let _ = self.bed.ask("limit", [NAME, LOCAL]);
                Act::Annexd
            }
            Phase::Detach => Act::Asked(ask("detach", &[NAME])),
            Phase::TakeOver => Act::Another(self.bed.start_another(die_at)),
            Phase::Stop => {
                self.bed.annexd.signal(Signal::SIGTERM);
                Act::Annexd
            }
        }
    }

    fn is_under_way(&mut self, phase: Phase, act: &mut Act) -> bool {
        match act {
            Act::Asked(command) => command.is_running(),
            Act::Another(annexd) => annexd.is_running() && !annexd.stderr().contains("ready on"),
            Act::Annexd if phase == Phase::Eviction => self.bed.app(NAME).is_some_and(|app| app.resident > 16 * MIB),
            Act::Annexd => self.bed.annexd.is_running(),
        }
    }

    /// Whoever is or becomes annexd dies, and then there is one that goes on.
    fn kill(&mut self, act: Act) {
        let Act::Another(mut another) = act else {
            self.bed.start_again(None);
            return;
        };
        match self.dice.random_range(0..3) {
            // The one that takes over. What the other has not handed over it goes on with.
            0 => {
                another.kill();
                if another.stderr().contains("taking the place of") {
                    self.bed.annexd.signal(Signal::SIGUSR1);
                    assert!(self.bed.annexd.wait(MINUTE).is_some(), "it does not hand over: {}", self.told());
                    self.bed.start_again(None);
                }
            }
            // The one that hands over, which the other is waiting for.
            1 => {
                self.bed.annexd.kill();
                self.bed.annexd = another;
                self.bed.wait_ready(2);
            }
            _ => {
                another.kill();
                self.bed.start_again(None);
            }
        }
    }

    /// Kills annexd in the midst of it, some time before it has usually been over. False: it was
    /// over before.
    fn killed_at_random(&mut self, phase: Phase, usual: &mut Duration) -> bool {
        self.make_ready(phase);
        let started = Instant::now();
        let mut act = self.begin(phase, None);
        let delay = usual.mul_f64(self.dice.random_range(0.0..1.0));
        std::thread::sleep(delay.saturating_sub(started.elapsed()));
        let in_the_midst = self.is_under_way(phase, &mut act);
        let after = started.elapsed();
        self.kill(act);
        *usual = if in_the_midst { usual.mul_f64(1.1) } else { after };
        in_the_midst
    }

    /// annexd dies at a point of its code as it does this.
    fn killed_at(&mut self, phase: Phase, point: &str) {
        self.make_ready(phase);
        if phase == Phase::TakeOver {
            let Act::Another(mut another) = self.begin(phase, Some(point)) else { unreachable!("as it begins") };
            assert!(another.wait(MINUTE).is_some(), "no take-over came by {point}: {}", self.told());
        } else {
            self.bed.start_again(Some(point));
            let act = self.begin(phase, None);
            assert!(self.bed.annexd.wait(MINUTE).is_some(), "no {phase:?} came by {point}: {}", self.told());
            drop(act);
        }
        self.bed.start_again(None);
    }

    /// The program goes on, with annexd or without, whichever it came to.
    fn goes_on(&mut self) {
        if self.has_it() {
            self.is_paged();
        } else {
            self.is_free();
        }
    }
}

fn is_registered(pid: i32) -> bool {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/smaps")).expect("it runs");
    let flags = maps.lines().filter(|line| line.starts_with("VmFlags:"));
    flags.flat_map(str::split_whitespace).any(|flag| flag == "um" || flag == "uw")
}

/// How many random kills each phase gets.
fn kills() -> u32 {
    std::env::var("ANNEX_KILLS").map_or(3, |kills| kills.parse().expect("a number of kills"))
}

/// Kills annexd in the midst of this: once at each of these points of its code, and then at random.
fn killed_in(phase: Phase, points: &[&str]) {
    let mut scene = Scene::new();
    for point in points {
        scene.killed_at(phase, point);
        scene.goes_on();
    }
    // From what it takes where nobody is killed it is found out how long it takes where somebody
    // is.
    scene.make_ready(phase);
    let started = Instant::now();
    let mut act = scene.begin(phase, None);
    while scene.is_under_way(phase, &mut act) {
        assert!(started.elapsed() < MINUTE, "{phase:?} does not end: {}", scene.told());
        std::thread::sleep(Duration::from_millis(1));
    }
    let mut usual = started.elapsed();
    scene.kill(act);
    scene.goes_on();
    let (mut counted, mut all) = (0, 0);
    while counted < kills() {
        all += 1;
        counted += u32::from(scene.killed_at_random(phase, &mut usual));
        scene.goes_on();
        assert!(all < 100 + 20 * kills(), "only {counted} of {all} kills came in the midst of {phase:?}");
    }
    println!("{phase:?}: {counted} kills in the midst of it, of {all}, and one at each of {points:?}");
    let Scene { bed, job, .. } = scene;
    job.signal(Signal::SIGTERM);
    let outcome = job.wait(2 * MINUTE).succeeded();
    let summary: serde_json::Value = serde_json::from_str(&outcome.stdout).expect("one line of JSON");
    assert_eq!(summary["errors"], 0, "{outcome}");
    bed.wait_gone(NAME);
    // What a dead annexd had under way rests for one and a half times a lease, which is of a
    // minute.
    wait_for("every slot to be free", 3 * MINUTE, || bed.status().pool.used == 0);
}

#[test]
fn annexd_killed_in_the_midst_of_an_attach_loses_nothing() {
    killed_in(Phase::Attach, &["stub-placed", "stub-described", "mapping-looked-up", "batch-moved"]);
}

#[test]
fn annexd_killed_in_the_midst_of_an_eviction_loses_nothing() {
    killed_in(Phase::Eviction, &["batch-planned:3", "record-flipped:500", "batch-written:2"]);
}

#[test]
fn annexd_killed_in_the_midst_of_a_detach_loses_nothing() {
    killed_in(Phase::Detach, &["stub-goes", "stub-gone"]);
}

#[test]
fn one_of_two_annexds_killed_in_the_midst_of_a_take_over_loses_nothing() {
    killed_in(Phase::TakeOver, &["adopted", "caught-up", "rolled-back"]);
}

#[test]
fn annexd_killed_in_the_midst_of_a_stop_loses_nothing() {
    killed_in(Phase::Stop, &["stub-goes", "stub-gone"]);
}
