//! Which processes belong to which app.
//!
//! A process belongs to an app if its parent does, or if it has the mark of the app's `annex run`
//! (a daemon that has left its parents), or if it is in the app's cgroup. Processes that share a
//! member's address space (the stub, a vfork child that has not yet called exec) are not members of
//! their own. Who belongs to one app already stays there.

use crate::app::application::{App, Member};
use crate::app::let_go::LetGo;
use crate::app::sightings::{Looked, Sightings};
use crate::app::whereabouts::Whereabouts;
use crate::inject::stub;
use crate::kernel::process::Stat;
use crate::kernel::{cgroup, process};
use annex_shared::api::{APP_MARK, Target};
use annex_shared::mapping::NEVER_PAGED;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Instant;

/// Finds new members; remembers whom it has looked at.
#[derive(Default)]
pub struct ProcessScan {
    seen: HashSet<(i32, u64)>,
    last_pid: Option<u64>,
    /// Where each cgroup is.
    whereabouts: Whereabouts,
    /// Somebody was passed over who may yet become a member.
    look_again: bool,
    /// Not before this are all processes of the host looked at again.
    rests_until: Option<Instant>,
    looked: Looked,
}

/// What a look at the host's processes knows beside the apps.
#[derive(Clone, Copy)]
pub struct Beside<'a> {
    /// Never members.
    pub stubs: &'a HashSet<i32>,
    /// Who wants to know what was seen.
    pub sightings: &'a Sightings,
    /// What was let go of by hand: no cgroup's app takes it in.
    pub let_go: &'a LetGo,
}

/// Looking at all processes of a host with many takes at most one part in this many of the time.
const SHARE: u32 = 100;

impl ProcessScan {
    /// Adds to each app the processes that have joined it since the last call: of all processes in
    /// any case if it `must` know, else when there may be new ones.
    pub fn update(&mut self, apps: &[Arc<App>], beside: Beside<'_>, must: bool) {
        self.whereabouts.retain(apps);
        self.look_at_cgroups(apps, beside);
        let last_pid = process::last_pid();
        let is_new = last_pid.is_none() || last_pid != self.last_pid;
        if is_new {
            self.looked.newest = Instant::now();
        }
        let is_due = beside.sightings.is_due(self.looked.at.elapsed(), self.looked.newest.elapsed());
        let is_worth_it = (is_new && !apps.is_empty()) || self.look_again || is_due;
        let rests = self.rests_until.is_some_and(|t| Instant::now() < t);
        if !must && (!is_worth_it || rests) {
            return;
        }
        (self.last_pid, self.look_again) = (last_pid, false);
        let before = process::own_cpu_time();
        self.look_at_all(apps, beside);
        self.looked.at = Instant::now();
        self.rests_until = Some(Instant::now() + (process::own_cpu_time() - before) * SHARE);
    }

    fn look_at_cgroups(&mut self, apps: &[Arc<App>], beside: Beside<'_>) {
        if !apps.iter().any(|app| app.target.is_cgroup()) {
            return;
        }
        let mut owner = owners(apps);
        for app in apps {
            let Some(folder) = self.whereabouts.find(app) else { continue };
            for pid in cgroup::members_of(&folder) {
                if beside.stubs.contains(&pid) || owner.contains_key(&pid) {
                    continue;
                }
                let Some(stat) = Stat::read(pid).filter(can_be_member) else { continue };
                // The child of another app's program is that app's, and has its memory from there.
                let is_anothers = owner.get(&stat.parent).is_some_and(|of| of.id != app.id && of.region().is_none());
                if !is_anothers && !beside.let_go.has_process(pid, &stat) && self.admit(app, pid, &stat) {
                    owner.insert(pid, app.clone());
                }
            }
        }
    }

    fn look_at_all(&mut self, apps: &[Arc<App>], beside: Beside<'_>) {
        let mut now = process::processes();
        // Parents before children, mostly: a family that appeared since the last look is found in
        // one.
        now.sort_by_key(|(_, stat)| stat.started);
        let alive: HashSet<(i32, u64)> = now.iter().map(|(pid, stat)| (*pid, stat.started)).collect();
        self.seen.retain(|known| alive.contains(known));
        let mut owner = owners(apps);
        for &(pid, ref stat) in &now {
            let stub = beside.stubs.contains(&pid) || stat.comm == stub::NAME;
            if owner.contains_key(&pid) || stub || !can_be_member(stat) {
                continue;
            }
            // A child has nothing of its parent's region.
            let app = match owner.get(&stat.parent).filter(|app| app.region().is_none()) {
                Some(app) => Some(app.clone()),
                None if !self.seen.insert((pid, stat.started)) => None,
                None => by_mark(apps, pid),
            };
            if let Some(app) = app
                && self.admit(&app, pid, stat)
            {
                owner.insert(pid, app);
            }
        }
        beside.sightings.put(|| now);
    }

    /// Whether nothing of the app can come any more once its processes have ended.
    pub fn is_over(&self, app: &App) -> bool {
        self.whereabouts.is_over(app)
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

/// Whose each process is.
fn owners(apps: &[Arc<App>]) -> HashMap<i32, Arc<App>> {
    let of = |app: &Arc<App>| app.members.lock().iter().map(|m| (m.pid, app.clone())).collect::<Vec<_>>();
    apps.iter().flat_map(of).collect()
}

/// It runs, and is no thread of the kernel's.
pub fn can_be_member(stat: &Stat) -> bool {
    !stat.is_zombie() && stat.has_memory
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stub_is_never_paged() {
        assert!(NEVER_PAGED.contains(&stub::NAME));
    }
}
