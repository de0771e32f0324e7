//! The annex-agent program: process set-up, signals.

use annex_agent::flags::{Command, Flags, Settings};
use annex_agent::{Agent, Config, doctor, local, store};
use annex_doctor::report;
use annex_host::repeats::say_counts;
use annex_host::{failpoint, log};
use annex_identity::config as tls;
use annex_shared::printable::{printable, printable_json, printable_lines};
use anyhow::Context;
use clap::Parser;
use nix::errno::Errno;
use nix::sys::mman::{MlockAllFlags, mlockall};
use nix::sys::signal::{SigSet, Signal};
use sd_notify::NotifyState;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use tracing::{error, info, warn};

/// How often systemd's status line is looked at.
const STATUS_PERIOD: Duration = Duration::from_secs(5);

fn main() -> ExitCode {
    match run(Flags::parse()) {
        Ok(code) => code,
        Err(e) => {
            eprintln!("annex-agent: {}", printable_lines(&format!("{e:#}")));
            ExitCode::FAILURE
        }
    }
}

fn run(flags: Flags) -> anyhow::Result<ExitCode> {
    // Before any thread starts, so that all inherit it and the signals come to the wait below.
    let signals = SigSet::from_iter([Signal::SIGTERM, Signal::SIGINT, Signal::SIGUSR2, Signal::SIGHUP]);
    if let Some(command) = flags.command {
        let filter = log::filter(flags.set.log.as_deref().unwrap_or("info")).map_err(told)?;
        log::Log::start(filter, flags.set.log_format);
        return ask(command, flags.set);
    }
    signals.thread_block().context("failed to block signals")?;
    let config = flags.set.clone().over_file().map_err(told)?;
    let log = log::Log::start(log::filter(&config.log).map_err(told)?, config.log_format);
    failpoint::arm()?;
    let agent = Agent::start(config).map_err(told)?;
    stay_in_memory();
    notify(&[NotifyState::Ready, NotifyState::Status(&agent.summary())]);

    let signal = loop {
        match wait(&signals, &agent)? {
            Signal::SIGHUP => reload(&agent, flags.set.clone(), &log),
            signal => break signal,
        }
    };
    info!("{signal}: stopping");
    notify(&[NotifyState::Stopping]);
    // A second signal ends it at once; one that asks for the configuration to be read does not.
    let mut signals = signals;
    signals.remove(Signal::SIGHUP);
    signals.thread_unblock().context("failed to unblock signals")?;
    if signal == Signal::SIGUSR2 && agent.can_hand_over() {
        info!("stopped; the leases wait for the next agent");
        return Ok(ExitCode::SUCCESS);
    }
    agent.shutdown();
    info!("stopped");
    Ok(ExitCode::SUCCESS)
}

/// Reads the configuration again. One that won't do changes nothing.
fn reload(agent: &Agent, set: Settings, log: &log::Log) {
    let mut states = vec![NotifyState::Reloading];
    states.extend(NotifyState::monotonic_usec_now());
    notify(&states);
    let filter = |text: &str| log::filter(text).map_err(|e| e.to_string());
    let reloaded = set.over_file().map_err(|e| e.to_string()).and_then(|config| {
        let reloaded = agent.reload(config).map_err(|e| e.to_string())?;
        Ok((filter(&reloaded.log)?, reloaded))
    });
    match reloaded {
        Ok((filter, reloaded)) => {
            info!("configuration reloaded: {}", reloaded.summary());
            for key in &reloaded.waiting {
                warn!("{key} has changed: restart annex-agent for it");
            }
            log.set_filter(filter);
        }
        Err(e) => error!("the configuration is refused, and the one before goes on: {}", printable_lines(&e)),
    }
    notify(&[NotifyState::Ready, NotifyState::Status(&agent.summary())]);
}

/// Everything but being an agent.
fn ask(command: Command, set: Settings) -> anyhow::Result<ExitCode> {
    match command {
        Command::CheckConfig { file } => {
            let identity = annex_agent::agent::check(Config::load(&file).map_err(told)?).map_err(told)?;
            let who = identity.map(|identity| tls::summary_now(&identity));
            say(&format!("{}: good{}", file.display(), who.map(|who| format!("; {who}")).unwrap_or_default()))?;
        }
        Command::Keeper { socket } => {
            store::keeper::run(&socket)
                .with_context(|| format!("the keeper at {} could not go on", socket.display()))?;
        }
        Command::Status { json } => {
            let status = local::call(&control_socket(set)?, "GET", "/v1/status").map_err(told)?;
            match json {
                true => say(&printable_json(&serde_json::to_string_pretty(&status)?))?,
                false => local::print_status(&status),
            }
        }
        Command::Doctor { json } => {
            let found = doctor::doctor(set);
            match json {
                true => say(&printable_json(&serde_json::to_string_pretty(&found)?))?,
                false => say(found.text(report::is_coloured()).trim_end())?,
            }
            return Ok(ExitCode::from(found.exit_code()));
        }
        Command::Drain { cancel: true, .. } => {
            let status = local::call(&control_socket(set)?, "DELETE", "/v1/drain").map_err(told)?;
            say(&format!("{} lends again", printable(&status.name)))?;
        }
        Command::Drain { timeout, json, .. } => {
            local::drain(&control_socket(set)?, timeout.map(|t| t.0), json).map_err(told)?;
        }
    }
    Ok(ExitCode::SUCCESS)
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
    set.over_file().map_err(told)?.control_path().context("this agent has no control_socket: configure one")
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
        say_counts(Instant::now());
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
