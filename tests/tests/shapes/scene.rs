//! A case is a program, what is done to it step by step, and what must come. A scene is one case
//! being played on a testbed that others may play on too.

use annex_shared::api::AppInfo;
use annex_tests::testbed::census::{is_stub, stubs_of};
use annex_tests::testbed::{Builder, Donor, Job, Outcome, Testbed, bins, wait_for};
use std::collections::VecDeque;
use std::fs;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, RwLock};
use std::time::{Duration, Instant};

/// Far more than anything here takes: what is waited for comes, or it is broken.
pub const LIMIT: Duration = Duration::from_secs(60);

/// What the filler of a program is to leave resident: a quarter.
const LOCAL: &str = "10M";
const MIB: u64 = 1 << 20;

#[derive(Clone, Copy, Debug)]
pub enum Step {
    /// Under `annex run`.
    Run,
    /// As it is, to be attached later.
    Native,
    Attach,
    /// Attached, or refused with this in the message.
    AttachOr(&'static str),
    /// It can't be attached, for this reason.
    Refused(&'static str),
    /// The process that it named: "other PID ready".
    AttachOther,
    Detach,
    /// Attached and detached so many times.
    Cycles(u32),
    /// It says this.
    Says(&'static str),
    /// At least so many MiB of it are in the pool.
    Evicted(u64),
    /// At most so many MiB of it are resident, while annexd knows that it has some.
    Within(u64),
    /// So many faults more are served.
    Faults(u64),
    /// It is told to go on.
    Go,
    /// The process that was started ends well.
    Exits,
    /// The stub of each process is killed; others come in their place when they are needed.
    KillStubs,
    KillAnnexd,
    TakeOver,
    /// annexd is asked to stop, and does.
    StopAnnexd,
}

/// How it ends.
#[derive(Clone, Copy, Debug)]
pub enum Comes {
    /// Exit code 0, and this text.
    Right(&'static str),
    /// What `docs/limits.md` says of it: this exit code and this text.
    Limit { why: &'static str, code: i32, text: &'static str },
}

#[derive(Clone, Copy, Debug)]
pub struct Case {
    pub name: &'static str,
    /// The first word is one of our programs, or one of the system's.
    pub command: &'static [&'static str],
    pub steps: &'static [Step],
    pub comes: Comes,
}

/// What `annex` exits with where a program can't be paged as it is.
const UNSUITABLE: i32 = 7;

/// Compiles all programs of the folder, and gives the directory that has them.
pub fn programs(bed: &Testbed) -> PathBuf {
    let into = bed.path().join("shapes");
    fs::create_dir(&into).expect("the testbed's directory is ours");
    // Some of the programs go on as another user.
    fs::set_permissions(&into, std::os::unix::fs::PermissionsExt::from_mode(0o777)).expect("ours");
    let sources = fs::read_dir(bins::script("shapes")).expect("the sources are there").flatten().map(|e| e.path());
    let (c, others): (Vec<_>, Vec<_>) = sources.partition(|path| path.extension().is_some_and(|e| e == "c"));
    let start = |source: &PathBuf| {
        let mut cc = Command::new("cc");
        cc.args(["-Wall", "-Wextra", "-Werror", "-O1", "-pthread", "-o"]);
        cc.arg(into.join(source.file_stem().expect("a file"))).arg(source).spawn().expect("there is a C compiler")
    };
    for sources in c.chunks(4) {
        for mut compiler in sources.iter().map(start).collect::<Vec<_>>() {
            assert!(compiler.wait().expect("our child").success());
        }
    }
    for script in others.iter().filter(|path| path.extension().is_some_and(|e| e == "sh")) {
        fs::copy(script, into.join(script.file_name().expect("a file"))).expect("ours");
    }
    into
}

/// With `ANNEX_SHAPES_TCP=1` all of it goes over TCP.
pub fn bed() -> Testbed {
    let tcp = std::env::var("ANNEX_SHAPES_TCP").is_ok_and(|v| v == "1");
    bed_of(if tcp { Donor::tcp } else { Donor::shm })
}

/// A short lease: what a dead annexd had under way rests for one and a half times as long. Not so
/// short that it ends while annexd is started twice on a machine that is busy.
pub fn bed_of(donor: fn() -> Donor) -> Testbed {
    builder_of(donor).start()
}

/// annexd lingers at such a place of its code, for so many microseconds each time.
pub fn bed_that_lingers(place: &'static str) -> Testbed {
    builder_of(Donor::shm).linger_at(place).start()
}

fn builder_of(donor: fn() -> Donor) -> Builder {
    let donor = || donor().capacity("1G").lease_ttl("20s");
    Testbed::builder().donor(donor()).donor(donor())
}

/// Plays the cases, so many side by side, and says of each what came.
///
/// # Panics
/// When one of them did not come right, or something is left over in the pool.
pub fn play(bed: Testbed, side_by_side: usize, cases: &[Case]) {
    let only = std::env::var("ANNEX_SHAPES_ONLY").unwrap_or_default();
    let programs = programs(&bed);
    let bed = RwLock::new(bed);
    let left: Mutex<VecDeque<&Case>> = Mutex::new(cases.iter().filter(|case| case.name.contains(&only)).collect());
    let failed = Mutex::new(Vec::new());
    let next = || left.lock().expect("nobody panics with it").pop_front();
    let player = || {
        while let Some(case) = next() {
            let started = Instant::now();
            let played = catch_unwind(AssertUnwindSafe(|| Scene::new(&bed, &programs, case).play()));
            let took = started.elapsed();
            let why = played.err().map(|panic| {
                let text = panic.downcast_ref::<String>().cloned();
                text.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned())).unwrap_or_default()
            });
            println!("{}: {} after {took:.1?}", case.name, if why.is_some() { "FAILED" } else { "as it must" });
            failed.lock().expect("nobody panics with it").extend(why.map(|why| (case.name, why)));
        }
    };
    std::thread::scope(|scope| {
        // What a thread has started ends with it: an annexd that is started again by a case has to
        // be this thread's.
        for _ in 1..side_by_side {
            scope.spawn(player);
        }
        player();
    });
    let failed = failed.into_inner().expect("nobody panics with it");
    let names: Vec<&str> = failed.iter().map(|(name, _)| *name).collect();
    let whys: String = failed.iter().map(|(name, why)| format!("\n===== {name}: {why}\n")).collect();
    assert!(failed.is_empty(), "{} of {} cases: {names:?}{whys}", failed.len(), cases.len());
    let mut bed = bed.into_inner().expect("nobody panics with it");
    start_if_stopped(&mut bed);
    wait_for("every slot to be free", LIMIT, || bed.status().pool.used == 0);
}

fn start_if_stopped(bed: &mut Testbed) {
    if !bed.annexd.is_running() {
        bed.start_again(None);
    }
}

struct Scene<'a> {
    bed: &'a RwLock<Testbed>,
    case: &'a Case,
    programs: &'a Path,
    /// Grows by a byte for each stage that the program is told of.
    go: PathBuf,
    job: Option<Job>,
}

impl<'a> Scene<'a> {
    fn new(bed: &'a RwLock<Testbed>, programs: &'a Path, case: &'a Case) -> Scene<'a> {
        start_if_stopped(&mut bed.write().unwrap_or_else(std::sync::PoisonError::into_inner));
        let go = programs.join(format!("{}.go", case.name));
        Scene { bed, case, programs, go, job: None }
    }

    fn play(mut self) {
        fs::write(&self.go, "").expect("the testbed's directory is ours");
        for (nth, step) in self.case.steps.iter().enumerate() {
            let before = self.look();
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| self.take(*step))) {
                let text = panic.downcast_ref::<String>().cloned().unwrap_or_default();
                panic!("at step {nth}, {step:?}, before which there was {before:?}: {text}");
            }
        }
        let (code, text) = match self.case.comes {
            Comes::Right(text) => (0, text),
            Comes::Limit { code, text, .. } => (code, text),
        };
        let directory = self.with(|bed| bed.path().to_owned());
        let said = || {
            let files = fs::read_dir(&directory).expect("ours").flatten();
            let ours =
                files.filter(|file| file.file_name().to_string_lossy().ends_with(&format!("-{}.out", self.case.name)));
            ours.map(|file| fs::read_to_string(file.path()).unwrap_or_default()).collect::<String>()
        };
        // Others of its group may go on after the process that was started, until its job is over.
        let goes_on_without_it = self.case.steps.iter().any(|step| matches!(step, Step::Exits));
        let started = Instant::now();
        while goes_on_without_it && !said().contains(text) && !said().contains("WRONG") && started.elapsed() < LIMIT {
            std::thread::sleep(Duration::from_millis(20));
        }
        let outcome = self.job.take().expect("the first step starts it").wait(LIMIT);
        assert_eq!(outcome.code(), code, "{outcome}");
        assert!(said().contains(text), "it did not say {text:?}: {}\n{outcome}", said());
        assert!(code != 0 || !said().contains("WRONG"), "{}\n{outcome}", said());
        self.until("the app to be gone", |app| app.is_none());
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Run => self.start(|bed, name, command| bed.run(name, LOCAL, command)),
            Step::Native => self.start(|bed, name, command| bed.natively(name, command)),
            Step::Attach => drop(self.attach(self.pid()).succeeded()),
            Step::AttachOther => drop(self.attach(self.other()).succeeded()),
            Step::AttachOr(why) | Step::Refused(why) => {
                let outcome = self.attach(self.pid());
                let is_refused = outcome.code() == UNSUITABLE && outcome.stderr.contains(why);
                let may_be_taken = matches!(step, Step::AttachOr(_)) && outcome.code() == 0;
                assert!(is_refused || may_be_taken, "not refused for {why:?}: {outcome}");
                assert!(!is_refused || self.look().is_none(), "refused, and there: {:?}", self.look());
            }
            Step::Detach => drop(self.with(|bed| bed.ask("detach", [self.case.name])).succeeded()),
            Step::Cycles(cycles) => (0..cycles).for_each(|_| {
                self.take(Step::Attach);
                self.until("something to be evicted", |app| app.is_some_and(|app| app.pages_evicted > 500));
                self.take(Step::Detach);
            }),
            // Who became a daemon says it after the process that was started has ended.
            Step::Says(text) => {
                let job = self.job.as_ref().expect("it was started");
                wait_for(&format!("{text:?} of {}", self.case.name), LIMIT, || job.process.stdout().contains(text));
            }
            Step::Evicted(mib) => self.until("its eviction", |app| app.is_some_and(|app| app.evicted >= mib * MIB)),
            Step::Within(mib) => self.until("it to be within its limit", |app| {
                app.is_some_and(|app| !app.pids.is_empty() && app.resident > 0 && app.resident <= mib * MIB)
            }),
            Step::Faults(more) => {
                let before = self.look().map_or(0, |app| app.faults.major);
                self.until("faults", |app| app.is_some_and(|app| app.faults.major >= before + more));
            }
            Step::Go => {
                let mut file = fs::OpenOptions::new().append(true).open(&self.go).expect("it was made");
                file.write_all(b"+").expect("the testbed's directory is ours");
            }
            Step::Exits => {
                let job = self.job.as_mut().expect("it was started");
                let status =
                    job.process.wait(LIMIT).unwrap_or_else(|| panic!("it does not end: {}", job.process.log()));
                assert!(status.success(), "{status}: {}", job.process.log());
            }
            Step::KillStubs => {
                let pids = self.look().map(|app| app.pids).unwrap_or_default();
                let stubs: Vec<i32> = pids.iter().flat_map(|pid| stubs_of(*pid)).collect();
                assert!(!stubs.is_empty(), "it has no stub: {pids:?}");
                stubs.iter().for_each(|stub| kill(*stub));
                wait_for("the stubs to be gone", LIMIT, || stubs.iter().all(|stub| !is_stub(*stub)));
            }
            Step::KillAnnexd => {
                let mut bed = self.bed.write().expect("nobody panics with it");
                bed.annexd.kill();
                bed.start_again(None);
            }
            Step::TakeOver => drop(self.bed.write().expect("nobody panics with it").take_over()),
            Step::StopAnnexd => stops_well(&mut self.bed.write().expect("nobody panics with it")),
        }
    }

    fn start(&mut self, start: impl Fn(&Testbed, &str, Command) -> Job) {
        let (program, args) = self.case.command.split_first().expect("a program");
        let ours = self.programs.join(program);
        let mut command = Command::new(if ours.exists() { ours.as_os_str() } else { program.as_ref() });
        command.args(args).env("SHAPES_GO", &self.go).current_dir(self.programs);
        self.job = Some(self.with(|bed| start(bed, self.case.name, command)));
    }

    fn attach(&self, pid: i32) -> Outcome {
        let args = [&pid.to_string(), "--name", self.case.name, "--local", LOCAL, "--no-wait"];
        self.with(|bed| bed.ask("attach", args))
    }

    fn pid(&self) -> i32 {
        self.job.as_ref().expect("it was started").pid()
    }

    fn other(&self) -> i32 {
        let said = self.job.as_ref().expect("it was started").process.stdout();
        let pid = said.split_once("other ").and_then(|(_, rest)| rest.split_whitespace().next()?.parse().ok());
        pid.unwrap_or_else(|| panic!("it names nobody: {said:?}"))
    }

    fn with<T>(&self, what: impl FnOnce(&Testbed) -> T) -> T {
        what(&self.bed.read().unwrap_or_else(std::sync::PoisonError::into_inner))
    }

    fn look(&self) -> Option<AppInfo> {
        self.with(|bed| bed.app(self.case.name))
    }

    fn until(&self, what: &str, holds: impl Fn(Option<&AppInfo>) -> bool) {
        let started = Instant::now();
        loop {
            let app = self.look();
            if holds(app.as_ref()) {
                return;
            }
            if started.elapsed() > LIMIT {
                let said = self.job.as_ref().map(|job| job.process.log()).unwrap_or_default();
                panic!("waited {LIMIT:?} in vain for {what}: {app:?}\n{said}{}", self.with(|bed| bed.annexd.log()));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Asks annexd to stop, which it does well.
///
/// # Panics
/// When it does not.
pub fn stops_well(bed: &mut Testbed) {
    bed.annexd.signal(nix::sys::signal::Signal::SIGTERM);
    let status = bed.annexd.wait(LIMIT);
    assert!(status.is_some_and(|status| status.success()), "annexd stopped with {status:?}: {}", bed.annexd.log());
}

/// Kills a process, if it is still there.
pub fn kill(pid: i32) {
    let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL);
}
