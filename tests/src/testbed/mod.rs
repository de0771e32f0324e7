//! Real agents and a real annexd on loopback, for tests, the demo and the benchmarks.
//!
//! A [`Testbed`] has a directory of its own on a disk (O_DIRECT needs one), an agent per donor, an
//! annexd that knows them, and ends all of it when dropped. It has a part of the machine, or all
//! of it: locks make testbeds take turns, because each wants CPUs and memory for itself.
//!
//! - [`bins`]: where the programs are. [`census`]: what a process consists of. [`process`]:
//!   children with a time limit that don't outlive the test.
//! - [`donor`]: what a donor is like. [`wire`], [`delay`], [`meminfo`]: donors at the end of a wire
//!   that can be cut or is slow, and on hosts that need their memory.
//! - [`browser`]: one to look at the page with.
//! - [`api`]: the control API, asked directly. [`job`]: a program under annex, watched while it
//!   runs.

pub mod api;
pub mod bins;
pub mod browser;
pub mod census;
mod claim;
mod delay;
mod donor;
pub mod job;
pub mod meminfo;
pub mod nobody;
pub mod port;
pub mod process;
pub mod wire;

use annex_shared::api::{AppInfo, DonorState, Status};
use delay::Delay;
pub use donor::Donor;
pub use job::{Job, Outcome};
use meminfo::Meminfo;
use process::Process;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use wire::Wire;

/// How long programs may take to start or stop.
const PATIENCE: Duration = Duration::from_secs(30);

const KV_SOCKET: &str = "kv.sock";

pub struct Builder {
    donors: Vec<Donor>,
    replicas: u8,
    daemon_args: Vec<String>,
    /// Size of the spill file.
    spill: Option<&'static str>,
    /// What the KV API's flag says after the socket's path.
    kv: Option<String>,
    company: Company,
    linger_at: Option<&'static str>,
    /// Donors show metrics.
    donor_metrics: bool,
}

impl Builder {
    pub fn donor(mut self, donor: Donor) -> Builder {
        self.donors.push(donor);
        self
    }

    pub fn replicas(mut self, replicas: u8) -> Builder {
        self.replicas = replicas;
        self
    }

    /// With pages that are sealed, or not.
    pub fn seal(self, seals: bool) -> Builder {
        if seals { self.daemon_arg("--seal") } else { self }
    }

    /// With a spill file of this size in the testbed's directory.
    pub fn spill(mut self, size: &'static str) -> Builder {
        self.spill = Some(size);
        self
    }

    /// With the KV API on a socket in the testbed's directory and on a port of this host.
    pub fn kv(mut self, options: &str) -> Builder {
        self.kv = Some(options.into());
        self
    }

    /// No other testbed has a part of the machine meanwhile. For what looks at time, at rates or at
    /// something that the whole machine has.
    pub fn alone(mut self) -> Builder {
        self.company = Company::Nobody;
        self
    }

    /// Several testbeds at a time: no turns are taken. For measurements that take turns themselves,
    /// and for several beds of one test that holds [`Turn::alone`].
    pub fn beside_others(mut self) -> Builder {
        self.company = Company::Others;
        self
    }

    /// Donors show metrics, at an address that their place tells.
    pub fn donor_metrics(mut self) -> Builder {
        self.donor_metrics = true;
        self
    }

    /// With two donors over shared memory.
    pub fn shm(self) -> Testbed {
        self.donor(Donor::shm()).donor(Donor::shm()).start()
    }

    /// With two donors over TCP.
    pub fn tcp(self) -> Testbed {
        self.donor(Donor::tcp()).donor(Donor::tcp()).start()
    }

    /// With one of each.
    pub fn mixed(self) -> Testbed {
        self.donor(Donor::tcp()).donor(Donor::shm()).start()
    }

    /// One more argument for annexd.
    pub fn daemon_arg(mut self, arg: impl Into<String>) -> Builder {
        self.daemon_args.push(arg.into());
        self
    }

    /// annexd stays at a point of its code each time that it comes by, as `POINT:MICROSECONDS`
    /// says.
    pub fn linger_at(mut self, point: &'static str) -> Builder {
        self.linger_at = Some(point);
        self
    }

    /// Starts everything and waits until all donors that run are up.
    ///
    /// # Panics
    /// When something does not start: the message holds its log.
    pub fn start(self) -> Testbed {
        let turn = Turn::take(self.company);
        assert!(nix::unistd::geteuid().is_root(), "the testbed needs root: annexd reaches into other processes");
        let dir = tempfile::Builder::new()
            .prefix("annex-testbed-")
            .tempdir_in(directory())
            .expect("a directory under the testbed's directory");
        // Programs that run as ordinary users find their files here.
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(dir.path(), open).expect("the testbed's directory is ours");
        let (mut agents, mut places) = (Vec::new(), Vec::new());
        let socket = dir.path().join("annexd.sock");
        let mut args: Vec<OsString> = vec!["--socket".into(), socket.clone().into()];
        args.extend(["--replicas".into(), self.replicas.to_string().into()]);
        for (i, donor) in self.donors.iter().enumerate() {
            let wire = donor.wired.then(Wire::lay);
            let address = wire.as_ref().map_or_else(|| port::free().to_string(), |wire| wire.address(7411));
            let name = format!("{}{i}", donor.transport);
            let meminfo = donor.pressable.then(|| Meminfo::new(dir.path().join(format!("{name}-meminfo"))));
            let metrics = self.donor_metrics.then(port::free);
            let place =
                Place { name: name.clone(), address: address.clone(), donor: donor.clone(), wire, meminfo, metrics };
            if !donor.absent {
                agents.push(place.start_agent(dir.path()));
            }
            places.push(place);
            let seen_at = donor.delayed.map_or(address.clone(), |by| Delay::before(address.clone(), by).to_string());
            let mut spec = format!("{seen_at},transport={},name={name}", donor.transport);
            if let Some(plan) = &donor.faults {
                spec.push_str(",faults=");
                spec.push_str(plan);
            }
            args.extend(["--donor".into(), spec.into()]);
        }
        if let Some(size) = self.spill {
            args.extend(["--spill".into(), format!("{},size={size}", dir.path().join("spill").display()).into()]);
        }
        let kv_address = self.kv.is_some().then(|| port::free().to_string());
        if let (Some(options), Some(address)) = (&self.kv, &kv_address) {
            args.extend(["--kv".into(), address.into()]);
            args.extend(["--kv".into(), format!("{}{options}", dir.path().join(KV_SOCKET).display()).into()]);
        }
        args.extend(self.daemon_args.iter().map(OsString::from));
        let linger_at = self.linger_at;
        let annexd = start_annexd(&args, (None, linger_at), dir.path());
        let mut bed = Testbed { annexd, agents, socket, places, args, linger_at, kv_address, dir, _turn: turn };
        bed.wait_ready(self.donors.iter().filter(|d| !d.absent).count());
        bed
    }
}

/// The running programs; all end when it is dropped.
pub struct Testbed {
    // Dropped in this order: annexd brings its apps back while the agents still run.
    pub annexd: Process,
    pub agents: Vec<Process>,
    pub socket: PathBuf,
    /// Where each donor is.
    pub places: Vec<Place>,
    /// annexd's arguments.
    args: Vec<OsString>,
    linger_at: Option<&'static str>,
    /// Where the KV API listens, if it does.
    pub kv_address: Option<String>,
    dir: TempDir,
    _turn: Turn,
}

impl Testbed {
    /// No donors yet, two replicas.
    pub fn builder() -> Builder {
        let (donors, daemon_args, company) = (Vec::new(), Vec::new(), Company::Another);
        Builder {
            donors,
            replicas: 2,
            daemon_args,
            spill: None,
            kv: None,
            company,
            linger_at: None,
            donor_metrics: false,
        }
    }

    /// Two donors over shared memory.
    pub fn shm() -> Testbed {
        Testbed::builder().shm()
    }

    /// Two donors over TCP.
    pub fn tcp() -> Testbed {
        Testbed::builder().tcp()
    }

    /// One of each.
    pub fn mixed() -> Testbed {
        Testbed::builder().mixed()
    }

    /// The KV API's socket.
    pub fn kv_socket(&self) -> PathBuf {
        self.dir.path().join(KV_SOCKET)
    }

    /// The testbed's own directory, on a disk.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// An `annex` command that talks to this annexd.
    pub fn annex<S: AsRef<OsStr>>(&self, subcommand: &str, args: impl IntoIterator<Item = S>) -> Command {
        let mut command = Command::new(bins::find("annex"));
        command.arg(subcommand).arg("--socket").arg(&self.socket).args(args);
        command
    }

    /// The `annex run` command line that wraps `command`, environment and directory included.
    pub fn under_run(&self, name: &str, local: &str, command: Command) -> Command {
        let mut run = self.annex("run", ["--local", local, "--name", name, "--"]);
        run.arg(command.get_program()).args(command.get_args());
        run.envs(command.get_envs().filter_map(|(k, v)| Some((k, v?))));
        if let Some(dir) = command.get_current_dir() {
            run.current_dir(dir);
        }
        run
    }

    pub fn status(&self) -> Status {
        let status = api::fetch(&self.socket, "/v1/status");
        status.unwrap_or_else(|error| panic!("annexd does not answer ({error}):\n{}", self.annexd_logs()))
    }

    /// The app by name, while annexd has it.
    pub fn app(&self, name: &str) -> Option<AppInfo> {
        let apps: Vec<AppInfo> = api::fetch(&self.socket, "/v1/apps").ok()?;
        apps.into_iter().find(|app| app.name == name)
    }

    /// Waits until `until` holds of the app.
    ///
    /// # Panics
    /// When it does not within `limit`.
    pub fn wait_app(&self, name: &str, limit: Duration, until: impl Fn(&AppInfo) -> bool) -> AppInfo {
        let started = Instant::now();
        let mut last = None;
        while started.elapsed() < limit {
            last = self.app(name);
            if let Some(app) = last.as_ref().filter(|app| until(app)) {
                return app.clone();
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        panic!("app {name} did not get there within {limit:?}: {last:?}\n{}", self.annexd.log());
    }

    /// Waits until annexd has no app of that name any more.
    ///
    /// # Panics
    /// When it still has one after 30 s.
    pub fn wait_gone(&self, name: &str) {
        wait_for(&format!("app {name} to be gone"), PATIENCE, || self.app(name).is_none());
    }

    /// Starts annexd once more, after the last one has ended, and waits until it answers: how long
    /// that took. `die_at` is a point at which it is to kill itself; then it may end before it
    /// answers.
    ///
    /// # Panics
    /// When it does not answer in time, or ends unasked.
    pub fn start_again(&mut self, die_at: Option<&str>) -> Duration {
        self.annexd.kill();
        let started = Instant::now();
        self.annexd = start_annexd(&self.args, (die_at, self.linger_at), self.dir.path());
        self.wait_answers(started, die_at.is_some());
        started.elapsed()
    }

    /// Starts another annexd that takes the running one's place.
    ///
    /// # Panics
    /// When it does not answer in time, or ends.
    pub fn take_over(&mut self) -> Duration {
        let started = Instant::now();
        let next = self.start_another(None);
        let mut before = std::mem::replace(&mut self.annexd, next);
        before.wait(PATIENCE).expect("the annexd before hands over");
        self.wait_answers(started, false);
        started.elapsed()
    }

    /// Starts another annexd that is to take the running one's place, or to kill itself at this
    /// point, and waits for nothing.
    pub fn start_another(&self, die_at: Option<&str>) -> Process {
        let args: Vec<OsString> = self.args.iter().cloned().chain(["--take-over".into()]).collect();
        start_annexd(&args, (die_at, self.linger_at), self.dir.path())
    }

    /// Starts an annexd that is expected to refuse: its exit code and what it said.
    ///
    /// # Panics
    /// When it does not end.
    pub fn start_in_vain(&mut self) -> (Option<i32>, String) {
        self.annexd = start_annexd(&self.args, (None, self.linger_at), self.dir.path());
        let status = self.annexd.wait(PATIENCE).expect("annexd refuses to start");
        (status.code(), self.annexd.log())
    }

    /// Starts a donor's agent once more, at the same address. All donors must be there.
    pub fn start_agent_again(&mut self, nth: usize) {
        self.agents[nth].kill();
        self.agents[nth] = self.places[nth].start_agent(self.dir.path());
    }

    fn wait_answers(&mut self, started: Instant, may_end: bool) {
        while api::fetch::<Status>(&self.socket, "/v1/status").is_err() {
            if !self.annexd.is_running() {
                assert!(may_end, "annexd ended at its start:\n{}", self.annexd.log());
                return;
            }
            assert!(started.elapsed() < PATIENCE, "annexd does not answer:\n{}", self.annexd.log());
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// The PID of annexd's keeper process.
    ///
    /// # Panics
    /// When it has none.
    pub fn keeper(&self) -> i32 {
        let children = format!("/proc/{0}/task/{0}/children", self.annexd.pid());
        let text = std::fs::read_to_string(children).expect("annexd runs");
        let pids = text.split_ascii_whitespace().filter_map(|pid| pid.parse().ok());
        let named = |pid: &i32| {
            std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|c| c.trim() == "annexd-fdkeeper")
        };
        pids.into_iter().find(named).expect("annexd has a keeper")
    }

    /// What all annexds of this testbed have said, the latest last.
    pub fn annexd_logs(&self) -> String {
        let logs = self.logs_of_each();
        let last = &logs[logs.len().saturating_sub(4)..];
        last.iter().map(|(n, log)| format!("--- annexd {n} ---\n{log}\n")).collect()
    }

    /// What the last annexds said of an app, and all errors.
    pub fn annexd_logs_of(&self, app: &str) -> String {
        let logs = self.logs_of_each();
        let last = logs[logs.len().saturating_sub(20)..].iter();
        let lines = last.flat_map(|(n, log)| log.lines().map(move |line| format!("annexd {n}: {line}\n")));
        lines.filter(|line| line.contains(app) || line.contains(" ERROR ") || line.contains("took over")).collect()
    }

    fn logs_of_each(&self) -> Vec<(u32, String)> {
        let entries = std::fs::read_dir(self.path()).into_iter().flatten().flatten();
        let mut logs: Vec<(u32, PathBuf)> = entries
            .filter_map(|e| {
                let serial = e.file_name().to_str()?.strip_suffix("-annexd.err")?.parse().ok()?;
                Some((serial, e.path()))
            })
            .collect();
        logs.sort();
        logs.into_iter().map(|(n, path)| (n, process::read_lossy(&path))).collect()
    }

    /// Waits until so many donors are up.
    ///
    /// # Panics
    /// When they don't come up, or annexd ends.
    pub fn wait_ready(&mut self, donors: usize) {
        let started = Instant::now();
        loop {
            let up = api::fetch::<Status>(&self.socket, "/v1/status")
                .map(|status| status.donors.iter().filter(|d| d.state == DonorState::Up && d.name != "spill").count());
            if up.as_ref().is_ok_and(|up| *up >= donors) {
                return;
            }
            assert!(self.annexd.is_running(), "annexd ended at start:\n{}", self.annexd.log());
            if started.elapsed() > PATIENCE {
                let agents: String = self.agents.iter().map(Process::log).collect();
                panic!("annexd has {up:?} of {donors} donors:\n{}\n{agents}", self.annexd.log());
            }
            std::thread::sleep(Duration::from_millis(30));
        }
    }
}

/// Polls until `done`.
///
/// # Panics
/// When it is not within `limit`.
pub fn wait_for(what: &str, limit: Duration, mut done: impl FnMut() -> bool) {
    let started = Instant::now();
    while !done() {
        assert!(started.elapsed() < limit, "waited {limit:?} in vain for {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Where testbeds live: `$ANNEX_TEST_DIR`, else `/var/tmp`, which is on a disk.
pub fn directory() -> PathBuf {
    std::env::var_os("ANNEX_TEST_DIR").map_or_else(|| "/var/tmp".into(), PathBuf::from)
}

/// Seconds for each stress: `$ANNEX_STRESS_SECONDS`, else 15.
pub fn stress_seconds() -> u64 {
    std::env::var("ANNEX_STRESS_SECONDS").ok().and_then(|s| s.parse().ok()).unwrap_or(15)
}

/// With the points at which it dies and lingers.
fn start_annexd(args: &[OsString], (dies, lingers): (Option<&str>, Option<&str>), dir: &Path) -> Process {
    let mut daemon = Command::new(bins::find("annexd"));
    daemon.args(args);
    let action = |place: &str, verb| {
        let (name, number) = place.split_once(':').unwrap_or((place, "1"));
        format!("{name}={verb}:{number};")
    };
    let dies = dies.map(|place| action(place, "die"));
    let actions: String = dies.into_iter().chain(lingers.map(|place| action(place, "linger"))).collect();
    daemon.env("ANNEX_FAILPOINTS", actions);
    Process::start("annexd", daemon, dir)
}

/// A donor's name and where it listens.
pub struct Place {
    pub name: String,
    pub address: String,
    donor: Donor,
    /// How it is reached, if not over loopback.
    pub wire: Option<Wire>,
    /// Its host's memory, if that is not this one's.
    pub meminfo: Option<Meminfo>,
    /// Where it shows metrics, if it does.
    pub metrics: Option<SocketAddr>,
}

impl Place {
    /// Starts its agent, which keeps what it needs in `dir`.
    pub fn start_agent(&self, dir: &Path) -> Process {
        let Place { name, address, donor, wire, meminfo, metrics } = self;
        let program = bins::find("annex-agent");
        let mut agent = match (wire, meminfo) {
            (Some(wire), None) => wire.inside(&program),
            (None, Some(meminfo)) => meminfo.inside(&program),
            _ => Command::new(donor.under.first().map_or(program.as_path(), Path::new)),
        };
        agent.args(donor.under.iter().skip(1));
        agent.args(donor.under.first().map(|_| &program));
        agent.args(["--listen", address, "--capacity", donor.capacity, "--name", name]);
        agent.args(donor.lease_ttl.map(|ttl| ["--lease-ttl", ttl]).into_iter().flatten());
        agent.arg("--shm-socket").arg(dir.join(format!("{name}.sock")));
        agent.arg("--control-socket").arg(dir.join(format!("{name}-control.sock")));
        if donor.kept {
            agent.arg("--keeper").arg(dir.join(format!("{name}-keeper.sock")));
        }
        agent.args(metrics.map(|at| ["--metrics".to_owned(), at.to_string()]).into_iter().flatten());
        agent.args(donor.agent_args);
        if wire.is_some() {
            // Nobody else is on that wire.
            agent.arg("--insecure");
        }
        Process::start(name, agent, dir)
    }

    /// The agent's control socket.
    pub fn control_socket(&self, bed: &Testbed) -> PathBuf {
        bed.path().join(format!("{}-control.sock", self.name))
    }
}

/// Whom a testbed shares the machine with.
#[derive(Clone, Copy)]
enum Company {
    Nobody,
    Another,
    Others,
}

/// So many testbeds may run at a time.
const PARTS: usize = 3;

/// The parts of the machine that a testbed has, each a machine-wide lock.
pub struct Turn(#[expect(dead_code, reason = "the locks are the open files")] Vec<File>);

impl Turn {
    /// All of the machine, for a test that has several testbeds side by side.
    pub fn alone() -> Turn {
        Turn::take(Company::Nobody)
    }

    /// A part of it, for a test that starts daemons by itself.
    pub fn shared() -> Turn {
        Turn::take(Company::Another)
    }

    fn take(company: Company) -> Turn {
        let part = |nth| {
            let path = std::env::temp_dir().join(format!("annex-testbed-{nth}.lock"));
            File::create(path).expect("the lock file is writable")
        };
        let parts = match company {
            Company::Others => Vec::new(),
            Company::Nobody => (0..PARTS).map(part).inspect(|part| part.lock().expect("flock works")).collect(),
            Company::Another => loop {
                if let Some(part) = (0..PARTS).map(part).find(|part| part.try_lock().is_ok()) {
                    break vec![part];
                }
                std::thread::sleep(Duration::from_millis(20));
            },
        };
        Turn(parts)
    }
}
