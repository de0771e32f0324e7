//! Looks at processes several times over a while, without harming them.
//!
//! The accessed bits of a process's anonymous pages are cleared once. Nothing else of it changes:
//! no page is unmapped or protected, and soft-dirty bits stay. What it touches from then on has the
//! bit again, and each look at /proc/PID/smaps counts those pages. The looks clear nothing.
//!
//! Clearing holds the process's memory map for about 30 ms a GiB of small pages (measured on a
//! virtual machine, Linux 6.18). A thread that makes a page fault or maps memory just then waits so
//! long. That is why there is one clearing, and why a very large process is not looked at unasked
//! ([`MOST`]).

use super::group::Group;
use super::look::Look;
use super::process::{LeftOut, Process};
use annex_shared::mapping;
use annex_shared::process::same_address_space;
use nix::unistd::Uid;
use std::collections::HashMap;
use std::fs;
use std::io;
use std::time::{Duration, Instant};

/// Looks come at these parts of the time.
const PARTS: [f64; 3] = [0.25, 0.5, 1.0];
/// Small pages of one process that are cleared without being asked to, in bytes: about a second.
pub const MOST: u64 = 32 << 30;
/// Of the anonymous pages: those of files stay as they are, of which the kernel's reclaim makes
/// more use.
const ANONYMOUS: &str = "2";

/// What a process was like.
#[derive(Debug)]
pub struct Track {
    pub process: Process,
    cleared: Option<Instant>,
    /// How long the clearing took.
    pub paused: Duration,
    pub looks: Vec<Look>,
    /// Why there are no looks, or no more.
    pub end: Option<LeftOut>,
}

/// A group with what was seen of its processes.
#[derive(Debug)]
pub struct Sampled {
    pub group: Group,
    pub tracks: Vec<Track>,
}

/// How a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    Over,
    /// By SIGINT: tell what there is.
    Interrupted,
}

/// Looks at all groups for that time. `wait` lets time pass until an instant. True: all of it.
pub fn sample(groups: Vec<Group>, time: Duration, mut wait: impl FnMut(Instant) -> Wait) -> (Vec<Sampled>, bool) {
    let began = Instant::now();
    let mut sampled: Vec<Sampled> = groups.into_iter().map(Sampled::begin).collect();
    for part in PARTS {
        let is_over = wait(began + time.mul_f64(part)) == Wait::Over;
        sampled.iter_mut().for_each(Sampled::look);
        if !is_over {
            return (sampled, false);
        }
    }
    (sampled, true)
}

impl Sampled {
    fn begin(group: Group) -> Sampled {
        let mut tracks: Vec<Track> = Vec::new();
        let places: HashMap<i32, usize> = group.members.iter().enumerate().map(|(i, m)| (m.pid, i)).collect();
        for process in &group.members {
            // Made by vfork or CLONE_VM: its memory is its parent's.
            let parent = places.get(&process.parent).filter(|_| process.parent != process.pid);
            if parent.is_some() && same_address_space(process.pid, process.parent) == Some(true) {
                continue;
            }
            let mut track =
                Track { process: process.clone(), cleared: None, paused: Duration::ZERO, looks: Vec::new(), end: None };
            track.clear();
            tracks.push(track);
        }
        Sampled { group, tracks }
    }

    fn look(&mut self) {
        self.tracks.iter_mut().for_each(Track::look);
    }

    /// Looks at all that was there to the end, added up, in the order of time.
    pub fn looks(&self) -> Vec<Look> {
        let alive: Vec<&Track> = self.tracks.iter().filter(|track| track.is_whole()).collect();
        let count = alive.iter().map(|track| track.looks.len()).max().unwrap_or(0);
        (0..count).map(|i| Look::sum(alive.iter().filter_map(|track| track.looks.get(i)))).collect()
    }

    pub fn paused(&self) -> Duration {
        self.tracks.iter().map(|track| track.paused).max().unwrap_or_default()
    }
}

impl Track {
    /// It was looked at from the beginning to the end.
    pub fn is_whole(&self) -> bool {
        self.end.is_none() && !self.looks.is_empty()
    }

    fn clear(&mut self) {
        let began = Instant::now();
        match fs::write(format!("/proc/{}/clear_refs", self.process.pid), ANONYMOUS) {
            Ok(()) => self.cleared = Some(Instant::now()),
            Err(error) => self.end = Some(self.why(&error)),
        }
        self.paused = began.elapsed();
    }

    fn look(&mut self) {
        let Some(cleared) = self.cleared.filter(|_| self.end.is_none()) else { return };
        match fs::read(format!("/proc/{}/smaps", self.process.pid)) {
            // Asked after the look: the number may be another process's by now.
            Ok(_) if !self.process.is_there() => self.end = Some(LeftOut::Ended),
            Ok(bytes) => {
                let entries = mapping::smaps(&String::from_utf8_lossy(&bytes));
                if entries.iter().any(mapping::SmapsEntry::has_userfaultfd) {
                    self.end = Some(LeftOut::Userfaultfd);
                } else {
                    self.looks.push(Look::of(&entries, cleared.elapsed()));
                }
            }
            Err(error) => self.end = Some(self.why(&error)),
        }
    }

    fn why(&self, error: &io::Error) -> LeftOut {
        match error.kind() {
            _ if !self.process.is_there() => LeftOut::Ended,
            // Root without CAP_SYS_PTRACE is told the error itself.
            io::ErrorKind::PermissionDenied if !Uid::effective().is_root() => LeftOut::NotAllowed,
            _ => LeftOut::Unreadable(error.to_string()),
        }
    }
}

/// Bytes in small pages, if the process may have more than [`MOST`] of them.
pub fn too_large(process: &Process) -> Option<u64> {
    if process.anonymous <= MOST {
        return None;
    }
    let text = fs::read_to_string(format!("/proc/{}/smaps_rollup", process.pid)).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("AnonHugePages:")).unwrap_or_default();
    let huge = line.trim().trim_end_matches(" kB").parse::<u64>().unwrap_or(0) << 10;
    Some(process.anonymous.saturating_sub(huge)).filter(|small| *small > MOST)
}
