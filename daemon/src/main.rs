//! `annexd`: reads its configuration, makes itself at home on the host, starts pool and pager, and
//! serves the control API until it may stop.

use annex_daemon::config::{Config, DEFAULT_FILE};
use annex_daemon::control::pool::RunningPool;
use annex_daemon::control::{
    Apps, BindError, Control, ControlSocket, Donors, Operators, host, running, server, stop, watchdog,
};
use annex_daemon::flags::{Command, Flags, WaitFlag};
use annex_daemon::heap::Heap;
use annex_daemon::web;
use annex_host::fd_keeper::{self, FdKeeper, Inheritance, Kept};
use annex_host::{event, events, failpoint, log};
use annex_identity::config::{open, summary_now};
use annex_identity::names::Role;
use annex_kv::store::LogPageTable;
use annex_kv::{Kv, KvFlag};
use annex_metrics::export;
use annex_pager::{Pager, PreviousState, PreviousStateError, parse_rules, probe};
use annex_pool::{Pool, PoolError, PoolState, Spill};
use annex_shared::api::DonorState;
use annex_shared::ids::SlotIdx;
use annex_shared::printable::printable_lines;
use anyhow::Context;
use clap::Parser;
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use sd_notify::NotifyState;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc::{Receiver, channel};

#[global_allocator]
static HEAP: Heap = Heap;

/// The group whose members may manage all apps.
const OPERATORS: &str = "annex";
/// Starting again won't help (EX_CONFIG of sysexits.h; the unit's RestartPreventExitStatus).
const UNUSABLE: u8 = 78;
/// Blocking threads of the control plane: one per request under way.
const REQUEST_THREADS: usize = 64;
/// How long the annexd before may take to hand over.
const HAND_OVER: Duration = Duration::from_secs(5);
/// How long requests that are cut off by the end get to notice.
const LAST_MOMENT: Duration = Duration::from_secs(1);

const KEYS_ALONE: &str = "the keys of the annexd before can't be read: the pool's tables are not among what was kept with them; start annexd without [kv] once to drop the keys";

/// Why annexd ends before its time.
enum Failure {
    /// The configuration or the host won't do, however often it is tried.
    Unusable(anyhow::Error),
    Other(anyhow::Error),
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Failure {
        Failure::Other(error)
    }
}

fn unusable(error: impl Into<anyhow::Error>) -> Failure {
    Failure::Unusable(error.into())
}

fn main() -> ExitCode {
    let flags = Flags::parse();
    let hidden = hide_passwords(&flags.kv);
    let result = match &flags.command {
        Some(Command::CheckConfig { file }) => check_config(file.clone(), flags),
        None => run(flags, hidden),
    };
    let (error, code) = match result {
        Ok(()) => return ExitCode::SUCCESS,
        Err(Failure::Unusable(error)) => (error, ExitCode::from(UNUSABLE)),
        Err(Failure::Other(error)) => (error, ExitCode::FAILURE),
    };
    // Each error names its cause, so the chain would say things twice.
    eprintln!("annexd: {}", printable_lines(&error.to_string()));
    stop::notify(&[NotifyState::Status(&error.to_string())]);
    code
}

/// `file` or else `--config` or else the usual one, with the flags over it: what annexd would start
/// with.
fn check_config(file: Option<PathBuf>, mut flags: Flags) -> Result<(), Failure> {
    if let (Some(file), Some(config)) = (&file, &flags.config)
        && file != config
    {
        let (file, config) = (file.display(), config.display());
        return Err(unusable(anyhow::anyhow!("two files to check, {file} and --config {config}: name one of them")));
    }
    // Another file than the one that annexd would start with is about another annexd.
    let is_for_here = file.is_none();
    flags.config = file.or(flags.config);
    let named = flags.config.clone();
    let config = configure(flags)?;
    config.check_completeness().map_err(unusable)?;
    if is_for_here {
        running::check(&config, main_process()).map_err(unusable)?;
    }
    check_kv(&config)?;
    let host = check_identity(&config)?.map_or_else(String::new, |host| format!("; {host}"));
    let (donors, replicas) = (config.pool.donors.len(), config.pool.replicas);
    let said = match named {
        None if !Path::new(DEFAULT_FILE).exists() => {
            format!(
                "there is no {DEFAULT_FILE}: annexd would start with its defaults ({donors} donors, {replicas} replicas)"
            )
        }
        named => {
            let name = named.as_deref().unwrap_or(Path::new(DEFAULT_FILE)).display();
            format!("{name}: good ({donors} donors, {replicas} replicas){host}")
        }
    };
    say(&said)
}

/// The annexd of the unit that this command runs for, which systemd names in its environment.
fn main_process() -> Option<i32> {
    std::env::var("MAINPID").ok()?.parse().ok()
}

/// Whether the files of `[tls]` are good, and who this host is by them.
fn check_identity(config: &Config) -> Result<Option<String>, Failure> {
    let Some(files) = config.pool.tls.clone() else { return Ok(None) };
    let identity = open(files, Role::Client).map_err(unusable)?;
    Ok(Some(summary_now(&identity)))
}

/// Whether the files for the KV API's TLS are good.
fn check_kv(config: &Config) -> Result<(), Failure> {
    if !config.kv.enabled {
        return Ok(());
    }
    config.kv.tls().map(drop).map_err(|error| unusable(annex_kv::KvError::from(error)))
}

/// Prints a line. A reader that has gone away has seen enough.
fn say(line: &str) -> Result<(), Failure> {
    match writeln!(std::io::stdout(), "{line}") {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Failure::Other(anyhow::Error::new(error).context("failed to write the output")))
        }
        _ => Ok(()),
    }
}

/// The file's configuration with the flags over it.
fn configure(flags: Flags) -> Result<Config, Failure> {
    let mut config = Config::of_file(flags.config.as_deref()).map_err(unusable)?;
    if !flags.donors.is_empty() {
        config.pool.donors = flags.donors.into_iter().map(Into::into).collect();
    }
    config.spill = flags.spill.map_or(config.spill, |flag| flag.0);
    config.kv = KvFlag::together(flags.kv).unwrap_or(config.kv);
    config.socket = flags.socket.unwrap_or(config.socket);
    config.local = flags.local.unwrap_or(config.local);
    config.takeover_wait = flags.takeover_wait.unwrap_or(config.takeover_wait);
    config.pool.takeover_wait = config.takeover_wait;
    config.pool.tls = config.tls.files().map_err(unusable)?;
    config.pool.renew = config.tls.renew.clone();
    config.metrics.listen = flags.metrics.or(config.metrics.listen);
    config.web.listen = flags.web.or(config.web.listen);
    config.log = flags.log.unwrap_or(config.log);
    config.log_format = flags.log_format.or(config.log_format);
    config.pool.replicas = flags.replicas.unwrap_or(config.pool.replicas);
    config.pool.seal |= flags.seal;
    config.pager.fault_workers = flags.fault_workers.unwrap_or(config.pager.fault_workers);
    config.pager.busy_poll_us = flags.busy_poll_us.unwrap_or(config.pager.busy_poll_us);
    config.pager.wait = flags.wait.map_or(config.pager.wait, WaitFlag::into);
    config.check().map_err(unusable)?;
    Ok(config)
}

/// Takes passwords off the command line. What is to be said about them once there is a log.
fn hide_passwords(flags: &[KvFlag]) -> Option<String> {
    let passwords: Vec<&String> = flags.iter().filter_map(|flag| flag.config.password.as_ref()).collect();
    let hidden: std::io::Result<()> =
        passwords.iter().try_for_each(|password| host::hide_from_command_line(",password=", password));
    let said = match hidden {
        Ok(()) => "others could read --kv …,password= on annexd's command line until it was overwritten".to_owned(),
        Err(error) => format!("others can read --kv …,password= on annexd's command line ({error})"),
    };
    (!passwords.is_empty()).then(|| format!("{said}: write it to a file and give password_file=PATH"))
}

fn run(flags: Flags, hidden: Option<String>) -> Result<(), Failure> {
    let take_over = flags.take_over;
    let config = configure(flags)?;
    log::Log::start(log::filter(&config.log).map_err(unusable)?, config.log_format);
    hidden.inspect(|said| tracing::warn!("{said}"));
    host::check().map_err(unusable)?;
    // Before the annexd that runs is asked to go.
    check_identity(&config)?;
    check_kv(&config)?;
    let shortcomings = host::settle_in().map_err(unusable)?;
    // Before anything is built up: a second annexd must not even talk to the donors.
    let socket = match ControlSocket::bind(&config.socket) {
        Err(BindError::AlreadyRunning { pid: Some(pid), .. }) if take_over => {
            running::check(&config, None).map_err(unusable)?;
            replace(pid)?;
            ControlSocket::bind(&config.socket)
        }
        bound => bound,
    };
    let socket = socket.map_err(anyhow::Error::from)?;
    shortcomings.iter().for_each(|s| tracing::warn!("{s}"));

    failpoint::arm().map_err(unusable)?;
    // While there is one thread: the keeper is a copy of this process.
    let keeper =
        FdKeeper::start(socket.path(), config.takeover_wait.0).context("failed to start the keeper process")?;
    let runtime = Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(REQUEST_THREADS)
        .build()
        .context("failed to start the control plane's event loop")?;
    // From here on no signal ends annexd by itself.
    let signals = signals(&runtime)?;

    let keeper = Arc::new(keeper);
    let (pool, spill, apps, kv) = start(&config, keeper.clone())?;
    let view = Arc::new(RunningPool { pool: pool.clone(), replicas: config.pool.replicas });
    announce(&socket, &*view);
    let control = Control::new(apps, view, Operators::Group(OPERATORS.into()), shortcomings);
    if let Some(kv) = &kv {
        control.serve_keys(kv.clone());
    }
    if let Some(address) = config.metrics.listen {
        let shown = Arc::downgrade(&control);
        let take = move || shown.upgrade().map_or_else(String::new, |control| control.metrics().text());
        control.show(export(address, take).context("failed to start the thread for metrics")?);
    }
    if let Some(address) = config.web.listen {
        control.show(web::start(address, &control).context("failed to start the threads for the page")?);
    }
    let retry = std::env::var_os("NOTIFY_SOCKET").map(|_| stop::RETRY);
    runtime.block_on(async {
        let listener = socket.listener().and_then(tokio::net::UnixListener::from_std);
        let listener = listener.with_context(|| format!("failed to listen on {}", socket.path().display()))?;
        tokio::spawn(watchdog::watch(control.apps.clone()));
        server::serve(listener, control.clone(), stop::stopped(control, signals, retry)).await;
        anyhow::Ok(())
    })?;
    stop::notify(&[NotifyState::Stopping]);
    if let Some(kv) = kv {
        let keys = kv.info().keys;
        if keys > 0 {
            tracing::warn!("the KV API's {keys} keys go with annexd: it was stopped in order");
        }
        kv.stop();
        keeper.let_go(Kept::LogPages);
    }
    pool.shutdown();
    spill.inspect(|spill| spill.empty());
    runtime.shutdown_timeout(LAST_MOMENT);
    tracing::info!("stopped: all memory is back");
    Ok(())
}

/// Has the annexd that runs end and leave everything to this one.
fn replace(pid: i32) -> anyhow::Result<()> {
    tracing::info!("taking the place of process {pid}");
    let pid = Pid::from_raw(pid);
    match kill(pid, Signal::SIGUSR1) {
        // It was there a moment ago, and has ended by itself.
        Ok(()) | Err(Errno::ESRCH) => {}
        Err(error) => anyhow::bail!("failed to ask process {pid} to hand over: {error}"),
    }
    let until = Instant::now() + HAND_OVER;
    // Gone, or a zombie that its parent has not collected: its keeper closes what it had, and then
    // the socket is free.
    while ControlSocket::runs(pid.as_raw()) {
        anyhow::ensure!(Instant::now() < until, "process {pid} was asked to hand over and has not ended; it goes on");
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(())
}

/// Ends this annexd at once, as a kill would: the next one finds everything with the keeper.
fn hand_over() -> ! {
    event!(INFO, HandedOver of events::DAEMON, "hands over to the next annexd; programs go on when it has started");
    stop::notify(&[NotifyState::Status("handed over to the next annexd")]);
    // SAFETY: ends the process; nothing here needs to be taken down, and no destructor may let go
    // of what programs depend on.
    unsafe { libc::_exit(0) }
}

fn announce(socket: &ControlSocket, pool: &dyn Donors) {
    let donors = pool.donors();
    let up = donors.iter().filter(|d| d.state == DonorState::Up).count();
    let line = format!("ready on {}: {up} of {} donors up", socket.path().display(), donors.len());
    event!(INFO, Started of events::DAEMON, "{line}");
    pool.warnings().iter().for_each(|warning| tracing::warn!("{warning}"));
    stop::notify(&[NotifyState::Ready, NotifyState::Status(&line)]);
}

/// Takes every signal whose default would end annexd, and passes on the names of those that ask it
/// to stop.
fn signals(runtime: &Runtime) -> anyhow::Result<Receiver<&'static str>> {
    let _entered = runtime.enter();
    let (tx, rx) = channel(1);
    for (kind, name, stops) in [
        (SignalKind::terminate(), "SIGTERM", true),
        (SignalKind::interrupt(), "SIGINT", true),
        (SignalKind::quit(), "SIGQUIT", true),
        (SignalKind::hangup(), "SIGHUP", false),
        (SignalKind::user_defined2(), "SIGUSR2", false),
        (SignalKind::alarm(), "SIGALRM", false),
    ] {
        let mut stream = signal(kind).with_context(|| format!("failed to handle {name}"))?;
        let tx = tx.clone();
        runtime.spawn(async move {
            while stream.recv().await.is_some() {
                if !stops {
                    tracing::info!("{name} means nothing to annexd: it goes on");
                } else if tx.send(name).await.is_err() {
                    break;
                }
            }
        });
    }
    let mut handover = signal(SignalKind::user_defined1()).context("failed to handle SIGUSR1")?;
    runtime.spawn(async move {
        if handover.recv().await.is_some() {
            hand_over();
        }
    });
    Ok(rx)
}

type Running = (Arc<Pool>, Option<Arc<Spill>>, Arc<dyn Apps>, Option<Arc<Kv>>);

/// The KV API's table, if there is to be one: the one that was left, or else a fresh one.
fn log_pages(config: &Config, inheritance: Option<&mut Inheritance>) -> Result<Option<Arc<LogPageTable>>, Failure> {
    let left = inheritance.and_then(|i| i.take(Kept::LogPages));
    if !config.kv.enabled {
        if left.is_some() {
            tracing::warn!("the KV API is not enabled any more: the keys of the annexd before are dropped");
        }
        return Ok(None);
    }
    let table = match left {
        Some(fd) => LogPageTable::open(fd).map_err(unusable)?,
        None => LogPageTable::create().map_err(unusable)?,
    };
    Ok(Some(Arc::new(table)))
}

/// From now on what happens is noted, after what happened before.
fn keep_events(inheritance: Option<&mut Inheritance>, keeper: &FdKeeper) {
    let left = inheritance.and_then(|i| i.take(Kept::Events));
    let left = left.and_then(|fd| {
        events::Ring::open(fd).inspect_err(|error| tracing::warn!("{error}: annex events begins anew")).ok()
    });
    let ring = left.map_or_else(events::Ring::create, Ok);
    match ring {
        Ok(ring) => {
            keeper.keep(Kept::Events, ring.fd());
            events::keep_in(ring);
        }
        Err(error) => tracing::warn!("{error}: annex events has nothing to show"),
    }
}

/// Starts pool and pager, with what the annexd before has left if there is anything.
fn start(config: &Config, keeper: Arc<FdKeeper>) -> Result<Running, Failure> {
    let host = probe::host().map_err(unusable)?;
    tracing::info!("kernel {}: userfaultfd has what annexd needs", host.kernel);
    let mut inheritance = fd_keeper::find(&config.socket).map_err(unusable)?;
    keep_events(inheritance.as_mut(), &keeper);
    let previous = inheritance.as_mut().map(PreviousState::open).transpose().map_err(unusable)?.flatten();
    let tables = inheritance.as_mut().map(|i| (i.take(Kept::Extents), i.take(Kept::Slots)));
    let log_pages = log_pages(config, inheritance.as_mut())?;
    let references = |each: &mut dyn FnMut(SlotIdx)| {
        previous.iter().for_each(|previous| previous.references(each));
        log_pages.iter().for_each(|log_pages| log_pages.references(each));
    };
    let state = match tables {
        Some((Some(extents), Some(slots))) => PoolState::Saved { extents, slots, references: &references },
        _ if previous.is_some() => return Err(unusable(PreviousStateError::Missing("pool's tables"))),
        // A log page names a slot of the pool that was, and would take another's in a fresh one.
        _ if log_pages.as_ref().is_some_and(|log_pages| log_pages.log_pages().next().is_some()) => {
            return Err(unusable(anyhow::anyhow!(KEYS_ALONE)));
        }
        _ => PoolState::Fresh,
    };
    let kept = inheritance.as_mut().and_then(|i| i.take(Kept::Spill));
    let resume = matches!(state, PoolState::Saved { .. });
    let spill = Spill::open(&config.spill, kept, resume, config.pool.op_timeout.0).map_err(unusable)?;
    let pool = Pool::start(config.pool.clone(), spill.clone(), state).map_err(|error| match error {
        PoolError::Config(_) | PoolError::SpillMissing => unusable(error),
        other => Failure::Other(other.into()),
    })?;
    if let Some(spill) = &spill {
        keeper.keep(Kept::Spill, spill.fd());
    }
    let (extents, slots) = pool.state_fds();
    keeper.keep(Kept::Extents, extents);
    keeper.keep(Kept::Slots, slots);
    let kv = match log_pages {
        Some(log_pages) => {
            keeper.keep(Kept::LogPages, log_pages.fd());
            let kv = Kv::start(&config.kv, pool.clone(), log_pages);
            Some(Arc::new(kv.context("failed to start the KV API")?))
        }
        None => None,
    };
    let previous = previous.zip(inheritance.as_ref().map(Inheritance::generation));
    let (settings, detached) = ((&config.pager, &config.users), config.socket.with_extension("detached"));
    let pager = Pager::start(settings, config.local, host, pool.clone(), keeper, previous, detached);
    let pager = Arc::new(pager.context("failed to start the pager")?);
    if let Some(inheritance) = inheritance {
        inheritance.settle();
    }
    pager
        .follow(parse_rules(&config.app).map_err(unusable)?)
        .context("failed to start the thread that follows rules")?;
    Ok((pool, spill, pager, kv))
}
