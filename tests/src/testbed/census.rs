//! What a process consists of, as the kernel lists it: to show that attaching and detaching leaves
//! nothing behind.

use std::collections::BTreeMap;
use std::fs;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Census {
    /// Descriptor → what it is open on.
    pub descriptors: BTreeMap<i32, String>,
    /// Mappings that have a name (files, memfds, the stack, the vdso …), and how many of each.
    pub named_mappings: BTreeMap<String, usize>,
    /// Mappings without a name. Neighbours may merge, so the number is not compared for equality.
    pub anonymous_mappings: usize,
    /// Bytes of address space without a name.
    pub anonymous_bytes: u64,
    pub threads: usize,
    /// Children, zombies included.
    pub children: Vec<i32>,
    pub tracer: i32,
}

impl Census {
    /// # Panics
    /// When the process is gone.
    pub fn of(pid: i32) -> Census {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("the process is there");
        let number = |key: &str| {
            let line = status.lines().find_map(|l| l.strip_prefix(key)).expect("proc(5) has it");
            line.trim().parse::<i32>().expect("a number")
        };
        let descriptors = fs::read_dir(format!("/proc/{pid}/fd"))
            .expect("the process is there")
            .flatten()
            .filter_map(|entry| {
                let target = fs::read_link(entry.path()).ok()?;
                Some((entry.file_name().to_str()?.parse().ok()?, target.to_string_lossy().into_owned()))
            })
            .collect();
        let mut named_mappings = BTreeMap::new();
        let (mut anonymous_mappings, mut anonymous_bytes) = (0, 0);
        for line in fs::read_to_string(format!("/proc/{pid}/maps")).expect("the process is there").lines() {
            let mut words = line.split_whitespace();
            let range = words.next().expect("proc(5) has it");
            match words.nth(4) {
                // The heap grows and the main stack does, neither by our doing.
                Some(name) => *named_mappings.entry(name.to_owned()).or_insert(0) += 1,
                None => {
                    let (from, to) = range.split_once('-').expect("proc(5) has it");
                    let parse = |hex| u64::from_str_radix(hex, 16).expect("proc(5) has it");
                    anonymous_mappings += 1;
                    anonymous_bytes += parse(to) - parse(from);
                }
            }
        }
        let tasks = fs::read_dir(format!("/proc/{pid}/task")).expect("the process is there").flatten();
        let children = tasks
            .flat_map(|task| {
                let list = fs::read_to_string(task.path().join("children")).unwrap_or_default();
                list.split_whitespace().filter_map(|c| c.parse().ok()).collect::<Vec<i32>>()
            })
            .collect();
        Census {
            descriptors,
            named_mappings,
            anonymous_mappings,
            anonymous_bytes,
            threads: number("Threads:") as usize,
            children,
            tracer: number("TracerPid:"),
        }
    }

    /// # Panics
    /// When `after` has something that was not there before, or lacks something.
    #[track_caller]
    pub fn assert_same(&self, after: &Census) {
        assert_eq!(self.descriptors, after.descriptors, "descriptors");
        assert_eq!(self.named_mappings, after.named_mappings, "named mappings");
        assert_eq!(self.anonymous_bytes, after.anonymous_bytes, "anonymous address space");
        assert!(
            after.anonymous_mappings <= self.anonymous_mappings + 2,
            "the address space is in more pieces: {} before, {} after",
            self.anonymous_mappings,
            after.anonymous_mappings
        );
        assert_eq!(self.threads, after.threads, "threads");
        assert_eq!(self.children, after.children, "children");
        assert_eq!(after.tracer, 0, "it is still traced");
    }
}

/// A process's stubs: those that have its memory and bear the name, whoever their parent is.
pub fn stubs_of(pid: i32) -> Vec<i32> {
    let processes = fs::read_dir("/proc").expect("it is mounted").flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.filter(|other| is_stub(*other) && share_memory(pid, *other)).collect()
}

/// Whether a process is a stub that lives.
pub fn is_stub(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.contains("(annex-stub) ") && !stat.contains(") Z ")
}

fn share_memory(one: i32, other: i32) -> bool {
    const KCMP_VM: i32 = 1;
    // SAFETY: kcmp compares what the two processes have, and touches no memory of ours.
    unsafe { libc::syscall(libc::SYS_kcmp, one, other, KCMP_VM, 0, 0) == 0 }
}
