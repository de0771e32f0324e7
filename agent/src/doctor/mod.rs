//! `annex-agent doctor`: finds what keeps this machine from lending.
//!
//! It looks at the host, reads the agent's configuration, and asks the agent over its local socket.
//! Where the agent does not run, all else is checked all the same. Nothing is changed.
//!
//! - [`lints`]: what an agent starts with, and what will disappoint all the same.

mod lints;

use crate::config::{BadConfig, Config, Terms};
use crate::flags::Settings;
use crate::local::{self, CallError, Status};
use crate::pressure::HostMemory;
use annex_doctor::{Check, Host, Report, Role, Subject, checks, network, process, rdma, tls};
use annex_identity::ca::CaError;
use annex_identity::files::FileError;
use annex_identity::join::signer::{SignerError, open_ca};
use annex_identity::names;
use annex_shared::api::format_bytes;
use lints::HostState;
use nix::sys::socket::{getsockopt, sockopt};
use rustls::pki_types::UnixTime;
use std::io;
use std::net::TcpListener;
use std::os::unix::net::UnixStream;
use std::path::Path;

/// What the shipped unit gives to `--config`.
const DEFAULT_FILE: &str = "/etc/annex/agent.toml";
const AGENT: &str = "agent";

/// All checks, with these settings over the configuration file.
pub fn doctor(mut settings: Settings) -> Report {
    let host = Host::here();
    if settings.config.is_none() && Path::new(DEFAULT_FILE).exists() {
        settings.config = Some(DEFAULT_FILE.into());
    }
    let source = settings.config.as_ref().map(|path| path.display().to_string());
    let read = settings.over_file();
    let control = read.as_ref().map_or_else(|_| Config::default().control_path(), Config::control_path);
    let answer = control.as_deref().map(|path| local::call(path, "GET", "/v1/status"));
    let status = answer.as_ref().and_then(|answer| answer.as_ref().ok());
    let pid = status.and(control.as_deref()).and_then(listener);
    let subject = Subject { role: Role::Donor, pid };

    let mut report = Report::default();
    report.add("host", checks(&host, &subject, None));
    report.add("agent", running(answer.as_ref()));
    report.add("configuration", configuration(read, source.as_deref(), status, &host, &subject));
    report
}

/// The process behind a socket.
fn listener(path: &Path) -> Option<i32> {
    let stream = UnixStream::connect(path).ok()?;
    Some(getsockopt(&stream, sockopt::PeerCredentials).ok()?.pid()).filter(|pid| *pid > 0)
}

fn configuration(
    read: Result<Config, BadConfig>,
    source: Option<&str>,
    status: Option<&Status>,
    host: &Host,
    subject: &Subject,
) -> Vec<Check> {
    const NAME: &str = "file";
    let from = source.unwrap_or("defaults and flags, since no file was named");
    let (config, memory) = match (read, HostMemory::now()) {
        (Err(BadConfig::File(error)), _) if is_denied(&error) => {
            return vec![Check::warn(NAME, error.to_string(), "run it as root: sudo annex-agent doctor")];
        }
        (Err(error), _) => return vec![Check::fail(NAME, error.to_string(), "mend the file that the message names")],
        (_, Err(error)) => {
            return vec![Check::warn(NAME, format!("the host's memory is unknown: {error}"), "mount /proc")];
        }
        (Ok(config), Ok(memory)) => (config, memory),
    };
    let tls = tls::certificate(&config.tls, names::Role::Donor, UnixTime::now());
    let terms = match config.resolve(&memory, "") {
        Ok(terms) => terms,
        Err(error) => {
            let remedy = "the agent does not start with it; change the key that the message names";
            return vec![Check::fail(NAME, error.to_string(), remedy)];
        }
    };
    let machine = HostState {
        total: memory.total,
        available: memory.available,
        lent: status.map_or(0, |status| {
            u64::from(status.slabs.capacity.saturating_sub(status.slabs.vacant)) * status.slab_size
        }),
        addresses: network::addresses(host).unwrap_or_default(),
        lockable: process::lockable(host, subject).unwrap_or(None),
        is_running: status.is_some(),
        listen: try_to_listen(&terms, status.is_some()),
    };
    let mut checks = vec![Check::ok(NAME, from)];
    checks.extend(lints::lints(&terms, &machine));
    checks.extend(terms.verbs.as_ref().and_then(|choice| {
        let (device, port, gid_index) = (choice.device.clone(), choice.port, choice.gid_index);
        rdma::configured(host, &rdma::Configured { device, port, gid_index, table: "[verbs]" })
    }));
    checks.extend(tls);
    checks.extend(ca(&terms));
    checks
}

/// Whether hosts can join. A `[tls]` that can't be used has been told of.
fn ca(terms: &Terms) -> Option<Check> {
    const NAME: &str = "ca";
    let (dir, identity) = (terms.ca.as_deref()?, terms.identity().ok()??);
    Some(match open_ca(dir, &identity) {
        Ok(ca) => {
            Check::ok(NAME, format!("hosts of cluster {} join here, with the CA in {}", ca.cluster(), dir.display()))
        }
        Err(SignerError::Ca(CaError::File(FileError::Read { source, .. })))
            if source.kind() == io::ErrorKind::PermissionDenied =>
        {
            Check::warn(
                NAME,
                format!("unknown: failed to read {}", dir.display()),
                "run it as root: sudo annex-agent doctor",
            )
        }
        Err(error @ SignerError::OtherCa { .. }) => {
            Check::fail(NAME, error.to_string(), "annex ca issue --role donor --name NAME makes one of that CA")
        }
        Err(error) => Check::fail(NAME, error.to_string(), "name the folder of a CA as dir in [ca], or take dir away"),
    })
}

fn is_denied(error: &annex_shared::config::ConfigError) -> bool {
    let annex_shared::config::ConfigError::Unreadable { source, .. } = error else { return false };
    source.kind() == io::ErrorKind::PermissionDenied
}

/// Whether the address could be had. A running agent has it already.
fn try_to_listen(terms: &Terms, is_running: bool) -> io::Result<()> {
    if is_running { Ok(()) } else { TcpListener::bind(terms.listen).map(drop) }
}

/// `None`: the agent has no socket to be asked on.
fn running(answer: Option<&Result<Status, CallError>>) -> Vec<Check> {
    let status = match answer {
        None => {
            let message = "unknown: control_socket = \"\" leaves no way to ask it";
            return vec![Check::warn(AGENT, message, "leave control_socket out of agent.toml")];
        }
        Some(Err(error)) => return vec![silent(error)],
        Some(Ok(status)) => status,
    };
    let mut checks = vec![state(status), version(&status.version)];
    checks.extend(status.shortcoming.as_ref().map(|why| {
        let message = format!("a slab gets no memory, and clients are told so: {why}");
        Check::fail(
            "lending",
            message,
            "do as it says, then systemctl restart annex-agent: it goes on with what is lent",
        )
    }));
    checks.push(Check::ok("RDMA offered", status.rdma.as_str()));
    checks.push(match status.kept_by.as_str() {
        "nothing" => Check::warn(
            "restart",
            "nothing keeps the memory while the agent is restarted: clients lose what they have here",
            "run it under systemd as shipped (FileDescriptorStoreMax=), or set keeper in agent.toml",
        ),
        keeper => Check::ok("restart", format!("{keeper} keeps the memory")),
    });
    checks
}

fn silent(error: &CallError) -> Check {
    let CallError::Unreachable { path, source } = error else {
        return Check::fail(AGENT, error.to_string(), "journalctl -u annex-agent");
    };
    let path = path.display();
    match source.kind() {
        io::ErrorKind::PermissionDenied => Check::warn(
            AGENT,
            format!("unknown: {path} may not be opened by this user"),
            "run it as root, or as the agent's user: sudo annex-agent doctor",
        ),
        _ => Check::fail(
            AGENT,
            format!("it is not running: nothing answers on {path}"),
            "systemctl enable --now annex-agent; journalctl -u annex-agent tells why it ended",
        ),
    }
}

fn state(status: &Status) -> Check {
    let of = |slabs: u32| format_bytes(u64::from(slabs) * status.slab_size);
    let lent = format!("{} of {} are lent", of(status.slabs.lent), of(status.slabs.capacity));
    let at = format!("{} on {}", status.name, status.address);
    let pressure = &status.pressure;
    match (status.closing, status.draining, pressure.pressed) {
        (true, ..) => Check::warn(AGENT, format!("{at} is stopping; {lent}"), "systemctl start annex-agent"),
        (_, true, _) => {
            Check::warn(AGENT, format!("{at} is being drained; {lent}"), "annex-agent drain --cancel lends again")
        }
        (.., true) => Check::warn(
            AGENT,
            format!(
                "{at} is short of memory and takes slabs back: {} available, headroom {}",
                format_bytes(pressure.available),
                format_bytes(pressure.headroom)
            ),
            "end programs on this host, lend less (capacity) or keep less (headroom)",
        ),
        _ => Check::ok(AGENT, format!("{at}; {lent}, {} clients", status.clients.len())),
    }
}

fn version(running: &str) -> Check {
    const NAME: &str = "version";
    let ours = env!("CARGO_PKG_VERSION");
    match running == ours {
        true => Check::ok(NAME, ours),
        false => Check::warn(
            NAME,
            format!("{ours} is installed and {running} is running"),
            "systemctl restart annex-agent: it goes on with what is lent",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use annex_doctor::Outcome;

    fn status(change: impl FnOnce(&mut Status)) -> Status {
        let mut status = Status::sample();
        change(&mut status);
        status
    }

    fn worst(change: impl FnOnce(&mut Status)) -> (Outcome, String) {
        let checks = running(Some(&Ok(status(change))));
        let check = checks.into_iter().max_by_key(|check| check.outcome).unwrap();
        (check.outcome, check.message)
    }

    #[test]
    fn what_a_running_agent_says_of_itself_counts() {
        assert_eq!(worst(|_| ()).0, Outcome::Ok);
        for (change, part) in [
            ((|s| s.draining = true) as fn(&mut Status), "is being drained; 128 MiB of 1 GiB are lent"),
            (|s| s.closing = true, "is stopping"),
            (|s| s.pressure.pressed = true, "is short of memory"),
            (|s| s.version = "9.9.9".into(), "9.9.9 is running"),
            (|s| s.kept_by = "nothing".into(), "nothing keeps the memory"),
        ] {
            let (outcome, message) = worst(change);
            assert!(outcome == Outcome::Warn && message.contains(part), "{message}");
        }
    }

    #[test]
    fn an_agent_that_can_make_no_slab_fails() {
        let (outcome, message) = worst(|s| s.shortcoming = Some("not permitted to lock a slab".into()));
        assert!(outcome == Outcome::Fail && message.contains("not permitted to lock"), "{message}");
    }

    #[test]
    fn an_agent_that_is_not_there_is_told_from_one_that_may_not_be_asked() {
        let of = |kind: io::ErrorKind| {
            let error = CallError::Unreachable { path: "/run/x.sock".into(), source: kind.into() };
            running(Some(&Err(error))).remove(0).outcome
        };
        assert_eq!(of(io::ErrorKind::NotFound), Outcome::Fail);
        assert_eq!(of(io::ErrorKind::ConnectionRefused), Outcome::Fail);
        assert_eq!(of(io::ErrorKind::PermissionDenied), Outcome::Warn);
        assert_eq!(running(None)[0].outcome, Outcome::Warn);
    }
}
