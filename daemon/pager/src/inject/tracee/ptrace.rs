//! ptrace and what goes with it, as functions.

use crate::kernel::process;
use nix::errno::Errno;
use std::io;
use std::time::{Duration, Instant};

pub(super) const PTRACE_GETSIGMASK: libc::c_uint = 0x420a;
pub(super) const PTRACE_SETSIGMASK: libc::c_uint = 0x420b;
pub(super) const PTRACE_O_TRACESYSGOOD: usize = 1;
pub(super) const PTRACE_O_SUSPEND_SECCOMP: usize = 1 << 21;
pub(super) const PTRACE_O_EXITKILL: usize = 1 << 20;
pub(super) const PTRACE_SETOPTIONS: libc::c_uint = 0x4200;
pub(super) const PTRACE_EVENT_STOP: i32 = 128;
pub(super) const SYSCALL_STOP: i32 = libc::SIGTRAP | 0x80;

/// The instruction.
pub(super) const SYSCALL: [u8; 2] = [0x0f, 0x05];
/// In eflags: a trap after each instruction.
pub(super) const TRAP_FLAG: u64 = 1 << 8;

/// How long a thread of ours may take to come to its next stop.
pub(super) const STOP_DEADLINE: Duration = Duration::from_secs(5);

/// A thread could not be stopped or did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    #[error("failed to trace thread {tid}: {source}")]
    Seize { tid: i32, source: io::Error },
    #[error("thread {tid} did not stop within {} s (state {state})", STOP_DEADLINE.as_secs())]
    NoStop { tid: i32, state: char },
    #[error("no thread of process {pid} could be stopped within {} s: {causes}", STOP_DEADLINE.as_secs())]
    NoneStopped { pid: i32, causes: String },
    #[error("thread {tid} ended while it was being set up")]
    Died { tid: i32 },
    #[error("thread {tid} got signal {signal} where it was to make a system call for annex")]
    Astray { tid: i32, signal: i32 },
    #[error("process {pid} has no vdso to borrow a system call instruction from")]
    NoVdso { pid: i32 },
    #[error(
        "process {pid} has called unshare(CLONE_NEWPID), and the next process that it makes is the first of a new PID namespace: it must be its own"
    )]
    BeginsNamespace { pid: i32 },
    #[error("the injected call {call} failed in process {pid}: {source}")]
    Call { pid: i32, call: &'static str, source: io::Error },
}

impl TraceError {
    /// What the kernel said to an injected call.
    pub fn errno(&self) -> Option<i32> {
        match self {
            TraceError::Call { source, .. } => source.raw_os_error(),
            _ => None,
        }
    }
}

/// Asks thread `tid`, which nobody traces, to stop. Threads have seccomp filters each for itself.
pub(super) fn interrupt_new(tid: i32) -> Result<(), TraceError> {
    let suspend_seccomp = process::has_seccomp(tid);
    let options = PTRACE_O_TRACESYSGOOD | if suspend_seccomp { PTRACE_O_SUSPEND_SECCOMP } else { 0 };
    let seize = |source: Errno| TraceError::Seize { tid, source: source.into() };
    ptrace(libc::PTRACE_SEIZE, tid, 0, options).map_err(seize)?;
    ptrace(libc::PTRACE_INTERRUPT, tid, 0, 0).map_err(seize)
}

pub(super) fn ptrace(request: libc::c_uint, tid: i32, addr: usize, data: usize) -> Result<(), Errno> {
    // SAFETY: requests that write through `data` are only made here with a pointer to a live object
    // of the right size.
    Errno::result(unsafe { libc::ptrace(request, tid, addr, data) }).map(drop)
}

pub(super) fn peek(tid: i32, addr: u64) -> Result<u64, Errno> {
    let mut word = 0u64;
    // The kernel's own call, unlike the C library's, writes the word through `data`.
    // SAFETY: a live object of the right size.
    Errno::result(unsafe { libc::syscall(libc::SYS_ptrace, libc::PTRACE_PEEKTEXT, tid, addr, &raw mut word) })?;
    Ok(word)
}

pub(super) fn registers(tid: i32) -> Result<libc::user_regs_struct, TraceError> {
    // SAFETY: all-zero is a valid value of this plain C struct.
    let mut regs: libc::user_regs_struct = unsafe { std::mem::zeroed() };
    ptrace(libc::PTRACE_GETREGS, tid, 0, &raw mut regs as usize).map_err(|_| TraceError::Died { tid })?;
    Ok(regs)
}

/// The next stop of `tid`. A stop of a tracee is a matter of microseconds, so this yields before it
/// sleeps.
pub(super) fn wait(tid: i32) -> Result<i32, TraceError> {
    let start = Instant::now();
    loop {
        let mut status = 0;
        // SAFETY: waitpid writes one int.
        let pid = unsafe { libc::waitpid(tid, &mut status, libc::__WALL | libc::__WNOTHREAD | libc::WNOHANG) };
        match pid {
            0 => {}
            p if p == tid && libc::WIFSTOPPED(status) => return Ok(status),
            p if p < 0 && Errno::last() == Errno::EINTR => continue,
            _ => return Err(TraceError::Died { tid }),
        }
        let waited = start.elapsed();
        if waited > STOP_DEADLINE {
            let state = process::Stat::read(tid).map_or('?', |s| s.state);
            return Err(TraceError::NoStop { tid, state });
        }
        pause(waited);
    }
}

/// Between two looks at a thread that was waited for so long.
pub(super) fn pause(waited: Duration) {
    if waited > Duration::from_micros(500) {
        std::thread::sleep(Duration::from_micros(50));
    } else {
        std::thread::yield_now();
    }
}

/// The address of a `syscall` instruction in the vdso of thread `tid`'s process.
pub(super) fn find_syscall(tid: i32) -> Option<u64> {
    let maps = process::maps(tid).ok()?;
    let vdso = maps.iter().find(|m| m.name == "[vdso]")?;
    let mut code = vec![0u8; (vdso.end - vdso.start) as usize];
    process::read_memory(tid, vdso.start, &mut code).ok()?;
    let at = code.windows(2).position(|w| w == SYSCALL)?;
    Some(vdso.start + at as u64)
}
