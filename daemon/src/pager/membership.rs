//! Which processes belong to which app.
//!
//! A process belongs to an app if its parent does, or if it was started with the app's `ANNEX_APP` in its environment (a daemon that
//! has left its parents), or if it is in the unit's cgroup. Processes that share a member's address space (the stub, a vfork child that has
//! not yet called exec) are not members of their own.

use super::app::{App, Member};
use super::process::{self, Stat};
use super::stub;
use annex_shared::api::{APP_ENV, Target};
use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

/// Finds new members; remembers whom it has looked at.
#[derive(Default)]
pub struct Census {
    seen: HashSet<(i32, u64)>,
    last_pid: Option<u64>,
    /// Where each unit's cgroup was found.
    cgroups: HashMap<String, PathBuf>,
    /// Somebody was passed over who may yet become a member.
    look_again: bool,
    /// Not before this are all processes of the host looked at again.
    rests_until: Option<Instant>,
}

/// Looking at all processes of a host with many takes at most one part in this many of the time.
const SHARE: u32 = 100;

impl Census {
    /// Adds to each app the processes that have joined it since the last call. `stubs` are never members.
    pub fn update(&mut self, apps: &[Arc<App>], stubs: &HashSet<i32>) {
        for app in apps {
            if let Target::Unit(unit) = &app.target
                && let Some(cgroup) = self.cgroup(unit)
            {
                let others = |pid: &i32| !stubs.contains(pid) && !has_region(apps, *pid);
                members_of(&cgroup).into_iter().filter(others).for_each(|pid| {
                    if let Some(stat) = Stat::read(pid) {
                        self.admit(app, pid, &stat);
                    }
                });
            }
        }
        let last_pid = process::last_pid();
        if last_pid.is_some() && last_pid == self.last_pid && !self.look_again {
            return;
        }
        if self.rests_until.is_some_and(|t| Instant::now() < t) {
            return;
        }
        (self.last_pid, self.look_again) = (last_pid, false);
        let before = process::own_cpu_time();
        self.look_at_all(apps, stubs);
        self.rests_until = Some(Instant::now() + (process::own_cpu_time() - before) * SHARE);
    }

    fn look_at_all(&mut self, apps: &[Arc<App>], stubs: &HashSet<i32>) {
        let mut now = process::processes();
        // Parents before children, mostly: a family that appeared since the last look is found in one.
        now.sort_by_key(|(_, stat)| stat.started);
        let alive: HashSet<(i32, u64)> = now.iter().map(|(pid, stat)| (*pid, stat.started)).collect();
        self.seen.retain(|known| alive.contains(known));
        let mut owner: HashMap<i32, Arc<App>> = HashMap::new();
        for app in apps {
            owner.extend(app.members.lock().iter().map(|m| (m.pid, app.clone())));
        }
        for (pid, stat) in now {
            let stub = stubs.contains(&pid) || stat.comm == stub::NAME;
            if owner.contains_key(&pid) || stub || stat.is_zombie() || !stat.has_memory {
                continue;
            }
            // A child has nothing of its parent's region.
            let app = match owner.get(&stat.parent).filter(|app| app.region().is_none()) {
                Some(app) => Some(app.clone()),
                None if !self.seen.insert((pid, stat.started)) => None,
                None => by_environment(apps, pid),
            };
            if let Some(app) = app
                && self.admit(&app, pid, &stat)
            {
                owner.insert(pid, app);
            }
        }
    }

    /// A unit's cgroup, searched for only if it is not where it was.
    fn cgroup(&mut self, unit: &str) -> Option<PathBuf> {
        if let Some(known) = self.cgroups.get(unit).filter(|known| known.exists()) {
            return Some(known.clone());
        }
        let found = cgroup_of(unit)?;
        self.cgroups.insert(unit.to_owned(), found.clone());
        Some(found)
    }

    fn admit(&mut self, app: &App, pid: i32, stat: &Stat) -> bool {
        if app.has_member(pid, stat) {
            return true;
        }
        let shares = |m: &Member| process::same_address_space(m.pid, pid).unwrap_or(false);
        if app.members.lock().iter().any(shares) {
            self.look_again = true;
            return false;
        }
        join(app, pid, stat)
    }
}

/// Whether a region of the process is an app: then the process as a whole is not.
fn has_region(apps: &[Arc<App>], pid: i32) -> bool {
    apps.iter().any(|app| app.region().is_some() && app.members.lock().iter().any(|member| member.pid == pid))
}

/// Makes the process a member.
pub fn join(app: &App, pid: i32, stat: &Stat) -> bool {
    let Ok(pidfd) = process::pidfd_open(pid) else { return false };
    // The pidfd is of the process that has the PID now: was it the one we looked at?
    if Stat::read(pid).is_none_or(|s| s.started != stat.started) {
        return false;
    }
    let member = Member { pid, started: stat.started, pidfd, space: None, retry_at: None, resident: 0 };
    app.members.lock().push(member);
    true
}

fn by_environment(apps: &[Arc<App>], pid: i32) -> Option<Arc<App>> {
    let launched = |app: &&Arc<App>| matches!(app.target, Target::Launch(_));
    if !apps.iter().any(|app| launched(&app)) {
        return None;
    }
    let id: u64 = process::environment(pid, APP_ENV)?.parse().ok()?;
    apps.iter().filter(launched).find(|app| app.id == id).cloned()
}

/// The cgroup directory of a systemd unit, in the unified hierarchy or systemd's own.
pub fn cgroup_of(unit: &str) -> Option<PathBuf> {
    ["/sys/fs/cgroup/unified", "/sys/fs/cgroup/systemd", "/sys/fs/cgroup"]
        .iter()
        .map(Path::new)
        .filter(|root| root.join("cgroup.procs").exists())
        .find_map(|root| find_below(root, unit, 5))
}

fn find_below(dir: &Path, unit: &str, depth: u32) -> Option<PathBuf> {
    let here = dir.join(unit);
    if here.join("cgroup.procs").exists() {
        return Some(here);
    }
    if depth == 0 {
        return None;
    }
    let entries = std::fs::read_dir(dir).ok()?;
    let folders = entries.flatten().filter(|e| e.file_type().is_ok_and(|t| t.is_dir()));
    folders.into_iter().find_map(|e| find_below(&e.path(), unit, depth - 1))
}

/// The processes in a cgroup and below it.
pub fn members_of(cgroup: &Path) -> Vec<i32> {
    let text = std::fs::read_to_string(cgroup.join("cgroup.procs")).unwrap_or_default();
    let mut pids: Vec<i32> = text.lines().filter_map(|l| l.parse().ok()).collect();
    let below = std::fs::read_dir(cgroup).into_iter().flatten().flatten();
    for entry in below.filter(|e| e.file_type().is_ok_and(|t| t.is_dir())) {
        pids.extend(members_of(&entry.path()));
    }
    pids
}
