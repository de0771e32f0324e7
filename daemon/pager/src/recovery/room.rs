//! Whether there is room for what comes back: on the host, and in the memory cgroups of the
//! processes that it comes back to. Without it the kernel would kill a program that annex was to
//! leave as it was.
//!
//! A page that is installed is charged to the cgroup of its process and to all above that. What a
//! cgroup has left is its limit less what it uses; page cache that the kernel gives up first
//! ("inactive file") does not count as used.

use crate::kernel::host_memory::available;
use annex_shared::api::format_bytes;
use annex_shared::page::PAGE_SIZE;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Pages that come back to a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Demand {
    pub pid: i32,
    pub pages: u64,
}

/// There is too little.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum RoomError {
    #[error("bringing it back needs {} of local memory, and this host has {} available", format_bytes(*.needed), format_bytes(*.available))]
    Host { needed: u64, available: u64 },
    #[error(
        "bringing it back needs {} in the cgroup {}, which has {} left of its limit of {}",
        format_bytes(*.needed), .cgroup.display(), format_bytes(*.left), format_bytes(*.limit)
    )]
    Cgroup { cgroup: PathBuf, needed: u64, left: u64, limit: u64 },
}

impl RoomError {
    pub fn remedy(&self) -> String {
        match self {
            RoomError::Host { .. } => "free local memory, or end programs, and try again".into(),
            RoomError::Cgroup { cgroup, needed, left, .. } => format!(
                "raise the memory limit of {} by {} or more (MemoryMax= of its unit, or {}), and try again",
                cgroup.display(),
                format_bytes(needed.saturating_sub(*left)),
                Version::of(cgroup).limit
            ),
        }
    }
}

/// A cgroup's account, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Account {
    limit: u64,
    used: u64,
    /// Of what is used: given up by the kernel when it has to.
    cache: u64,
}

impl Account {
    fn left(self) -> u64 {
        self.limit.saturating_sub(self.used.saturating_sub(self.cache))
    }
}

/// Refuses if what the processes have in the pool would not fit.
pub fn check(demands: &[Demand]) -> Result<(), RoomError> {
    let mut needs: BTreeMap<PathBuf, u64> = BTreeMap::new();
    for demand in demands.iter().filter(|d| d.pages > 0) {
        for cgroup in cgroups(demand.pid) {
            *needs.entry(cgroup).or_default() += demand.pages;
        }
    }
    let accounts = needs.into_iter().filter_map(|(cgroup, pages)| Some((account(&cgroup)?, cgroup, pages)));
    judge(demands.iter().map(|d| d.pages).sum(), available(), accounts)
}

/// The pure part: pages that come back altogether, what the host has available, and each cgroup
/// with what comes back to it.
fn judge(pages: u64, available: u64, accounts: impl Iterator<Item = (Account, PathBuf, u64)>) -> Result<(), RoomError> {
    let needed = with_tables(pages);
    if needed > available {
        return Err(RoomError::Host { needed, available });
    }
    for (account, cgroup, pages) in accounts {
        let (needed, left) = (with_tables(pages), account.left());
        if needed > left {
            return Err(RoomError::Cgroup { cgroup, needed, left, limit: account.limit });
        }
    }
    Ok(())
}

/// A sixteenth more, for page tables and whoever else needs some.
fn with_tables(pages: u64) -> u64 {
    (pages + pages / 16) * PAGE_SIZE as u64
}

/// How a version of cgroups calls what is looked at.
struct Version {
    root: &'static str,
    limit: &'static str,
    used: &'static str,
    cache: &'static str,
}

const V1: Version = Version {
    root: "/sys/fs/cgroup/memory",
    limit: "memory.limit_in_bytes",
    used: "memory.usage_in_bytes",
    cache: "total_inactive_file",
};
const V2: Version =
    Version { root: "/sys/fs/cgroup", limit: "memory.max", used: "memory.current", cache: "inactive_file" };
/// Beside version 1, where memory usually belongs to that.
const V2_BESIDE: Version = Version { root: "/sys/fs/cgroup/unified", ..V2 };

impl Version {
    fn of(cgroup: &Path) -> Version {
        [V1, V2_BESIDE].into_iter().find(|version| cgroup.starts_with(version.root)).unwrap_or(V2)
    }
}

/// The directories of the process's memory cgroup and of those above it.
fn cgroups(pid: i32) -> Vec<PathBuf> {
    let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    let roots: Vec<&str> = [V1, V2_BESIDE, V2]
        .iter()
        .map(|v| v.root)
        .filter(|root| Path::new(root).join("cgroup.procs").exists())
        .collect();
    named(&text, &roots)
}

/// What `/proc/PID/cgroup` names, under those of the versions' roots that are mounted.
fn named(text: &str, mounted: &[&str]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for line in text.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
        let root = match controllers {
            "" => [V2_BESIDE.root, V2.root].into_iter().find(|root| mounted.contains(root)),
            list => list.split(',').any(|c| c == "memory").then_some(V1.root).filter(|root| mounted.contains(root)),
        };
        let Some(root) = root else { continue };
        let own = Path::new(root).join(path.trim_start_matches('/'));
        found.extend(own.ancestors().take_while(|dir| dir.starts_with(root)).map(Path::to_path_buf));
    }
    found
}

/// `None`: it has no limit, or is gone.
fn account(cgroup: &Path) -> Option<Account> {
    /// Version 1 has a number for "none", a page less than 2^63.
    const NO_LIMIT: u64 = 1 << 62;
    let version = Version::of(cgroup);
    let read = |file: &str| fs::read_to_string(cgroup.join(file)).ok();
    // Version 2 says "max".
    let limit = read(version.limit)?.trim().parse().ok().filter(|limit| *limit < NO_LIMIT)?;
    let used = read(version.used)?.trim().parse().ok()?;
    let stat = read("memory.stat").unwrap_or_default();
    let line = stat.lines().find_map(|l| l.strip_prefix(version.cache)?.trim().parse().ok());
    Some(Account { limit, used, cache: line.unwrap_or(0) })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const PAGES: u64 = MIB / PAGE_SIZE as u64;

    fn account_of(limit: u64, used: u64, cache: u64) -> Account {
        Account { limit: limit * MIB, used: used * MIB, cache: cache * MIB }
    }

    #[test]
    fn what_does_not_fit_into_a_cgroup_is_refused_with_its_name_and_numbers() {
        let tight = (account_of(128, 100, 10), PathBuf::from("/sys/fs/cgroup/memory/a/b"), 64 * PAGES);
        let error = judge(64 * PAGES, 10_000 * MIB, [tight].into_iter()).unwrap_err();
        let said = format!("{error}; {}", error.remedy());
        for part in ["68", "38", "128", "/sys/fs/cgroup/memory/a/b", "memory.limit_in_bytes"] {
            assert!(said.contains(part), "{part} is missing: {said}");
        }
    }

    #[test]
    fn cache_that_the_kernel_gives_up_counts_as_room() {
        let roomy = |cache| (account_of(128, 120, cache), PathBuf::from("/sys/fs/cgroup/a"), 64 * PAGES);
        assert!(judge(64 * PAGES, 10_000 * MIB, [roomy(60)].into_iter()).is_ok());
        assert!(judge(64 * PAGES, 10_000 * MIB, [roomy(50)].into_iter()).is_err());
    }

    #[test]
    fn a_host_without_room_is_named_before_any_cgroup() {
        let error = judge(64 * PAGES, 60 * MIB, std::iter::empty()).unwrap_err();
        assert_eq!(error, RoomError::Host { needed: 68 * MIB, available: 60 * MIB });
    }

    #[test]
    fn a_process_is_charged_in_its_cgroup_and_all_above() {
        let paths = |text, mounted: &[&str]| -> Vec<String> {
            named(text, mounted).iter().map(|p| p.display().to_string()).collect()
        };
        let old = "5:cpu,cpuacct:/x\n3:memory:/a/b\n0::/c\n";
        assert_eq!(
            paths(old, &[V1.root]),
            ["/sys/fs/cgroup/memory/a/b", "/sys/fs/cgroup/memory/a", "/sys/fs/cgroup/memory"]
        );
        assert_eq!(paths("0::/c\n", &[V2.root]), ["/sys/fs/cgroup/c", "/sys/fs/cgroup"]);
        assert_eq!(
            paths("0::/c\n", &[V2_BESIDE.root, V2.root]),
            ["/sys/fs/cgroup/unified/c", "/sys/fs/cgroup/unified"]
        );
    }
}
