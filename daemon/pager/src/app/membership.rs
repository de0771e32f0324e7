//! Which processes belong to which app.
//!
//! A process belongs to an app if its parent does, or if it has the mark of the app's `annex run`
//! (a daemon that has left its parents), or if it is in the unit's cgroup. Processes that share a
//! member's address space (the stub, a vfork child that has not yet called exec) are not members of
//! their own.

use crate::app::application::{App, Member};
use crate::inject::stub;
use crate::kernel::process;
use crate::kernel::process::Stat;
use annex_shared::api::{APP_MARK, Target};
use annex_shared::mapping::NEVER_PAGED;
use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

/// Finds new members; remembers whom it has looked at.
#[derive(Default)]
pub struct ProcessScan {
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

impl ProcessScan {
    /// Adds to each app the processes that have joined it since the last call: of all processes in
    /// any case if it `must` know, else when there may be new ones. `stubs` are never members.
    pub fn update(&mut self, apps: &[Arc<App>], stubs: &HashSet<i32>, must: bool) {
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
        let may_be_new = last_pid.is_none() || last_pid != self.last_pid || self.look_again;
        let rests = self.rests_until.is_some_and(|t| Instant::now() < t);
        if !must && (!may_be_new || rests) {
            return;
        }
        (self.last_pid, self.look_again) = (last_pid, false);
        let before = process::own_cpu_time();
        self.look_at_all(apps, stubs);
        self.rests_until = Some(Instant::now() + (process::own_cpu_time() - before) * SHARE);
    }

    fn look_at_all(&mut self, apps: &[Arc<App>], stubs: &HashSet<i32>) {
        let mut now = process::processes();
        // Parents before children, mostly: a family that appeared since the last look is found in
        // one.
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
                None => by_mark(apps, pid),
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
        if is_exempt(pid, stat) || !app.may_have(pid) {
            return false;
        }
        let shares = |m: &Member| {
            let mark = m.space.as_ref().and_then(|space| space.mark());
            let is_marked = mark.is_some_and(|mark| mark.task_of(pid).is_some());
            is_marked || process::same_address_space(m.pid, pid).unwrap_or(false)
        };
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
    app.members.lock().push(Member::new(pid, stat.started, pidfd));
    true
}

/// The app that a process was started in, by the mark that `annex run` leaves ([`APP_MARK`]).
fn by_mark(apps: &[Arc<App>], pid: i32) -> Option<Arc<App>> {
    let launched = |app: &&Arc<App>| matches!(app.target, Target::Launch(_));
    if !apps.iter().any(|app| launched(&app)) {
        return None;
    }
    let id = process::real_time_limit(pid)?.checked_sub(APP_MARK)?;
    apps.iter().filter(launched).find(|app| app.id == id).cloned()
}

/// Whether a process is never managed, whoever its parent is: the host's first one, annexd and its
/// helpers and ancestors, and agents, whose memory must never be waited for.
pub fn is_exempt(pid: i32, stat: &Stat) -> bool {
    pid == 1 || NEVER_PAGED.contains(&stat.comm.as_str()) || is_ancestor(pid)
}

/// Whether annexd descends from the process, or is it.
fn is_ancestor(pid: i32) -> bool {
    let parent = |pid: &i32| Stat::read(*pid).map(|stat| stat.parent).filter(|parent| *parent > 0);
    std::iter::successors(Some(std::process::id() as i32), parent).any(|ancestor| ancestor == pid)
}

/// The processes that descend from one, in an order in which parents come first.
pub fn descendants(root: i32) -> Vec<(i32, Stat)> {
    let all = process::processes();
    let mut family = vec![root];
    let mut found = Vec::new();
    let mut next = 0;
    while let Some(parent) = family.get(next).copied() {
        for (pid, stat) in all.iter().filter(|(_, stat)| stat.parent == parent) {
            family.push(*pid);
            found.push((*pid, stat.clone()));
        }
        next += 1;
    }
    found
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stub_is_never_paged() {
        assert!(NEVER_PAGED.contains(&stub::NAME));
    }
}
