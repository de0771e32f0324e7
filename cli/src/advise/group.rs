//! Which processes are taken as one: a systemd unit, a container, or a process with its children.
//! Pure.
//!
//! `annex attach` takes one of these, and so a row of the table is one. Units and containers are
//! root's to attach: a user's own processes in them are process trees.

use super::process::Process;
use std::collections::{HashMap, HashSet};

/// What `annex attach` is given.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Target {
    Unit(String),
    /// Its name, or the beginning of its id.
    Container(String),
    /// A process, with its children.
    Process(i32),
}

/// What is taken as one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    pub target: Target,
    /// `docker 0123456789ab`, if it runs in a container.
    pub container: Option<String>,
    /// The one that is attached first, if it is there.
    pub members: Vec<Process>,
}

impl Group {
    pub fn anonymous(&self) -> u64 {
        self.members.iter().map(|member| member.anonymous).sum()
    }
}

/// Where a process lives, by /proc/PID/cgroup.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Home {
    Unit(String),
    Container(Container),
    None,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Container {
    engine: String,
    /// What `annex attach --container` takes.
    key: String,
}

impl Home {
    fn of(cgroup: &str) -> Home {
        // The unified hierarchy, or systemd's own where that one is not in use.
        let of = |lead: &str| cgroup.lines().find_map(|line| line.strip_prefix(lead)).filter(|path| *path != "/");
        let named = cgroup.lines().find_map(|line| line.split_once(":name=systemd:").map(|(_, path)| path));
        let Some(path) = of("0::").or(named) else { return Home::None };
        let parts: Vec<&str> = path.split('/').collect();
        let above = |i: usize| i.checked_sub(1).and_then(|above| parts.get(above)).copied().unwrap_or_default();
        if let Some(container) = parts.iter().enumerate().find_map(|(i, part)| container(part, above(i))) {
            return Home::Container(container);
        }
        let is_unit = |part: &&&str| part.ends_with(".service") || part.ends_with(".scope");
        match parts.iter().rev().find(is_unit) {
            // A whole session of a user, or systemd itself, is nothing to page.
            Some(unit) if ["session-", "user@", "init.scope"].iter().any(|lead| unit.starts_with(lead)) => Home::None,
            Some(unit) => Home::Unit((*unit).to_owned()),
            None => Home::None,
        }
    }
}

/// The container that a cgroup of this name is, below one of that name.
fn container(part: &str, above: &str) -> Option<Container> {
    let called = |engine: &str, key: &str| Container { engine: engine.into(), key: key.into() };
    if let Some(name) = part.strip_prefix("lxc.payload.") {
        return Some(called("lxc", name));
    }
    let name = part.strip_suffix(".scope").unwrap_or(part);
    let (engine, id) = name.rsplit_once('-').unwrap_or((above, name));
    let engine = match engine {
        "docker" => "docker",
        "libpod" | "libpod_parent" => "podman",
        "cri-containerd" | "nerdctl" => "containerd",
        "crio" => "cri-o",
        // The monitor beside a container.
        _ if engine.ends_with("conmon") => return None,
        _ => "container",
    };
    let is_id = id.len() == 64 && id.bytes().all(|b| b.is_ascii_hexdigit());
    is_id.then(|| called(engine, &id[..12]))
}

/// The groups of those processes: of the `wanted` ones with their children; or, if none is, all
/// with at least so much anonymous memory. With `by_unit` the processes of a unit are one, and
/// those of a container.
pub fn groups(processes: &[Process], wanted: &[i32], least: u64, by_unit: bool) -> Vec<Group> {
    let by_pid: HashMap<i32, &Process> = processes.iter().map(|process| (process.pid, process)).collect();
    let homes: HashMap<i32, Home> = processes.iter().map(|process| (process.pid, Home::of(&process.cgroup))).collect();
    let home = |pid: i32| homes.get(&pid).unwrap_or(&Home::None);
    // Itself and its ancestors, the nearest first.
    let line = |pid: i32| {
        let parent = |at: &&Process| by_pid.get(&at.parent).copied();
        std::iter::successors(by_pid.get(&pid).copied(), parent).take(processes.len())
    };
    let is_wanted: HashSet<i32> = wanted.iter().copied().collect();
    let target = |process: &Process| -> Option<Target> {
        if !wanted.is_empty() {
            let root = line(process.pid).filter(|at| is_wanted.contains(&at.pid)).last()?;
            return Some(Target::Process(root.pid));
        }
        match home(process.pid) {
            Home::Unit(unit) if by_unit => Some(Target::Unit(unit.clone())),
            Home::Container(Container { key, .. }) if by_unit => Some(Target::Container(key.clone())),
            // What is large itself, and its children: not the shell above it.
            own => {
                let alike = line(process.pid).take_while(|at| home(at.pid) == own);
                Some(Target::Process(alike.filter(|at| at.anonymous >= least).last()?.pid))
            }
        }
    };
    let mut found: Vec<Group> = Vec::new();
    let mut places: HashMap<Target, usize> = HashMap::new();
    for process in processes {
        let Some(target) = target(process) else { continue };
        let place = *places.entry(target.clone()).or_insert(found.len());
        if place == found.len() {
            let root = if let Target::Process(root) = target { root } else { process.pid };
            let container = match home(root) {
                Home::Container(Container { engine, key }) => Some(format!("{engine} {key}")),
                Home::Unit(_) | Home::None => None,
            };
            found.push(Group { target, container, members: Vec::new() });
        }
        found[place].members.push(process.clone());
    }
    for group in &mut found {
        let is_root = |process: &Process| group.target == Target::Process(process.pid);
        group.members.sort_by_key(|process| (!is_root(process), std::cmp::Reverse(process.anonymous), process.pid));
    }
    found.sort_by_key(|group| std::cmp::Reverse(group.anonymous()));
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const ID: &str = "4d5e6f708192a3b4c5d6e7f8091a2b3c4d5e6f708192a3b4c5d6e7f8091a2b3c";

    fn process(pid: i32, parent: i32, mib: u64, path: &str) -> Process {
        let cgroup = format!("4:memory:/elsewhere\n0::{path}\n");
        Process { pid, parent, anonymous: mib * MIB, cgroup, ..Process::default() }
    }

    fn told(groups: &[Group]) -> Vec<(Target, Vec<i32>)> {
        groups.iter().map(|g| (g.target.clone(), g.members.iter().map(|m| m.pid).collect())).collect()
    }

    #[test]
    fn a_units_processes_are_one() {
        let path = "/system.slice/db.service";
        let all = [
            process(10, 1, 5, path),
            process(11, 10, 100, &format!("{path}/worker")),
            process(12, 10, 300, path),
            process(20, 1, 70, "/system.slice/web.service"),
        ];
        let found = groups(&all, &[], 64 * MIB, true);
        let unit = |name: &str| Target::Unit(name.into());
        assert_eq!(told(&found), [(unit("db.service"), vec![12, 11, 10]), (unit("web.service"), vec![20])]);
        // An ordinary user can't attach units.
        let found = groups(&all, &[], 64 * MIB, false);
        let process = Target::Process;
        assert_eq!(told(&found), [(process(12), vec![12]), (process(11), vec![11]), (process(20), vec![20])]);
    }

    #[test]
    fn a_large_process_brings_its_children_and_not_the_shell_above_it() {
        let session = "/user.slice/user-0.slice/session-3.scope";
        let all = [
            process(100, 1, 4, session),
            process(101, 100, 90, session),
            process(102, 101, 2, session),
            process(103, 102, 500, session),
            process(104, 100, 80, session),
            process(105, 100, 3, session),
        ];
        let found = groups(&all, &[], 64 * MIB, true);
        assert_eq!(told(&found), [(Target::Process(101), vec![101, 103, 102]), (Target::Process(104), vec![104])]);
        let wanted = groups(&all, &[102, 103, 105], 64 * MIB, true);
        assert_eq!(told(&wanted), [(Target::Process(102), vec![102, 103]), (Target::Process(105), vec![105])]);
    }

    #[test]
    fn a_containers_processes_are_one_whoever_their_parents_are() {
        let paths = [
            (format!("/system.slice/docker-{ID}.scope"), "docker"),
            (format!("/machine.slice/libpod-{ID}.scope/container"), "podman"),
            (format!("/kubepods.slice/kubepods-pod7.slice/cri-containerd-{ID}.scope"), "containerd"),
            (format!("/kubepods.slice/kubepods-pod7.slice/crio-{ID}.scope"), "cri-o"),
            (format!("/docker/{ID}"), "docker"),
            (format!("/kubepods/burstable/pod7/{ID}"), "container"),
            (format!("/machine.slice/libpod-{ID}.scope/container/system.slice/db.service"), "podman"),
        ];
        for (path, engine) in paths {
            let all = [
                process(9, 1, 200, "/system.slice/shim.service"),
                process(10, 9, 1, &path),
                process(11, 10, 99, &path),
                process(12, 1, 80, &path),
            ];
            let found = groups(&all, &[], 64 * MIB, true);
            let inside = found.iter().find(|group| group.container.is_some()).expect("a container");
            assert_eq!(inside.container, Some(format!("{engine} 4d5e6f708192")), "{path}");
            let members: Vec<i32> = inside.members.iter().map(|member| member.pid).collect();
            assert_eq!((&inside.target, &members[..]), (&Target::Container("4d5e6f708192".into()), &[11, 12, 10][..]));
            // An ordinary user can't attach containers.
            let found = groups(&all, &[], 64 * MIB, false);
            let inside: Vec<&Target> = found.iter().filter(|g| g.container.is_some()).map(|g| &g.target).collect();
            assert_eq!(inside, [&Target::Process(11), &Target::Process(12)], "{path}");
        }
        let monitor = format!("/machine.slice/libpod-conmon-{ID}.scope");
        assert!(matches!(Home::of(&format!("0::{monitor}")), Home::Unit(_)));
        let web = Container { engine: "lxc".into(), key: "web".into() };
        assert_eq!(Home::of("0::/lxc.payload.web/x\n"), Home::Container(web));
    }

    #[test]
    fn systemds_own_hierarchy_counts_where_the_unified_one_is_not_in_use() {
        let text = "9:name=systemd:/system.slice/db.service\n4:memory:/\n0::/\n";
        assert_eq!(Home::of(text), Home::Unit("db.service".into()));
        assert_eq!(Home::of("9:name=systemd:/\n0::/\n"), Home::None);
        assert_eq!(Home::of("0::/user.slice/user-5.slice/user@5.service/init.scope\n"), Home::None);
        let app = "0::/user.slice/user-5.slice/user@5.service/app.slice/editor.service\n";
        assert_eq!(Home::of(app), Home::Unit("editor.service".into()));
    }

    #[test]
    fn a_circle_of_parents_ends() {
        let all = [process(10, 11, 90, "/"), process(11, 10, 90, "/")];
        assert_eq!(groups(&all, &[], 64 * MIB, true).iter().map(|g| g.members.len()).sum::<usize>(), 2);
    }
}
