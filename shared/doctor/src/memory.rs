//! The host's memory, and settings that work against annex.

use crate::host::{Host, Role, Subject, Unread};
use crate::report::Check;
use annex_shared::api::format_bytes;

/// Below it the host is out of memory in all but name.
const NONE_LEFT: u64 = 64 << 20;
/// Below it one more program may be too much.
const LITTLE_LEFT: u64 = 256 << 20;
/// The kernel's own figure for `vm.swappiness`.
const USUAL_SWAPPINESS: i64 = 60;
/// cgroup v1 says "no limit" with a number near 2^63.
const NO_LIMIT: u64 = 1 << 60;

/// A field of `/proc/meminfo`, in bytes.
pub fn meminfo(host: &Host, name: &str) -> Result<Option<u64>, Unread> {
    let text = host.read("proc/meminfo")?;
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    Ok(line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok()).map(|kib| kib << 10))
}

pub fn free(host: &Host, subject: &Subject) -> Check {
    const NAME: &str = "free memory";
    let (total, available) = match (meminfo(host, "MemTotal"), meminfo(host, "MemAvailable")) {
        (Ok(Some(total)), Ok(Some(available))) => (total, available),
        (Err(unread), _) | (_, Err(unread)) => return unread.check(NAME, subject),
        _ => return Check::warn(NAME, "unknown: /proc/meminfo does not tell", "use a kernel that has MemAvailable"),
    };
    let message = format!("{} of {} are available", format_bytes(available), format_bytes(total));
    let remedy = match subject.role {
        Role::Client => "lower the limits of apps (annex limit), attach more programs, or end some",
        Role::Donor => "lend less (capacity), keep more (headroom), or end some programs",
    };
    match available {
        0..NONE_LEFT => Check::fail(NAME, message, remedy),
        NONE_LEFT..LITTLE_LEFT => Check::warn(NAME, message, remedy),
        _ => Check::ok(NAME, message),
    }
}

/// The tightest limit on the daemon's memory among its cgroup and those above it.
pub fn cgroup(host: &Host, subject: &Subject) -> Check {
    const NAME: &str = "cgroup";
    let groups = match host.read(&format!("{}/cgroup", subject.proc())) {
        Ok(groups) => groups,
        Err(unread) => return unread.check(NAME, subject),
    };
    let who = subject.who();
    let Some(tightest) = limits(host, &groups).into_iter().min_by_key(|limit| limit.bytes) else {
        return Check::ok(NAME, format!("the memory of {who} is not limited by a cgroup"));
    };
    let Limit { file, bytes, used } = &tightest;
    let (limit, in_use) = (format_bytes(*bytes), format_bytes(*used));
    let message = format!("{who} is limited to {limit} by {file}, {in_use} are in use");
    let remedy = match file.ends_with("memory.high") {
        true => "set MemoryHigh=infinity for the unit: above it the kernel slows the daemon down".to_owned(),
        false => "raise MemoryMax= of the unit, or the container's limit".to_owned(),
    };
    match bytes.saturating_sub(*used) {
        0..NONE_LEFT => Check::fail(NAME, message, remedy),
        NONE_LEFT..LITTLE_LEFT => Check::warn(NAME, message, remedy),
        _ => Check::ok(NAME, message),
    }
}

struct Limit {
    file: String,
    bytes: u64,
    used: u64,
}

fn limits(host: &Host, groups: &str) -> Vec<Limit> {
    let mut found = Vec::new();
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':');
        let (_, kinds, path) = (parts.next(), parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
        // Where a container has its own cgroup file system, it begins at the container's cgroup.
        let (base, maxima, current): (_, &[&str], _) = match kinds {
            "" => ("sys/fs/cgroup", &["memory.max", "memory.high"], "memory.current"),
            "memory" => ("sys/fs/cgroup/memory", &["memory.limit_in_bytes"], "memory.usage_in_bytes"),
            _ => continue,
        };
        let mut path = path.trim_end_matches('/');
        loop {
            for maximum in maxima {
                let file = format!("{base}{path}/{maximum}");
                let bytes = host.read(&file).ok().and_then(|text| text.parse::<u64>().ok());
                if let Some(bytes) = bytes.filter(|bytes| *bytes < NO_LIMIT) {
                    let used = host.number(&format!("{base}{path}/{current}")).unwrap_or(0).max(0) as u64;
                    found.push(Limit { file: format!("/{file}"), bytes, used });
                }
            }
            let Some((above, _)) = path.rsplit_once('/') else { break };
            path = above;
        }
    }
    found
}

/// The kernel's own swapping takes pages before annex sees that they are cold.
pub fn swap(host: &Host, subject: &Subject) -> Check {
    const NAME: &str = "swap";
    let areas = match host.read("proc/swaps") {
        Ok(text) => text,
        Err(unread) if unread.is_missing() => return Check::ok(NAME, "this kernel has none"),
        Err(unread) => return unread.check(NAME, subject),
    };
    let column = |line: &str, nth| line.split_whitespace().nth(nth)?.parse::<u64>().ok();
    let sum = |nth| areas.lines().skip(1).filter_map(|line| column(line, nth)).sum::<u64>() << 10;
    let (size, used) = (sum(2), sum(3));
    if size == 0 {
        return Check::ok(NAME, "none");
    }
    let swappiness = host.number("proc/sys/vm/swappiness").unwrap_or(USUAL_SWAPPINESS);
    let message = format!("{} of {} in use, swappiness {swappiness}", format_bytes(used), format_bytes(size));
    match subject.role {
        _ if used < NONE_LEFT && swappiness <= USUAL_SWAPPINESS => Check::ok(NAME, message),
        Role::Client => Check::warn(
            NAME,
            format!("{message}: the kernel takes pages that annex would send to donors"),
            "sysctl vm.swappiness=10, and limits of apps (annex limit) that leave the host memory",
        ),
        Role::Donor => Check::warn(
            NAME,
            format!("{message}: programs of this host wait for its disk while memory is lent"),
            "keep more for this host (headroom) or lend less (capacity); sysctl vm.swappiness=10",
        ),
    }
}

/// Transparent huge pages in memory that is to be evicted page by page.
pub fn huge_pages(host: &Host, subject: &Subject) -> Check {
    const NAME: &str = "transparent huge pages";
    match host.read("sys/kernel/mm/transparent_hugepage/enabled") {
        Err(unread) if unread.is_missing() => Check::ok(NAME, "this kernel has none"),
        Err(unread) => unread.check(NAME, subject),
        Ok(text) if text.contains("[always]") => Check::warn(
            NAME,
            "always: programs take 2 MiB where they touch 4 KiB, and evicting a part splits the rest",
            "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
        ),
        Ok(text) => {
            let chosen = text.split_whitespace().find(|word| word.starts_with('['));
            Check::ok(NAME, chosen.unwrap_or("[?]").trim_matches(['[', ']']))
        }
    }
}

/// Strict accounting counts what annex reserves and never touches.
pub fn overcommit(host: &Host, subject: &Subject) -> Check {
    const NAME: &str = "overcommit";
    let mode = match host.read("proc/sys/vm/overcommit_memory") {
        Ok(mode) => mode,
        Err(unread) => return unread.check(NAME, subject),
    };
    if mode != "2" {
        return Check::ok(NAME, format!("vm.overcommit_memory = {mode}"));
    }
    let of = |name| meminfo(host, name).ok().flatten().unwrap_or(0);
    let left = of("CommitLimit").saturating_sub(of("Committed_AS"));
    let message = format!("vm.overcommit_memory = 2, and {} may still be reserved", format_bytes(left));
    let remedy = "sysctl vm.overcommit_memory=0, or raise vm.overcommit_ratio";
    match left {
        0..LITTLE_LEFT => Check::fail(NAME, message, remedy),
        _ => Check::warn(NAME, message, remedy),
    }
}
