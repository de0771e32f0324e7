//! What somebody has let go of by hand (`annex detach`): no rule attaches it again, and no cgroup's
//! app takes it in, until somebody attaches it by hand.
//!
//! A process is known by its PID and its start, a cgroup by its folder and the kernel's number for
//! it. Either counts as long as that very process or cgroup is there. The list lies in a file
//! beside annexd's socket, so that it outlives annexd however that ends. After a reboot it is
//! nobody's.

use crate::kernel::cgroup;
use crate::kernel::process::Stat;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeSet, HashMap};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

/// A longer file is none of annexd's.
const LONGEST_FILE: u64 = 64 << 20;
/// A family does not reach further back.
const GENERATIONS: usize = 100;

pub struct LetGo {
    file: PathBuf,
    list: Mutex<List>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct List {
    /// Of which boot of the host this is.
    boot: String,
    /// PIDs and starts.
    processes: BTreeSet<(i32, u64)>,
    /// Folders and the kernel's numbers for them.
    cgroups: BTreeSet<(PathBuf, u64)>,
}

impl List {
    fn prune(&mut self) {
        self.processes.retain(|(pid, started)| Stat::read(*pid).is_some_and(|stat| stat.started == *started));
        self.cgroups.retain(|(folder, number)| cgroup::number(folder) == Some(*number));
    }
}

fn boot() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}

impl LetGo {
    /// What the annexd before has left there, if that was since the host was booted.
    pub fn open(file: PathBuf) -> LetGo {
        let left = match read(&file) {
            Ok(left) => Some(left),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => {
                tracing::warn!(
                    "failed to read {}: {error}; rules may attach what was detached by hand",
                    file.display()
                );
                None
            }
        };
        let boot = boot();
        let list = left.filter(|left| left.boot == boot).unwrap_or(List { boot, ..List::default() });
        LetGo { file, list: Mutex::new(list) }
    }

    /// Somebody lets go of these.
    pub fn add(&self, processes: impl IntoIterator<Item = (i32, u64)>, folder: Option<&Path>) {
        let cgroup = folder.and_then(|folder| Some((folder.to_owned(), cgroup::number(folder)?)));
        self.change(|list| {
            list.processes.extend(processes);
            list.cgroups.extend(cgroup);
        });
    }

    /// Somebody attaches these by hand, or they were not let go of after all.
    pub fn remove(&self, processes: impl IntoIterator<Item = (i32, u64)>, folder: Option<&Path>) {
        self.change(|list| {
            for process in processes {
                list.processes.remove(&process);
            }
            list.cgroups.retain(|(of, _)| folder.is_none_or(|folder| !of.starts_with(folder)));
        });
    }

    /// Forgets what has ended. To be called now and then.
    pub fn tidy(&self) {
        if !self.is_empty() {
            self.change(|_| ());
        }
    }

    pub fn is_empty(&self) -> bool {
        let list = self.list.lock();
        list.processes.is_empty() && list.cgroups.is_empty()
    }

    pub fn has_process(&self, pid: i32, stat: &Stat) -> bool {
        self.list.lock().processes.contains(&(pid, stat.started))
    }

    /// Whether the cgroup, or one above it, was let go of.
    pub fn has_cgroup(&self, folder: &Path) -> bool {
        let list = self.list.lock();
        let is_there = |(of, number): &(PathBuf, u64)| folder.starts_with(of) && cgroup::number(of) == Some(*number);
        list.cgroups.iter().any(is_there)
    }

    /// The processes that are in cgroups that were let go of.
    pub fn in_cgroups(&self) -> BTreeSet<i32> {
        let list = self.list.lock().clone();
        let there = list.cgroups.iter().filter(|(folder, number)| cgroup::number(folder) == Some(*number));
        there.flat_map(|(folder, _)| cgroup::members_of(folder)).collect()
    }

    /// Whether the process, or one that it descends from, was let go of.
    pub fn has_family_of(&self, pid: i32, all: &HashMap<i32, Stat>) -> bool {
        let list = self.list.lock();
        let mut next = pid;
        for _ in 0..GENERATIONS {
            let Some(stat) = all.get(&next) else { return false };
            if list.processes.contains(&(next, stat.started)) {
                return true;
            }
            next = stat.parent;
        }
        false
    }

    fn change(&self, change: impl FnOnce(&mut List)) {
        let mut list = self.list.lock();
        let before = list.clone();
        change(&mut list);
        list.prune();
        if *list == before {
            return;
        }
        if let Err(error) = write(&self.file, &list) {
            let file = self.file.display();
            tracing::warn!("failed to write {file}: {error}; the next annexd does not know what was detached by hand");
        }
    }
}

fn read(file: &Path) -> io::Result<List> {
    let mut text = Vec::new();
    File::open(file)?.take(LONGEST_FILE).read_to_end(&mut text)?;
    Ok(serde_json::from_slice(&text)?)
}

/// Either the old list is there or the new one, whenever annexd ends.
fn write(file: &Path, list: &List) -> io::Result<()> {
    let new = file.with_extension("detached-new");
    let _ = fs::remove_file(&new);
    let mut options = File::options();
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.write(true).create_new(true).open(&new)?.write_all(&serde_json::to_vec(list)?)?;
    fs::rename(&new, file)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn me() -> (i32, Stat) {
        let pid = std::process::id() as i32;
        (pid, Stat::read(pid).unwrap())
    }

    #[test]
    fn what_was_let_go_is_known_to_the_next_annexd_until_it_has_ended() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("annexd.detached");
        let folder = dir.path().join("cgroup");
        fs::create_dir(&folder).unwrap();
        let (pid, stat) = me();
        LetGo::open(file.clone()).add([(pid, stat.started), (pid, stat.started + 1)], Some(&folder));
        let next = LetGo::open(file.clone());
        assert!(next.has_process(pid, &stat));
        assert!(next.has_cgroup(&folder) && next.has_cgroup(&folder.join("below")));
        assert_eq!(next.list.lock().processes.len(), 1, "the other one has ended");
        // Another cgroup with its path is another.
        fs::create_dir(dir.path().join("keeps the number")).unwrap();
        fs::rename(&folder, dir.path().join("away")).unwrap();
        fs::create_dir(&folder).unwrap();
        assert!(!next.has_cgroup(&folder));
        next.tidy();
        assert!(next.list.lock().cgroups.is_empty());
        next.remove([(pid, stat.started)], None);
        assert!(!LetGo::open(file).has_process(pid, &stat));
    }

    #[test]
    fn whoever_attaches_a_cgroup_by_hand_has_all_that_is_in_it() {
        let dir = tempfile::tempdir().unwrap();
        let inner = dir.path().join("inner");
        fs::create_dir(&inner).unwrap();
        let list = LetGo::open(dir.path().join("annexd.detached"));
        list.add([], Some(&inner));
        assert!(list.has_cgroup(&inner));
        list.remove([], Some(dir.path()));
        assert!(!list.has_cgroup(&inner));
    }

    #[test]
    fn another_boots_list_and_one_that_is_damaged_are_nobodys() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("annexd.detached");
        let (pid, stat) = me();
        let list = List { boot: "another".into(), processes: [(pid, stat.started)].into(), ..List::default() };
        write(&file, &list).unwrap();
        assert!(!LetGo::open(file.clone()).has_process(pid, &stat));
        fs::write(&file, "[").unwrap();
        assert!(!LetGo::open(file).has_process(pid, &stat));
    }

    #[test]
    fn a_child_belongs_to_its_parents_family() {
        let dir = tempfile::tempdir().unwrap();
        let list = LetGo::open(dir.path().join("annexd.detached"));
        let (pid, stat) = me();
        let child = Stat { parent: pid, started: stat.started + 9, ..stat.clone() };
        let all = HashMap::from([(pid, stat.clone()), (1 << 22, child)]);
        assert!(!list.has_family_of(1 << 22, &all));
        list.add([(pid, stat.started)], None);
        assert!(list.has_family_of(1 << 22, &all) && list.has_family_of(pid, &all));
    }
}
