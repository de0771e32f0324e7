//! The thread that follows rules: it attaches what a rule names as that appears.
//!
//! Once a second it looks at the cgroups there are, and at the processes as the manager has seen
//! them. Looking at cgroups takes at most a hundredth of the time. What belongs to an app stays
//! there, and so does what descends from it. What was detached by hand is left alone.

use super::Pager;
use super::by::By;
use crate::app::container::ContainerError;
use crate::app::sightings::{OFTEN, Processes};
use crate::app::{App, container, membership};
use crate::control::Caller;
use crate::kernel::cgroup::Cgroup;
use crate::kernel::process::Stat;
use crate::kernel::{cgroup, process};
use crate::rules::gate::Gate;
use crate::rules::troubles::{Say, Subject, Troubles};
use crate::rules::{Glob, Rule, Selector};
use annex_host::event;
use annex_host::sentinel::Sentinel;
use annex_shared::api::{AttachRequest, ErrorCode, Target};
use annex_shared::printable::printable;
use nix::unistd::User;
use std::collections::{HashMap, HashSet};
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::Instant;

/// Looking at all cgroups takes at most one part in this many of the time.
const SHARE: u32 = 100;
/// A family does not reach further back.
const GENERATIONS: usize = 100;

impl Pager {
    /// Follows these rules from now on.
    pub fn follow(self: &Arc<Pager>, rules: Vec<Rule>) -> io::Result<()> {
        if rules.is_empty() {
            return Ok(());
        }
        if rules.iter().any(|rule| matches!(rule.selector, Selector::Command { .. })) {
            self.app_registry.sightings.want();
            self.app_registry.ring();
        }
        let (gate, pager) = (self.gate.clone(), Arc::downgrade(self));
        let follower = Follower { rules, troubles: Troubles::default(), rests_until: None };
        std::thread::Builder::new().name("annex-rules".into()).spawn(move || follower.run(&gate, &pager))?;
        Ok(())
    }

    /// A name like this one that no app has.
    fn free_name(&self, wanted: &str) -> String {
        let apps = self.app_registry.all();
        let is_free = |name: &String| apps.iter().all(|app| app.name != *name);
        let names = std::iter::once(wanted.to_owned()).chain((2..).map(|n: u64| format!("{wanted}-{n}")));
        names.into_iter().find(is_free).unwrap_or_else(|| wanted.to_owned())
    }
}

struct Follower {
    rules: Vec<Rule>,
    troubles: Troubles,
    rests_until: Option<Instant>,
}

/// Something that the rule of this number names.
struct Match {
    rule: usize,
    subject: Subject,
    target: Target,
}

impl Follower {
    fn run(mut self, gate: &Gate, pager: &Weak<Pager>) {
        let _sentinel = Sentinel("the thread that follows rules");
        while pager.strong_count() > 0 {
            gate.pass(|| {
                if let Some(pager) = pager.upgrade() {
                    self.look(&pager);
                }
            });
            std::thread::sleep(OFTEN);
        }
    }

    fn look(&mut self, pager: &Pager) {
        pager.app_registry.let_go.tidy();
        if self.rules.iter().any(|rule| !matches!(rule.selector, Selector::Command { .. })) {
            self.look_at_cgroups(pager);
        }
        if let Some(processes) = pager.app_registry.sightings.take() {
            self.look_at_processes(pager, &processes);
        }
    }

    fn look_at_cgroups(&mut self, pager: &Pager) {
        if self.rests_until.is_some_and(|until| Instant::now() < until) {
            return;
        }
        let before = process::own_cpu_time();
        let cgroups = cgroup::all();
        let found: Vec<Match> = (0..self.rules.len()).flat_map(|rule| self.of_rule(rule, &cgroups)).collect();
        self.rests_until = Some(Instant::now() + (process::own_cpu_time() - before) * SHARE);
        for found in found {
            // One that stands for a unit or a container that is away finds it by itself.
            let has_app = pager.app_registry.all().iter().any(|app| app.target == found.target);
            if !has_app {
                self.attach(pager, found);
            }
        }
    }

    fn of_rule(&mut self, rule: usize, cgroups: &[Cgroup]) -> Vec<Match> {
        let found = |folder: &PathBuf, target: Target| {
            let subject = Subject::Cgroup(folder.clone(), cgroup::number(folder)?);
            Some(Match { rule, subject, target })
        };
        match &self.rules[rule].selector {
            Selector::Unit(glob) => {
                let is_it = |cgroup: &&Cgroup| glob.matches(cgroup.name());
                cgroups.iter().filter(is_it).filter_map(|c| found(&c.folder, Target::Unit(c.name().into()))).collect()
            }
            Selector::Cgroup(glob) => {
                let is_it = |cgroup: &&Cgroup| glob.matches(&cgroup.path);
                let target = |cgroup: &Cgroup| Some(Target::Cgroup(cgroup.folder.to_str()?.to_owned()));
                cgroups.iter().filter(is_it).filter_map(|c| found(&c.folder, target(c)?)).collect()
            }
            Selector::Container(name) => match container::find_among(name, cgroups) {
                Ok(it) => found(&it.folder, Target::Container(it.lasting)).into_iter().collect(),
                Err(ContainerError::None(_)) => Vec::new(),
                Err(error @ ContainerError::Ambiguous { .. }) => {
                    self.tell(rule, Subject::Named(rule), &error.to_string());
                    Vec::new()
                }
            },
            Selector::Command { .. } => Vec::new(),
        }
    }

    fn look_at_processes(&mut self, pager: &Pager, processes: &Processes) {
        let all: HashMap<i32, Stat> = processes.iter().cloned().collect();
        // Parents before children, so that a family becomes one app.
        let mut sorted: Vec<&(i32, Stat)> = processes.iter().collect();
        sorted.sort_by_key(|(pid, stat)| (stat.started, *pid));
        let (whole, regions): (Vec<_>, Vec<_>) =
            pager.app_registry.all().into_iter().partition(|app: &Arc<App>| app.region().is_none());
        let pids = |apps: &[Arc<App>]| -> HashSet<i32> {
            apps.iter().flat_map(|app| app.members.lock().iter().map(|m| m.pid).collect::<Vec<_>>()).collect()
        };
        let (mut owned, with_region) = (pids(&whole), pids(&regions));
        let let_go = &pager.app_registry.let_go;
        let in_cgroups = let_go.in_cgroups();
        for (pid, stat) in sorted {
            let is_free = membership::can_be_member(stat) && !with_region.contains(pid) && !in_cgroups.contains(pid);
            let Some(rule) = is_free.then(|| self.of_process(*pid, stat)).flatten() else { continue };
            let is_anothers = family(*pid, &all).any(|relative| owned.contains(&relative));
            if is_anothers || let_go.has_family_of(*pid, &all) || membership::is_exempt(*pid, stat) {
                continue;
            }
            let subject = Subject::Process(*pid, stat.started);
            self.attach(pager, Match { rule, subject, target: Target::Pid(*pid) });
            // Its children are not tried in its place.
            owned.insert(*pid);
        }
    }

    /// The first rule that names a process.
    fn of_process(&self, pid: i32, stat: &Stat) -> Option<usize> {
        let executable = std::fs::read_link(format!("/proc/{pid}/exe")).ok()?;
        let executable = executable.to_str()?;
        let executable = executable.strip_suffix(" (deleted)").unwrap_or(executable);
        let named = |rule: &Rule| match &rule.selector {
            Selector::Command { glob, user } => {
                is_called(glob, executable, &stat.comm) && user.as_ref().is_none_or(|user| belongs_to(pid, user))
            }
            _ => false,
        };
        self.rules.iter().position(named)
    }

    fn attach(&mut self, pager: &Pager, found: Match) {
        let Match { rule, subject, target } = found;
        if pager.gate.is_closed() || !self.troubles.may_try(&subject, Instant::now()) {
            return;
        }
        let Rule { name, local, .. } = &self.rules[rule];
        let name = name.as_ref().map(|name| pager.free_name(name));
        let request = AttachRequest { target, name, program: None, local: *local, require_donors: false };
        let me = Caller { pid: std::process::id() as i32, uid: 0, gid: 0, confined: false };
        match pager.attach_as(&request, me, By::Rule) {
            Ok(app) => {
                self.troubles.succeeded(&subject);
                let rule = self.rules[rule].to_string();
                event!(INFO, AppAttached of &app.name, uid app.uid, "attached by the rule {}", printable(&rule));
            }
            // It has ended, or belongs to somebody by now.
            Err(error) if matches!(error.kind, ErrorCode::NotFound | ErrorCode::AlreadyAttached) => {}
            Err(error) => self.tell(rule, subject, &error.message),
        }
    }

    fn tell(&mut self, rule: usize, subject: Subject, why: &str) {
        let rule = self.rules[rule].to_string();
        match self.troubles.failed(subject, why, Instant::now()) {
            Say::This => tracing::warn!("the rule {} attaches nothing: {why}; annexd tries again", printable(&rule)),
            Say::TooMany => {
                tracing::warn!("rules attach less than they name, for more reasons than are told of within a minute");
            }
            Say::Nothing => {}
        }
    }
}

/// The process, and those that it descends from.
fn family(pid: i32, all: &HashMap<i32, Stat>) -> impl Iterator<Item = i32> {
    std::iter::successors(Some(pid), |pid| all.get(pid).map(|stat| stat.parent)).take(GENERATIONS)
}

/// A pattern with a `/` is about the path.
fn is_called(glob: &Glob, executable: &str, comm: &str) -> bool {
    let name = executable.rsplit('/').next().unwrap_or_default();
    if glob.has_slash() { glob.matches(executable) } else { glob.matches(name) || glob.matches(comm) }
}

fn belongs_to(pid: i32, user: &str) -> bool {
    let uid = user.parse().ok().or_else(|| Some(User::from_name(user).ok()??.uid.as_raw()));
    let [_, effective, _] = process::identity(pid).unwrap_or_default().uids;
    uid.is_some_and(|uid: u32| uid == effective && std::path::Path::new(&format!("/proc/{pid}")).exists())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_is_for_a_path_or_for_a_name() {
        let called = |glob: &str, executable: &str, comm: &str| is_called(&Glob::new(glob).unwrap(), executable, comm);
        assert!(called("/usr/bin/redis-*", "/usr/bin/redis-server", "redis-server"));
        assert!(!called("/bin/redis-*", "/usr/bin/redis-server", "redis-server"));
        assert!(called("redis-server", "/opt/redis-server", "io_thd_1"));
        assert!(called("gunicorn", "/usr/bin/python3.13", "gunicorn"), "a script has a name of its own");
        assert!(!called("redis", "/opt/redis/server", "server"));
    }

    #[test]
    fn a_process_belongs_to_its_user() {
        let me = std::process::id() as i32;
        let uid = nix::unistd::geteuid();
        assert!(belongs_to(me, &uid.to_string()));
        assert!(!belongs_to(me, "no-such-user"));
        assert!(!belongs_to(me, &(uid.as_raw() + 1).to_string()));
        assert!(!belongs_to(i32::MAX, "0"), "nobody is there");
    }

    #[test]
    fn a_family_is_a_process_and_its_ancestors() {
        let stat = |parent| Stat { parent, ..Stat::read(std::process::id() as i32).unwrap() };
        let all = HashMap::from([(9, stat(5)), (5, stat(1)), (1, stat(0))]);
        assert_eq!(family(9, &all).take(3).collect::<Vec<_>>(), [9, 5, 1]);
    }
}
