//! `annexd`: reads its configuration, makes itself at home on the host, starts pool and pager, and serves the control API until it may stop.

use annex_daemon::config::{Config, DonorFlag};
use annex_daemon::control::pool::RunningPool;
use annex_daemon::control::{Apps, Control, ControlSocket, Donors, Operators, host, server, stop};
use annex_daemon::keeper::{self, Keeper};
use annex_daemon::pager::{Pager, Wait, probe};
use annex_daemon::pool::{Pool, PoolError, PoolState};
use annex_shared::api::{DonorState, Limit};
use anyhow::Context;
use clap::{Parser, Subcommand};
use sd_notify::NotifyState;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc::{Receiver, channel};

/// The group whose members may manage all apps.
const OPERATORS: &str = "annex";
/// Starting again won't help (EX_CONFIG of sysexits.h; the unit's RestartPreventExitStatus).
const UNUSABLE: u8 = 78;
/// Blocking threads of the control plane: one per request under way.
const REQUEST_THREADS: usize = 64;
/// How long requests that are cut off by the end get to notice.
const LAST_MOMENT: Duration = Duration::from_secs(1);

const DONOR_HELP: &str = "A donor: HOST:PORT[,transport=auto|tcp|shm][,name=NAME][,faults=PLAN]; may be repeated, and replaces the file's donors";

/// Pages the cold memory of programs to other machines and back.
#[derive(Debug, Parser)]
#[command(name = "annexd", version)]
struct Flags {
    #[command(subcommand)]
    command: Option<Command>,
    /// Configuration file (TOML) [default: /etc/annex/annexd.toml if there is one]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Control socket [default: /run/annex/annexd.sock]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    #[arg(long = "donor", value_name = "DONOR", help = DONOR_HELP)]
    donors: Vec<DonorFlag>,
    /// Copies of every page, 1 to 4 [default: 2]
    #[arg(long, value_name = "COUNT")]
    replicas: Option<u8>,
    /// What an app may keep resident unless it is told otherwise [default: 50%]
    #[arg(long, value_name = "LIMIT")]
    local: Option<Limit>,
    /// Threads that answer page faults; 0 = as many as suits the host
    #[arg(long, value_name = "COUNT")]
    fault_workers: Option<u32>,
    /// What fault workers do while there are no faults [default: block]
    #[arg(long, value_enum)]
    wait: Option<WaitFlag>,
    /// What to log: error, warn, info, debug, trace, or a filter such as `annex_daemon=debug` [default: info]
    #[arg(long, value_name = "LEVEL")]
    log: Option<String>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Say whether a configuration file is good, and exit
    CheckConfig { file: PathBuf },
    /// Started by annexd itself: ends programs whose memory would be lost with annexd
    #[command(hide = true)]
    Keeper,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum WaitFlag {
    /// Sleep: costs nothing, and a fault on the same CPU is answered fastest
    Block,
    /// Burn a CPU per worker to see faults from other CPUs sooner
    Spin,
}

impl From<WaitFlag> for Wait {
    fn from(flag: WaitFlag) -> Wait {
        match flag {
            WaitFlag::Block => Wait::Block,
            WaitFlag::Spin => Wait::Spin,
        }
    }
}

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
    let result = match &flags.command {
        Some(Command::CheckConfig { file }) => check_config(file),
        Some(Command::Keeper) => return keep(),
        None => run(flags),
    };
    let (error, code) = match result {
        Ok(()) => return ExitCode::SUCCESS,
        Err(Failure::Unusable(error)) => (error, ExitCode::from(UNUSABLE)),
        Err(Failure::Other(error)) => (error, ExitCode::FAILURE),
    };
    // Each error names its cause, so the chain would say things twice.
    eprintln!("annexd: {error}");
    stop::notify(&[NotifyState::Status(&error.to_string())]);
    code
}

fn keep() -> ExitCode {
    match keeper::run() {
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::from(keeper::HAD_TO_END_PROGRAMS),
        Err(error) => {
            eprintln!("annexd keeper: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn check_config(file: &Path) -> Result<(), Failure> {
    let config = Config::of_file(Some(file)).map_err(unusable)?;
    config.check().map_err(unusable)?;
    println!("{}: good ({} donors, {} replicas)", file.display(), config.pool.donors.len(), config.pool.replicas);
    Ok(())
}

/// The file's configuration with the flags over it.
fn configure(flags: Flags) -> Result<Config, Failure> {
    let mut config = Config::of_file(flags.config.as_deref()).map_err(unusable)?;
    if !flags.donors.is_empty() {
        config.pool.donors = flags.donors.into_iter().map(|flag| flag.0).collect();
    }
    config.socket = flags.socket.unwrap_or(config.socket);
    config.local = flags.local.unwrap_or(config.local);
    config.log = flags.log.unwrap_or(config.log);
    config.pool.replicas = flags.replicas.unwrap_or(config.pool.replicas);
    config.pager.fault_workers = flags.fault_workers.unwrap_or(config.pager.fault_workers);
    config.pager.wait = flags.wait.map_or(config.pager.wait, WaitFlag::into);
    config.check().map_err(unusable)?;
    Ok(config)
}

fn run(flags: Flags) -> Result<(), Failure> {
    let config = configure(flags)?;
    start_log(&config)?;
    host::check().map_err(unusable)?;
    let shortcomings = host::settle_in().map_err(unusable)?;
    // Before anything is built up: a second annexd must not even talk to the donors.
    let socket = ControlSocket::bind(&config.socket).map_err(anyhow::Error::from)?;
    shortcomings.iter().for_each(|s| tracing::warn!("{s}"));

    let runtime = Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(REQUEST_THREADS)
        .build()
        .context("failed to start the control plane's event loop")?;
    // From here on no signal ends annexd by itself.
    let signals = signals(&runtime)?;

    let keeper = Keeper::start().context("failed to start the keeper process")?;
    let pool = Pool::start(config.pool.clone(), PoolState::Fresh).map_err(|error| match error {
        PoolError::Config(_) | PoolError::DonorMissing(_) => unusable(error),
        other => Failure::Other(other.into()),
    })?;
    let apps = start_pager(&config, &pool, keeper)?;
    let view = Arc::new(RunningPool { pool: pool.clone(), replicas: config.pool.replicas });
    announce(&socket, &*view);
    let control = Control::new(apps, view, Operators::Group(OPERATORS.into()), shortcomings);
    let retry = std::env::var_os("NOTIFY_SOCKET").map(|_| stop::RETRY);
    runtime.block_on(async {
        let listener = socket.listener().and_then(tokio::net::UnixListener::from_std);
        let listener = listener.with_context(|| format!("failed to listen on {}", socket.path().display()))?;
        server::serve(listener, control.clone(), stop::stopped(control, signals, retry)).await;
        anyhow::Ok(())
    })?;
    stop::notify(&[NotifyState::Stopping]);
    pool.shutdown();
    runtime.shutdown_timeout(LAST_MOMENT);
    tracing::info!("stopped: all memory is back");
    Ok(())
}

fn start_log(config: &Config) -> Result<(), Failure> {
    let filter = config.log_filter().map_err(unusable)?;
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_target(false);
    // The journal has its own clock.
    match std::env::var_os("JOURNAL_STREAM") {
        Some(_) => log.with_ansi(false).without_time().init(),
        None => log.with_ansi(std::io::stderr().is_terminal()).init(),
    }
    Ok(())
}

fn announce(socket: &ControlSocket, pool: &dyn Donors) {
    let donors = pool.donors();
    let up = donors.iter().filter(|d| d.state == DonorState::Up).count();
    let line = format!("ready on {}: {up} of {} donors up", socket.path().display(), donors.len());
    tracing::info!("{line}");
    pool.warnings().iter().for_each(|warning| tracing::warn!("{warning}"));
    stop::notify(&[NotifyState::Ready, NotifyState::Status(&line)]);
}

/// Takes every signal whose default would end annexd, and passes on the names of those that ask it to stop.
fn signals(runtime: &Runtime) -> anyhow::Result<Receiver<&'static str>> {
    let _entered = runtime.enter();
    let (tx, rx) = channel(1);
    for (kind, name, stops) in [
        (SignalKind::terminate(), "SIGTERM", true),
        (SignalKind::interrupt(), "SIGINT", true),
        (SignalKind::quit(), "SIGQUIT", true),
        (SignalKind::hangup(), "SIGHUP", false),
        (SignalKind::user_defined1(), "SIGUSR1", false),
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
    Ok(rx)
}

fn start_pager(config: &Config, pool: &Arc<Pool>, keeper: Keeper) -> Result<Arc<dyn Apps>, Failure> {
    let host = probe::host().map_err(unusable)?;
    tracing::info!("kernel {}: userfaultfd has what annexd needs", host.kernel);
    let pager = Pager::start(&config.pager, config.local, host, pool.clone(), keeper);
    Ok(Arc::new(pager.context("failed to start the pager")?))
}
