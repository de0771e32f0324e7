//! Which Linux this is.

use crate::host::{Host, Role, Subject};
use crate::report::Check;

const NAME: &str = "kernel";

/// A client needs `UFFDIO_MOVE`; a donor needs sealed memfds and what systemd's store is made of.
fn oldest(role: Role) -> (u32, u32) {
    match role {
        Role::Client => (6, 8),
        Role::Donor => (4, 18),
    }
}

pub fn version(host: &Host, subject: &Subject) -> Check {
    let release = match host.read("proc/sys/kernel/osrelease") {
        Ok(release) => release,
        Err(unread) => return unread.check(NAME, subject),
    };
    let (major, minor) = oldest(subject.role);
    let needed = format!("install Linux {major}.{minor} or newer");
    match parse(&release) {
        None => Check::warn(NAME, format!("Linux {release}, a version that can't be read"), needed),
        Some(version) if version < (major, minor) => {
            Check::fail(NAME, format!("Linux {release} is too old for {}", subject.daemon()), needed)
        }
        Some(_) => Check::ok(NAME, format!("Linux {release}")),
    }
}

fn parse(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}
