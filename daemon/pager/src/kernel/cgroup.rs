//! The cgroup file system: which cgroups there are, and which processes are in them.
//!
//! A cgroup is known by its folder. systemd's own hierarchy is looked at, and the unified one
//! beside it; on a host with version 2 alone these are one. Whatever somebody names is taken only
//! if it is a folder of such a file system in the end: see [`resolve`].

use nix::sys::statfs::{CGROUP_SUPER_MAGIC, CGROUP2_SUPER_MAGIC, statfs};
use std::collections::VecDeque;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

const MOUNT: &str = "/sys/fs/cgroup";
const ROOTS: [&str; 3] = ["/sys/fs/cgroup/unified", "/sys/fs/cgroup/systemd", MOUNT];
/// A unit lies no deeper than this.
const UNIT_DEPTH: u32 = 5;
/// Nor does a container, were it one of a Kubernetes node that is a container itself.
const DEPTH: u32 = 10;
/// More cgroups than this are not looked at.
const MOST: usize = 1 << 16;

/// What was named is no cgroup that can be attached.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CgroupError {
    #[error("there is no cgroup {0}")]
    None(String),
    #[error("{0} leads out of /sys/fs/cgroup")]
    Outside(String),
    #[error("{0} is the root of the cgroups: it has all processes of this host")]
    Root(String),
}

/// A cgroup and where it lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cgroup {
    pub folder: PathBuf,
    /// From its root on, as in /proc/PID/cgroup: `/system.slice/a.service`.
    pub path: String,
}

impl Cgroup {
    /// The last part of its path.
    pub fn name(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or_default()
    }
}

fn is_cgroup(folder: &Path) -> bool {
    folder.join("cgroup.procs").exists()
}

fn roots() -> impl Iterator<Item = &'static Path> {
    ROOTS.iter().map(Path::new).filter(|root| is_cgroup(root))
}

/// The folder of the cgroup that somebody names: by its path, or by its path from the root on.
///
/// # Errors
/// It is not there, or nothing below the root of a cgroup file system.
pub fn resolve(named: &str) -> Result<PathBuf, CgroupError> {
    let path = Path::new(named);
    if path.components().any(|part| part == Component::ParentDir) {
        return Err(CgroupError::Outside(named.into()));
    }
    let candidates: Vec<PathBuf> = match path.starts_with(MOUNT) {
        true => vec![path.to_owned()],
        false => roots().map(|root| root.join(named.trim_start_matches('/'))).collect(),
    };
    let there: Vec<PathBuf> = candidates.iter().filter_map(|folder| folder.canonicalize().ok()).collect();
    // Beside version 1 the same path may be in two hierarchies, and processes in one.
    let Some(folder) = there.iter().find(|folder| is_populated(folder)).or(there.first()) else {
        return Err(CgroupError::None(named.into()));
    };
    let is_one =
        statfs(folder).is_ok_and(|fs| [CGROUP_SUPER_MAGIC, CGROUP2_SUPER_MAGIC].contains(&fs.filesystem_type()));
    if !folder.starts_with(MOUNT) {
        return Err(CgroupError::Outside(named.into()));
    }
    let is_root = folder.parent().is_none_or(|parent| !is_cgroup(parent));
    match is_one && is_cgroup(folder) {
        false if folder == Path::new(MOUNT) => Err(CgroupError::Root(named.into())),
        false => Err(CgroupError::None(named.into())),
        true if is_root => Err(CgroupError::Root(named.into())),
        true => Ok(folder.clone()),
    }
}

/// What no other cgroup has, not even one that has its path later.
pub fn number(folder: &Path) -> Option<u64> {
    fs::metadata(folder).ok().map(|metadata| metadata.ino())
}

/// The cgroup of a systemd unit, in the unified hierarchy or systemd's own.
pub fn of_unit(unit: &str) -> Option<PathBuf> {
    let is_name = !unit.is_empty() && !unit.contains('/');
    roots().filter(|_| is_name).find_map(|root| find_below(root, unit, UNIT_DEPTH))
}

fn find_below(dir: &Path, unit: &str, depth: u32) -> Option<PathBuf> {
    let here = dir.join(unit);
    if is_cgroup(&here) {
        return Some(here);
    }
    if depth == 0 {
        return None;
    }
    folders(dir).into_iter().find_map(|folder| find_below(&folder, unit, depth - 1))
}

/// All cgroups below the roots, those nearer to a root first. One that two hierarchies have comes
/// twice. Names that are no text are left out.
pub fn all() -> Vec<Cgroup> {
    let mut found = Vec::new();
    for root in roots() {
        let mut next = VecDeque::from([(root.to_owned(), 0)]);
        while let Some((folder, depth)) = next.pop_front() {
            // One hierarchy may lie in the folder of another.
            for below in folders(&folder).into_iter().filter(|below| is_cgroup(below)) {
                let path = below.strip_prefix(root).ok().and_then(Path::to_str).map(|path| format!("/{path}"));
                let Some(path) = path.filter(|_| !roots().any(|root| root == below)) else { continue };
                if found.len() == MOST {
                    return found;
                }
                found.push(Cgroup { folder: below.clone(), path });
                if depth + 1 < DEPTH {
                    next.push_back((below, depth + 1));
                }
            }
        }
    }
    found
}

/// The processes in a cgroup and below it, as far as annexd can name them.
pub fn members_of(folder: &Path) -> Vec<i32> {
    let text = fs::read_to_string(folder.join("cgroup.procs")).unwrap_or_default();
    let mut pids: Vec<i32> = text.lines().filter_map(|line| line.parse().ok()).filter(|pid| *pid > 0).collect();
    pids.extend(folders(folder).iter().flat_map(|below| members_of(below)));
    pids
}

/// Whether it has a process, or one below it has.
pub fn is_populated(folder: &Path) -> bool {
    match fs::read_to_string(folder.join("cgroup.events")) {
        Ok(events) => events.lines().any(|line| line == "populated 1"),
        // Version 1 does not tell.
        Err(_) => !members_of(folder).is_empty(),
    }
}

fn folders(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.filter(|e| e.file_type().is_ok_and(|t| t.is_dir())).map(|e| e.path()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_but_a_cgroup_below_a_root_is_taken() {
        let out = |named: &str| matches!(resolve(named), Err(CgroupError::Outside(_)));
        assert!(out("../../../etc") && out("/sys/fs/cgroup/../../../etc") && out("a/../b"));
        for root in ["/", "", "/sys/fs/cgroup", "/sys/fs/cgroup/"] {
            let refused = resolve(root).unwrap_err();
            assert!(matches!(refused, CgroupError::Root(_) | CgroupError::None(_)), "{root}: {refused}");
        }
        assert_eq!(resolve("/no/such/one"), Err(CgroupError::None("/no/such/one".into())));
        // Files of the kernel's are no cgroups.
        assert!(resolve("cgroup.procs").is_err());
    }

    #[test]
    fn a_cgroup_is_called_by_the_last_part_of_its_path() {
        let cgroup = Cgroup { folder: "/sys/fs/cgroup/a/b.scope".into(), path: "/a/b.scope".into() };
        assert_eq!(cgroup.name(), "b.scope");
    }
}
