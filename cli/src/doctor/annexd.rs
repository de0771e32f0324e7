//! Whether annexd answers, and what it says.

use crate::client::Client;
use crate::failure::Failure;
use annex_doctor::Check;
use annex_shared::api::{ErrorCode, Status};
use annex_shared::condition::{Condition, Severity};
use annex_shared::event::Event;
use std::path::Path;
use std::sync::mpsc::channel;
use std::time::Duration;

/// How long annexd may take to answer. It does so within milliseconds unless it hangs.
const ANSWERS_WITHIN: Duration = Duration::from_secs(10);

/// What annexd said.
pub struct Said {
    pub status: Status,
    pub events: Vec<Event>,
}

/// Why it said nothing.
pub enum Silence {
    Failed(Failure),
    TooLong,
}

pub fn ask(socket: &Path) -> Result<Said, Silence> {
    let (send, receive) = channel();
    let socket = socket.to_owned();
    let ask = move || {
        let client = Client::new(&socket)?;
        Ok(Said { status: client.status()?, events: client.events(0)? })
    };
    // An annexd that hangs leaves this thread behind; the process ends all the same.
    std::thread::spawn(move || {
        // Nobody waits for it any more: it took too long.
        let _ = send.send(ask());
    });
    match receive.recv_timeout(ANSWERS_WITHIN) {
        Ok(said) => said.map_err(Silence::Failed),
        Err(_) => Err(Silence::TooLong),
    }
}

pub fn checks(answer: &Result<Said, Silence>, socket: &Path) -> Vec<Check> {
    let status = match answer {
        Ok(said) => &said.status,
        Err(silence) => return vec![silent(silence, socket)],
    };
    let up = humantime::format_duration(Duration::from_secs(status.uptime_s));
    let running = format!("PID {} answers on {}, up for {up}", status.pid, socket.display());
    let mut checks = vec![Check::ok("annexd", running), version(&status.version)];
    checks.extend(status.conditions.iter().map(condition));
    checks
}

fn silent(silence: &Silence, socket: &Path) -> Check {
    const NAME: &str = "annexd";
    match silence {
        Silence::Failed(failure) if failure.kind() == ErrorCode::Forbidden => {
            Check::warn(NAME, failure.to_string(), "run it as root, or as a member of group annex: sudo annex doctor")
        }
        Silence::Failed(failure) => {
            let remedy = Some(failure.remedy()).filter(|remedy| !remedy.is_empty());
            Check::fail(NAME, failure.to_string(), remedy.unwrap_or_else(|| "journalctl -u annexd".into()))
        }
        Silence::TooLong => Check::fail(
            NAME,
            format!("it did not answer on {} within {} s", socket.display(), ANSWERS_WITHIN.as_secs()),
            "journalctl -u annexd; systemctl restart annexd keeps programs and their pages",
        ),
    }
}

fn version(annexd: &str) -> Check {
    const NAME: &str = "version";
    let ours = env!("CARGO_PKG_VERSION");
    match annexd == ours {
        true => Check::ok(NAME, format!("annex and annexd are both {ours}")),
        false => Check::warn(
            NAME,
            format!("annex is {ours} and annexd is {annexd}"),
            "install both from one build; systemctl reload annexd starts the installed one in place",
        ),
    }
}

/// A note is worth knowing, and no reason to do anything.
fn condition(condition: &Condition) -> Check {
    let (name, message) = (condition.kind.name(), condition.message.as_str());
    match condition.severity {
        Severity::Note => Check::ok(name, message),
        Severity::Degraded => Check::warn(name, message, remedy(condition)),
        Severity::Critical => Check::fail(name, message, remedy(condition)),
    }
}

fn remedy(condition: &Condition) -> &str {
    if condition.remedy.is_empty() { "annex events tells more" } else { &condition.remedy }
}

#[cfg(test)]
mod tests {
    use super::*;
    use annex_doctor::Outcome;
    use annex_shared::condition::ConditionKind;

    #[test]
    fn a_condition_is_as_bad_as_it_is_severe() {
        let of = |kind, severity| {
            condition(&Condition { kind, severity, message: "so".into(), remedy: String::new() }).outcome
        };
        assert_eq!(of(ConditionKind::Crowded, Severity::Note), Outcome::Ok);
        assert_eq!(of(ConditionKind::Degraded, Severity::Degraded), Outcome::Warn);
        assert_eq!(of(ConditionKind::AtRisk, Severity::Critical), Outcome::Fail);
    }

    #[test]
    fn another_version_is_told() {
        assert_eq!(version(env!("CARGO_PKG_VERSION")).outcome, Outcome::Ok);
        let other = version("9.9.9");
        assert!(other.outcome == Outcome::Warn && other.message.contains("annexd is 9.9.9"), "{other:?}");
    }

    #[test]
    fn an_annexd_that_may_not_be_asked_is_no_failure() {
        let source = std::io::Error::from(std::io::ErrorKind::PermissionDenied);
        let refused = Silence::Failed(Failure::Connect { socket: "/s".into(), source });
        assert_eq!(silent(&refused, Path::new("/s")).outcome, Outcome::Warn);
        let away = Silence::Failed(Failure::NotRunning { socket: "/s".into() });
        assert_eq!(silent(&away, Path::new("/s")).outcome, Outcome::Fail);
        assert_eq!(silent(&Silence::TooLong, Path::new("/s")).outcome, Outcome::Fail);
    }
}
