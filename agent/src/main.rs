//! The annex-agent program: flags, process set-up, signals.

use annex_agent::hugepages::Hugepages;
use annex_agent::{Agent, Config, local, store};
use annex_host::failpoint;
use annex_shared::config::{ByteSize, TimeSpan, check_log_filter};
use annex_shared::printable::{printable, printable_json, printable_lines};
use anyhow::Context;
use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::{Parser, Subcommand};
use nix::errno::Errno;
use nix::sys::mman::{MlockAllFlags, mlockall};
use nix::sys::signal::{SigSet, Signal};
use sd_notify::NotifyState;
use std::io::{IsTerminal, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use tracing::{error, info, warn};
use tracing_subscriber::EnvFilter;

/// How often systemd's status line is looked at.
const STATUS_PERIOD: Duration = Duration::from_secs(5);

/// Lends this machine's idle memory to annex clients.
#[derive(Debug, Parser)]
#[command(name = "annex-agent", version)]
struct Flags {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    set: Settings,
    /// What to log: error, warn, info, debug, trace, or a filter such as `annex_agent=debug`
    #[arg(long, default_value = "info", value_name = "LEVEL")]
    log: String,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Say whether a configuration file would work on this machine, and exit
    CheckConfig { file: PathBuf },
    /// Show what a running agent lends, to whom, and how its host is
    Status {
        #[arg(long)]
        json: bool,
    },
    /// Empty a running agent for maintenance: nothing is lent any more, clients are asked to move
    /// their pages elsewhere and return what they have. Waits until it is empty; where that is
    /// interrupted, draining goes on. Nothing is revoked, and an agent that is restarted lends
    /// again
    Drain {
        /// Lend again
        #[arg(long, conflicts_with = "timeout")]
        cancel: bool,
        /// Wait no longer than this; draining goes on [default: as long as it takes]
        #[arg(long, value_name = "TIME")]
        timeout: Option<TimeSpan>,
        /// A line of JSON for each step
        #[arg(long)]
        json: bool,
    },
    /// Hold the memory of an agent that is run without systemd while it is restarted (the agent
    /// starts this by itself)
    #[command(name = store::keeper::SUBCOMMAND)]
    Keeper {
        /// Where the agent looks for it: the `keeper` of its configuration
        socket: PathBuf,
    },
}

/// Each overrides the configuration file's key of the same name.
#[derive(Debug, clap::Args)]
struct Settings {
    /// Configuration file (TOML) [default: none]
    #[arg(long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Address and port to listen on [default: 127.0.0.1:7411]
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: Option<SocketAddr>,
    /// Allow an address other than loopback, without encryption or authentication
    #[arg(long)]
    insecure: bool,
    /// What clients call this donor [default: the host name]
    #[arg(long)]
    name: Option<String>,
    /// The most memory to lend [default: a quarter of the machine's]
    #[arg(long, value_name = "SIZE")]
    capacity: Option<ByteSize>,
    /// Size of a slab [default: 64M]
    #[arg(long, value_name = "SIZE")]
    slab_size: Option<ByteSize>,
    /// The most memory to lend to one client [default: all]
    #[arg(long, value_name = "SIZE")]
    per_client: Option<ByteSize>,
    /// Available memory that stays with this host [default: the larger of 512M and 5 %]
    #[arg(long, value_name = "SIZE")]
    headroom: Option<ByteSize>,
    /// Make slabs of 2 MiB pages [default: off]
    #[arg(long, value_enum)]
    hugepages: Option<Hugepages>,
    /// Allocate the whole capacity at start
    #[arg(long)]
    prefault: bool,
    /// Free slabs kept allocated [default: 4]
    #[arg(long, value_name = "COUNT")]
    spare_slabs: Option<u32>,
    /// A lease that is not renewed for this long is over [default: 60s]
    #[arg(long, value_name = "TIME")]
    lease_ttl: Option<TimeSpan>,
    /// How long clients get to move their pages when this host needs memory back [default: 30s]
    #[arg(long, value_name = "TIME")]
    recall_deadline: Option<TimeSpan>,
    /// How long clients get to bring their pages home when the agent stops [default: 2s]
    #[arg(long, value_name = "TIME")]
    grace: Option<TimeSpan>,
    /// Unix socket for clients on this host; "" for none [default: /run/annex/agent.sock]
    #[arg(long, global = true, value_name = "PATH", value_parser = OsStringValueParser::new().map(PathBuf::from))]
    shm_socket: Option<PathBuf>,
    /// Unix socket for `status` and `drain`; "" for none [default: beside the one for shm]
    #[arg(long, global = true, value_name = "PATH", value_parser = OsStringValueParser::new().map(PathBuf::from))]
    control_socket: Option<PathBuf>,
    /// Unix socket of a process that holds the memory while the agent is restarted, where there
    /// is no systemd; "" for none [default: none]
    #[arg(long, value_name = "PATH", value_parser = OsStringValueParser::new().map(PathBuf::from))]
    keeper: Option<PathBuf>,
    /// Connections of clients at once [default: 1024]
    #[arg(long, value_name = "COUNT")]
    max_connections: Option<u32>,
    /// Show metrics for Prometheus there, on http://ADDRESS/metrics [default: nowhere]
    #[arg(long, value_name = "ADDRESS:PORT")]
    metrics: Option<SocketAddr>,
    /// Failure-domain label, such as rack=r7; may be repeated [default: none]
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = parse_label)]
    labels: Vec<(String, String)>,
}

fn parse_label(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("write it as KEY=VALUE")?;
    Ok((key.to_owned(), value.to_owned()))
}

impl Settings {
    /// The file's configuration with the flags over it.
    fn over_file(self) -> anyhow::Result<Config> {
        let mut config = match &self.config {
            Some(path) => Config::load(path).map_err(told)?,
            None => Config::default(),
        };
        config.insecure |= self.insecure;
        config.prefault |= self.prefault;
        config.labels.extend(self.labels);
        config.name = self.name.or(config.name);
        config.capacity = self.capacity.or(config.capacity);
        config.per_client = self.per_client.or(config.per_client);
        config.headroom = self.headroom.or(config.headroom);
        config.listen = self.listen.unwrap_or(config.listen);
        config.slab_size = self.slab_size.unwrap_or(config.slab_size);
        config.hugepages = self.hugepages.unwrap_or(config.hugepages);
        config.spare_slabs = self.spare_slabs.unwrap_or(config.spare_slabs);
        config.lease_ttl = self.lease_ttl.unwrap_or(config.lease_ttl);
        config.recall_deadline = self.recall_deadline.unwrap_or(config.recall_deadline);
        config.grace = self.grace.unwrap_or(config.grace);
        config.shm_socket = self.shm_socket.unwrap_or(config.shm_socket);
        config.control_socket = self.control_socket.or(config.control_socket);
        config.keeper = self.keeper.unwrap_or(config.keeper);
        config.metrics.listen = self.metrics.or(config.metrics.listen);
        config.max_connections = self.max_connections.unwrap_or(config.max_connections);
        Ok(config)
    }
}

fn main() -> ExitCode {
    match run(Flags::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("annex-agent: {}", printable_lines(&format!("{e:#}")));
            ExitCode::FAILURE
        }
    }
}

fn run(flags: Flags) -> anyhow::Result<()> {
    check_log_filter(&flags.log).map_err(told).context("bad --log")?;
    let filter = EnvFilter::try_new(&flags.log).context("bad --log")?;
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_target(false);
    // The journal has its own clock.
    match std::env::var_os("JOURNAL_STREAM") {
        Some(_) => log.with_ansi(false).without_time().init(),
        None => log.with_ansi(std::io::stderr().is_terminal()).init(),
    }
    match flags.command {
        Some(Command::CheckConfig { file }) => {
            annex_agent::agent::check(Config::load(&file).map_err(told)?).map_err(told)?;
            return say(&format!("{}: good", file.display()));
        }
        Some(Command::Keeper { socket }) => {
            return store::keeper::run(&socket)
                .with_context(|| format!("the keeper at {} could not go on", socket.display()));
        }
        Some(Command::Status { json }) => {
            let status = local::call(&control_socket(flags.set)?, "GET", "/v1/status").map_err(told)?;
            match json {
                true => return say(&printable_json(&serde_json::to_string_pretty(&status)?)),
                false => local::print_status(&status),
            }
            return Ok(());
        }
        Some(Command::Drain { cancel: true, .. }) => {
            let status = local::call(&control_socket(flags.set)?, "DELETE", "/v1/drain").map_err(told)?;
            return say(&format!("{} lends again", printable(&status.name)));
        }
        Some(Command::Drain { timeout, json, .. }) => {
            return local::drain(&control_socket(flags.set)?, timeout.map(|t| t.0), json).map_err(told);
        }
        None => {}
    }
    failpoint::arm()?;
    let config = flags.set.over_file()?;

    // Before any thread starts, so that all inherit it and the signals come to the wait below.
    let signals = SigSet::from_iter([Signal::SIGTERM, Signal::SIGINT, Signal::SIGUSR2]);
    signals.thread_block().context("failed to block signals")?;
    let agent = Agent::start(config).map_err(told)?;
    stay_in_memory();
    notify(&[NotifyState::Ready, NotifyState::Status(&agent.summary())]);

    let signal = wait(&signals, &agent)?;
    info!("{signal}: stopping");
    notify(&[NotifyState::Stopping]);
    // A second signal ends it at once.
    signals.thread_unblock().context("failed to unblock signals")?;
    if signal == Signal::SIGUSR2 && agent.can_hand_over() {
        info!("stopped; the leases wait for the next agent");
        return Ok(());
    }
    agent.shutdown();
    info!("stopped");
    Ok(())
}

/// Prints a line. A reader that has gone away has seen enough.
fn say(text: &str) -> anyhow::Result<()> {
    match writeln!(std::io::stdout(), "{text}") {
        Err(e) if e.kind() != std::io::ErrorKind::BrokenPipe => Err(e).context("failed to write the output"),
        _ => Ok(()),
    }
}

/// Where the agent with these settings is asked.
fn control_socket(set: Settings) -> anyhow::Result<PathBuf> {
    set.over_file()?.control_path().context("this agent has no control_socket: configure one")
}

/// Waits for a signal. Meanwhile systemd is told how things are, and that they go on, as often as
/// it asks to be.
fn wait(signals: &SigSet, agent: &Agent) -> anyhow::Result<Signal> {
    let every = sd_notify::watchdog_enabled().map_or(STATUS_PERIOD, |limit| (limit / 3).min(STATUS_PERIOD));
    let mut said = String::new();
    loop {
        let timeout = libc::timespec { tv_sec: every.as_secs() as i64, tv_nsec: i64::from(every.subsec_nanos()) };
        // SAFETY: both are valid for the call, and no information about the signal is asked for.
        let number = unsafe { libc::sigtimedwait(signals.as_ref(), std::ptr::null_mut(), &timeout) };
        match Errno::result(number) {
            Ok(number) => return Signal::try_from(number).context("failed to wait for a signal"),
            Err(Errno::EAGAIN | Errno::EINTR) => {}
            Err(e) => return Err(e).context("failed to wait for a signal"),
        }
        // An agent that hangs is not to be reported alive: systemd then ends it, and the next one
        // goes on with its leases.
        if !agent.is_alive(every) {
            error!("the agent makes no progress");
            continue;
        }
        notify(&[NotifyState::Watchdog]);
        let now = agent.summary();
        if now != said {
            notify(&[NotifyState::Status(&now)]);
            said = now;
        }
    }
}

/// An error whose text names its causes already: they are not to be appended once more.
fn told(error: impl std::error::Error) -> anyhow::Error {
    anyhow::Error::msg(error.to_string())
}

/// The agent serves page faults: it must not wait for pages of its own, nor be the one the OOM
/// killer takes.
fn stay_in_memory() {
    let on_fault = MlockAllFlags::from_bits_retain(libc::MCL_ONFAULT);
    if let Err(e) = mlockall(MlockAllFlags::MCL_CURRENT | MlockAllFlags::MCL_FUTURE | on_fault) {
        warn!("failed to lock the agent's own memory, it may be swapped out: {e} (LimitMEMLOCK=infinity allows it)");
    }
    const SCORE: i32 = -900;
    const FILE: &str = "/proc/self/oom_score_adj";
    // Its unit may have seen to that, and the agent may lack the right to.
    let is_low = std::fs::read_to_string(FILE).is_ok_and(|s| s.trim().parse::<i32>().is_ok_and(|n| n <= SCORE));
    if !is_low && let Err(e) = std::fs::write(FILE, SCORE.to_string()) {
        warn!("failed to lower the agent's OOM score, it may be killed when this host runs out of memory: {e}");
    }
}

fn notify(states: &[NotifyState<'_>]) {
    if let Err(e) = sd_notify::notify(states) {
        error!("failed to notify systemd: {e}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    /// What the help says that an option is unless it is given.
    fn told(option: &str) -> String {
        let flags = Flags::command();
        let option = flags.get_arguments().find(|arg| arg.get_long() == Some(option)).expect("there is such an option");
        let help = option.get_help().expect("it has a help text").to_string();
        let (_, told) = help.rsplit_once("[default: ").unwrap_or_else(|| panic!("no default is told: {help}"));
        told.trim_end_matches(']').to_owned()
    }

    /// `annex-agent drain --control-socket …` was refused: it had to stand before `drain`.
    #[test]
    fn which_agent_is_asked_may_stand_behind_what_it_is_asked() {
        for line in
            [["annex-agent", "--control-socket", "/c", "drain"], ["annex-agent", "drain", "--control-socket", "/c"]]
        {
            let flags = Flags::try_parse_from(line).expect("it is understood");
            assert_eq!(flags.set.control_socket, Some("/c".into()));
        }
    }

    #[test]
    fn the_command_line_is_well_formed() {
        Flags::command().debug_assert();
    }

    /// A lease was said to last 10 s, and lasts 60.
    #[test]
    fn the_help_tells_the_defaults_as_they_are() {
        let config = Config::default();
        assert_eq!(told("listen"), config.listen.to_string());
        assert_eq!(told("slab-size").parse(), Ok(config.slab_size));
        assert_eq!(told("spare-slabs"), config.spare_slabs.to_string());
        assert_eq!(told("lease-ttl").parse(), Ok(config.lease_ttl));
        assert_eq!(told("recall-deadline").parse(), Ok(config.recall_deadline));
        assert_eq!(told("grace").parse(), Ok(config.grace));
        assert_eq!(PathBuf::from(told("shm-socket")), config.shm_socket);
        assert_eq!(told("max-connections"), config.max_connections.to_string());
        let of_machine =
            ["config", "name", "capacity", "per-client", "headroom", "hugepages", "control-socket", "keeper", "label"];
        for option in of_machine {
            told(option);
        }
    }
}
