//! Threads and processes other than the one that was borrowed: those that were asked to stop and
//! are not needed, and those that are made by it.

use super::ptrace::{
    PTRACE_EVENT_STOP, PTRACE_O_EXITKILL, PTRACE_O_SUSPEND_SECCOMP, PTRACE_O_TRACESYSGOOD, PTRACE_SETOPTIONS,
    STOP_DEADLINE, SYSCALL_STOP, TraceError, find_syscall, ptrace, wait,
};
use super::thread::Tracee;
use crate::kernel::process;
use nix::errno::Errno;
use std::time::{Duration, Instant};

/// Threads that were asked to stop and are not needed any more.
#[derive(Debug, Default)]
pub struct AskedThreads {
    pub(super) pid: i32,
    pub(super) tids: Vec<i32>,
}

impl AskedThreads {
    /// Lets those of them go that have stopped.
    pub fn let_go(&mut self) {
        let pid = self.pid;
        self.tids.retain(|tid| match look(*tid) {
            Seen::Running => true,
            Seen::Ended => false,
            Seen::Stopped => {
                if let Ok(tracee) = Tracee::take(pid, *tid, find_syscall(*tid)) {
                    let _ = tracee.release();
                }
                false
            }
        });
    }

    pub fn contains(&self, tid: i32) -> bool {
        self.tids.contains(&tid)
    }

    pub fn is_empty(&self) -> bool {
        self.tids.is_empty()
    }
}

pub(super) enum Seen {
    Running,
    Stopped,
    Ended,
}

/// Whether a thread that was asked to stop has.
pub(super) fn look(tid: i32) -> Seen {
    loop {
        let mut status = 0;
        let flags = libc::__WALL | libc::__WNOTHREAD | libc::WNOHANG;
        // SAFETY: waitpid writes one int.
        match unsafe { libc::waitpid(tid, &mut status, flags) } {
            0 => return Seen::Running,
            -1 if Errno::last() == Errno::EINTR => {}
            p if p != tid || !libc::WIFSTOPPED(status) => return Seen::Ended,
            _ if status >> 16 == PTRACE_EVENT_STOP => return Seen::Stopped,
            // A signal came first: deliver it, the stop follows.
            _ => {
                if ptrace(libc::PTRACE_CONT, tid, 0, libc::WSTOPSIG(status) as usize).is_err() {
                    return Seen::Ended;
                }
            }
        }
    }
}

impl Tracee {
    /// `clone(CLONE_VM)` in the thread: a new process in the same address space, stopped and traced
    /// by us from its birth. Returns it and the PID it has in the thread's own namespace. A thread
    /// that was `asked` and stops only now is none of the new process: it is let go.
    pub fn clone_process(&mut self, asked: &mut AskedThreads) -> Result<(Tracee, i32), TraceError> {
        let flags = libc::CLONE_VM | libc::CLONE_FILES | libc::CLONE_PTRACE;
        let pid_there = self.call("clone", libc::SYS_clone, [flags as u64, 0, 0, 0, 0, 0])? as i32;
        let deadline = Instant::now() + STOP_DEADLINE;
        loop {
            match next_to_tell() {
                Some(pid) if pid == self.tid => return Err(TraceError::Died { tid: self.tid }),
                Some(pid) if asked.contains(pid) => asked.let_go(),
                Some(pid) => {
                    wait(pid)?;
                    end_with_us(pid, self.tid);
                    return Ok((Tracee::adopt(pid, self.syscall_at)?, pid_there));
                }
                None if Instant::now() > deadline => return Err(TraceError::Died { tid: self.tid }),
                None => std::thread::yield_now(),
            }
        }
    }

    /// Ends a process of ours, and sees it end. Whose child it is may collect it then.
    pub fn kill(self) {
        // SAFETY: our own tracee, so the PID can't have been recycled.
        unsafe { libc::kill(self.tid, libc::SIGKILL) };
        accompany(self.tid, &mut AskedThreads::default());
    }
}

/// A process that was made for us must never run on as a copy of the program: it ends when its
/// tracer does, until it is let go. Its options are those of the thread that has made it, else.
fn end_with_us(pid: i32, like: i32) {
    let seccomp = process::has_seccomp(like);
    let options = PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL | if seccomp { PTRACE_O_SUSPEND_SECCOMP } else { 0 };
    // Fails only for one that has ended.
    let _ = ptrace(PTRACE_SETOPTIONS, pid, 0, options);
}

/// A tracee of this thread that has something to tell, which it goes on to tell.
fn next_to_tell() -> Option<i32> {
    // SAFETY: all zeros is a valid value of this plain C struct, and the one that tells that nobody
    // has anything to say.
    let mut told: libc::siginfo_t = unsafe { std::mem::zeroed() };
    let flags = libc::WEXITED | libc::WSTOPPED | libc::WNOHANG | libc::WNOWAIT | libc::__WALL | libc::__WNOTHREAD;
    // SAFETY: waitid writes one siginfo_t. __WNOTHREAD keeps it to tracees of this thread.
    let asked = unsafe { libc::waitid(libc::P_ALL, 0, &mut told, flags) };
    // SAFETY: waitid fills the fields of SIGCHLD.
    (asked == 0).then(|| unsafe { told.si_pid() }).filter(|pid| *pid != 0)
}

/// Keeps a traced thread running until it ends: every stop is passed on. For a stub whose seccomp
/// filter is suspended. Threads that were asked to stop as well are let go when they do.
pub fn accompany(tid: i32, asked: &mut AskedThreads) {
    loop {
        let mut status = 0;
        let hang = if asked.is_empty() { 0 } else { libc::WNOHANG };
        // SAFETY: waitpid writes one int.
        let pid = unsafe { libc::waitpid(tid, &mut status, libc::__WALL | libc::__WNOTHREAD | hang) };
        if pid < 0 && Errno::last() == Errno::EINTR {
            continue;
        }
        if pid == 0 {
            asked.let_go();
            std::thread::sleep(Duration::from_millis(1));
            continue;
        }
        if pid != tid || !libc::WIFSTOPPED(status) {
            return;
        }
        let signal =
            if status >> 16 == 0 && libc::WSTOPSIG(status) != SYSCALL_STOP { libc::WSTOPSIG(status) } else { 0 };
        let _ = ptrace(libc::PTRACE_CONT, tid, 0, signal as usize);
    }
}
