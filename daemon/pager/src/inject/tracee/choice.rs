//! Which thread of a process is borrowed: one that stops soon.
//!
//! The main thread is asked first. One that has ended can't be stopped, and one in an
//! uninterruptible call (waiting for its vfork child, or for a disk) can't be stopped yet. Threads
//! that the kernel has made for io_uring stop, and never make a call for us. So a
//! thread that does not stop within a short time stays asked, and the next one is asked beside it.
//! The first that stops is taken. The others are let go as soon as they stop, or by the kernel when
//! the tracing thread ends.

use super::asked::{AskedThreads, Seen, look};
use super::ptrace::{TraceError, find_syscall, interrupt_new, pause};
use super::thread::Tracee;
use crate::kernel::process::{self, Stat};
use std::time::{Duration, Instant};

/// How long one thread is waited for before the next one is asked too.
const PATIENCE: Duration = Duration::from_millis(20);
/// How long a process is given until one of its threads stops.
const DEADLINE: Duration = Duration::from_secs(5);
/// As many threads are asked at most.
const MOST_ASKED: usize = 16;
/// As many threads are told of in a message.
const MOST_TOLD: usize = 3;

/// Stops the first thread of `pid` that can be.
pub fn borrow(pid: i32) -> Result<(Tracee, AskedThreads), TraceError> {
    let start = Instant::now();
    let mut asked = AskedThreads { pid, tids: Vec::new() };
    let mut refused = None;
    // Most often the main thread stops at once: others are looked for when it does not.
    let mut next = vec![pid];
    let mut next_round = start;
    let mut syscall_at = find_syscall(pid);
    loop {
        if Instant::now() >= next_round {
            if next.is_empty() {
                next = candidates(pid, &asked.tids);
            }
            next.retain(|tid| Stat::read_thread(pid, *tid).is_some_and(|stat| !stat.is_zombie()));
            while !next.is_empty() && asked.tids.len() < MOST_ASKED {
                let tid = next.remove(0);
                match interrupt_new(tid) {
                    Ok(()) => {
                        asked.tids.push(tid);
                        break;
                    }
                    Err(error) => refused = Some(error),
                }
            }
            next_round = Instant::now() + if asked.tids.is_empty() { Duration::ZERO } else { PATIENCE };
        }
        for nth in (0..asked.tids.len()).rev() {
            let tid = asked.tids[nth];
            match look(tid) {
                Seen::Running => {}
                Seen::Ended => drop(asked.tids.swap_remove(nth)),
                Seen::Stopped => {
                    asked.tids.swap_remove(nth);
                    syscall_at = syscall_at.or_else(|| find_syscall(tid));
                    return Ok((Tracee::take(pid, tid, syscall_at)?, asked));
                }
            }
        }
        let waited = start.elapsed();
        if asked.tids.is_empty() && (waited > PATIENCE * 5 || candidates(pid, &[]).is_empty()) {
            return Err(refused.unwrap_or(TraceError::Died { tid: pid }));
        }
        if waited > DEADLINE {
            return Err(TraceError::NoneStopped { pid, causes: causes(pid, &asked.tids) });
        }
        pause(waited);
    }
}

/// Stops one thread after the other of a process.
pub struct Borrowing {
    pid: i32,
    syscall_at: Option<u64>,
}

impl Borrowing {
    pub fn from(pid: i32) -> Borrowing {
        Borrowing { pid, syscall_at: find_syscall(pid) }
    }

    /// This thread, if it stops soon.
    pub fn thread(&self, tid: i32) -> Option<Tracee> {
        interrupt_new(tid).ok()?;
        let start = Instant::now();
        loop {
            match look(tid) {
                Seen::Stopped => return Tracee::take(self.pid, tid, self.syscall_at).ok(),
                Seen::Ended => return None,
                // The kernel lets it go when the tracing thread ends.
                Seen::Running if start.elapsed() > PATIENCE => return None,
                Seen::Running => pause(start.elapsed()),
            }
        }
    }
}

/// The living threads of a process that are not asked yet: those that are likely to stop come
/// first.
fn candidates(pid: i32, asked: &[i32]) -> Vec<i32> {
    let mut found: Vec<(bool, bool, i32)> = process::threads(pid)
        .into_iter()
        .filter(|tid| !asked.contains(tid))
        .filter_map(|tid| Some((Stat::read_thread(pid, tid)?, tid)))
        .filter(|(stat, _)| !stat.is_zombie() && !stat.is_kernels)
        .map(|(stat, tid)| (is_unlikely(stat.state), tid != pid, tid))
        .collect();
    found.sort_unstable();
    found.into_iter().map(|(.., tid)| tid).collect()
}

/// Uninterruptible, or stopped by another tracer.
fn is_unlikely(state: char) -> bool {
    matches!(state, 'D' | 't')
}

/// Why none of these threads has stopped, for a person.
fn causes(pid: i32, tids: &[i32]) -> String {
    let told: Vec<String> = tids.iter().take(MOST_TOLD).map(|tid| cause(pid, *tid)).collect();
    let more = tids.len().saturating_sub(MOST_TOLD);
    let rest = if more > 0 { format!("; and {more} more") } else { String::new() };
    format!("{}{rest}", told.join("; "))
}

fn cause(pid: i32, tid: i32) -> String {
    let of = |file| std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/{file}")).unwrap_or_default();
    let state = Stat::read_thread(pid, tid).map_or('?', |stat| stat.state);
    if state != 'D' {
        return format!("thread {tid} did not stop (state {state})");
    }
    if of("wchan").contains("refrigerator") || is_frozen(pid) {
        return format!("thread {tid} is frozen with its control group");
    }
    match of("syscall").split_ascii_whitespace().next().and_then(|n| n.parse().ok()) {
        Some(libc::SYS_vfork | libc::SYS_clone | libc::SYS_clone3) => {
            format!("thread {tid} waits until its vfork child calls exec or ends")
        }
        Some(number) => format!("thread {tid} is inside uninterruptible system call {number}"),
        None => format!("thread {tid} waits inside the kernel and can't be interrupted"),
    }
}

/// Whether its group in the version 1 freezer is frozen.
fn is_frozen(pid: i32) -> bool {
    let groups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    let group = groups.lines().find_map(|line| line.split_once(":freezer:"));
    group.is_some_and(|(_, path)| {
        let state = std::fs::read_to_string(format!("/sys/fs/cgroup/freezer{path}/freezer.state"));
        state.is_ok_and(|state| state.trim() == "FROZEN")
    })
}
