//! What a process may do: rights and limits of the daemon, or of who asks.

use crate::host::{Host, Role, Subject, Unread};
use crate::report::Check;
use annex_shared::api::format_bytes;

/// Numbers of capabilities, from the kernel's `include/uapi/linux/capability.h`, and what for.
const OF_ANNEXD: &[(u32, &str, &str)] = &[
    (19, "CAP_SYS_PTRACE", "it can't take any program"),
    (21, "CAP_SYS_ADMIN", "programs with a seccomp filter can't be taken"),
    (1, "CAP_DAC_OVERRIDE", "programs of other users can't be taken"),
    (2, "CAP_DAC_READ_SEARCH", "programs of other users can't be taken"),
    (5, "CAP_KILL", "a program whose memory is lost can't be stopped"),
    (14, "CAP_IPC_LOCK", "its own memory may be swapped out"),
    (24, "CAP_SYS_RESOURCE", "its limits stay as they are"),
    (23, "CAP_SYS_NICE", "its threads wait for others"),
];
const OF_AGENT: &[(u32, &str, &str)] = &[
    (14, "CAP_IPC_LOCK", "the memory that it lends is under the limit on locked memory"),
    (24, "CAP_SYS_RESOURCE", "its limits stay as they are"),
];
const IPC_LOCK: u32 = 14;
/// annexd locks its own memory and the tables of what is away. The agent locks what it lends.
const LEAST_LOCKED: u64 = 64 << 20;

/// A field of `/proc/PID/status`.
fn field(host: &Host, proc: &str, name: &str) -> Result<Option<String>, Unread> {
    let text = host.read(&format!("{proc}/status"))?;
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    Ok(value.map(|value| value.trim().to_owned()))
}

fn effective(host: &Host, proc: &str) -> Result<u64, Unread> {
    let bits = field(host, proc, "CapEff")?;
    Ok(bits.and_then(|bits| u64::from_str_radix(&bits, 16).ok()).unwrap_or(0))
}

/// The effective user of who asks.
fn user(host: &Host) -> Result<Option<u32>, Unread> {
    let ids = field(host, "proc/self", "Uid")?;
    Ok(ids.and_then(|ids| ids.split_whitespace().nth(1)?.parse().ok()))
}

/// Who asks. What others may not see is then a warning in its own place.
pub fn privileges(host: &Host, subject: &Subject) -> Check {
    const NAME: &str = "privileges";
    match user(host) {
        Err(unread) => unread.check(NAME, subject),
        Ok(Some(0)) => Check::ok(NAME, "run by root: everything can be looked at"),
        Ok(other) => {
            let who = other.map_or_else(|| "an unknown user".to_owned(), |uid| format!("user {uid}"));
            let remedy = format!("run it as root to see all: sudo {}", subject.command());
            Check::warn(NAME, format!("run by {who}: some things can't be looked at"), remedy)
        }
    }
}

/// The daemon's capabilities; without a daemon those that one started here would have, which only
/// root's shell tells.
pub fn capabilities(host: &Host, subject: &Subject) -> Option<Check> {
    const NAME: &str = "capabilities";
    if subject.pid.is_none() && !matches!(user(host), Ok(Some(0))) {
        return None;
    }
    let has = match effective(host, &subject.proc()) {
        Ok(has) => has,
        Err(unread) => return Some(unread.check(NAME, subject)),
    };
    let needed = if subject.role == Role::Client { OF_ANNEXD } else { OF_AGENT };
    let lacking: Vec<_> = needed.iter().filter(|(bit, ..)| has >> bit & 1 == 0).collect();
    let who = subject.who();
    let Some((first, _, harm)) = lacking.first() else {
        return Some(Check::ok(NAME, format!("{who} has all that {} needs", subject.daemon())));
    };
    let names: Vec<&str> = lacking.iter().map(|(_, name, _)| *name).collect();
    let message = format!("{who} lacks {}: {harm}", names.join(", "));
    let remedy =
        format!("use the unit as it is shipped; in a container, add the capabilities for {}", subject.daemon());
    let is_fatal = subject.role == Role::Client && *first == OF_ANNEXD[0].0;
    Some(if is_fatal { Check::fail(NAME, message, remedy) } else { Check::warn(NAME, message, remedy) })
}

/// The most memory a process may lock, in bytes; `None`: all. A process with CAP_IPC_LOCK is not
/// under the limit, neither for mlock nor for what it registers with an RDMA device.
pub fn lockable(host: &Host, subject: &Subject) -> Result<Option<u64>, Unread> {
    let proc = subject.proc();
    let text = host.read(&format!("{proc}/limits"))?;
    let soft = text.lines().find_map(|line| line.strip_prefix("Max locked memory"));
    let soft = soft.and_then(|rest| rest.split_whitespace().next()).unwrap_or("0");
    let is_exempt = effective(host, &proc)? >> IPC_LOCK & 1 == 1;
    Ok(if soft == "unlimited" || is_exempt { None } else { Some(soft.parse().unwrap_or(0)) })
}

pub fn memlock(host: &Host, subject: &Subject) -> Check {
    const NAME: &str = "memlock";
    let who = subject.who();
    let most = match lockable(host, subject) {
        Err(unread) => return unread.check(NAME, subject),
        Ok(None) => return Check::ok(NAME, format!("{who} may lock as much memory as it needs")),
        Ok(Some(most)) => most,
    };
    let message = format!("{who} may lock {} of memory", format_bytes(most));
    let remedy = format!("set LimitMEMLOCK=infinity in the unit of {}, or ulimit -l unlimited", subject.daemon());
    match (subject.pid, most < LEAST_LOCKED) {
        (Some(_), true) => Check::fail(NAME, format!("{message}, and needs more"), remedy),
        (Some(_), false) => Check::warn(NAME, format!("{message}, which may not be enough"), remedy),
        (None, true) => Check::warn(NAME, format!("{message}: too little for one started here"), remedy),
        (None, false) => Check::ok(NAME, message),
    }
}
