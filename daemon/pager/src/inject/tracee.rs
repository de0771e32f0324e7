//! A thread of another process, stopped for a moment so that it makes system calls for us.
//!
//! `PTRACE_SEIZE` + `PTRACE_INTERRUPT` stop one thread without a signal the program could see. A
//! `syscall` instruction is found in the vdso, so no text is patched. Before the thread goes on it
//! passes through a `PTRACE_EVENT_STOP` again with its registers restored, so that the kernel's own
//! system-call restart logic applies to the call it was in.
//!
//! The program does not notice. What a stop or our calls would disturb is put right here:
//! [`interrupted`] calls are made again, a restartable sequence is aborted ([`rseq`]), syscall user
//! [`dispatch`] and single-stepping (the trap flag) are off meanwhile, and a stopped thread stays
//! stopped after it. [`choice`] finds a thread that can be borrowed.
//!
//! ptrace belongs to the *thread* that seized: a `Tracee` must not leave it (it is `!Send`), and if
//! that thread ends, the kernel lets the tracee go.

mod choice;
mod dispatch;
mod interrupted;
mod rseq;
#[cfg(test)]
mod tests;

pub use choice::{Beside, Borrowing, borrow};

use crate::kernel::process;
use dispatch::Dispatch;
use nix::errno::Errno;
use std::io;
use std::marker::PhantomData;
use std::time::{Duration, Instant};

const PTRACE_GETSIGMASK: libc::c_uint = 0x420a;
const PTRACE_SETSIGMASK: libc::c_uint = 0x420b;
const PTRACE_O_TRACESYSGOOD: usize = 1;
const PTRACE_O_SUSPEND_SECCOMP: usize = 1 << 21;
const PTRACE_O_EXITKILL: usize = 1 << 20;
const PTRACE_SETOPTIONS: libc::c_uint = 0x4200;
const PTRACE_EVENT_STOP: i32 = 128;
const SYSCALL_STOP: i32 = libc::SIGTRAP | 0x80;

/// The instruction.
const SYSCALL: [u8; 2] = [0x0f, 0x05];
/// In eflags: a trap after each instruction.
const TRAP_FLAG: u64 = 1 << 8;

/// How long a thread of ours may take to come to its next stop.
const STOP_DEADLINE: Duration = Duration::from_secs(5);

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

pub struct Tracee {
    tid: i32,
    syscall_at: u64,
    saved: libc::user_regs_struct,
    mask: u64,
    dispatch: Option<Dispatch>,
    not_send: PhantomData<*const ()>,
}

impl Tracee {
    /// Takes thread `tid` of process `pid`, which has stopped as it was asked to.
    ///
    /// The instruction was `looked_up` while the process ran, so that the stop is short.
    fn take(pid: i32, tid: i32, looked_up: Option<u64>) -> Result<Tracee, TraceError> {
        // If the process has called exec since, it is elsewhere.
        let is_there = |at: &u64| peek(tid, *at).is_ok_and(|word| word.to_le_bytes().starts_with(&SYSCALL));
        let syscall_at = looked_up.filter(is_there).or_else(|| find_syscall(tid));
        let mut tracee = Tracee::adopt(tid, syscall_at.unwrap_or(0))?;
        let regs = &mut tracee.saved;
        interrupted::restart(regs);
        regs.rip = rseq::abort_address(tid, regs.rip).unwrap_or(regs.rip);
        if syscall_at.is_none() {
            tracee.detach()?;
            return Err(TraceError::NoVdso { pid });
        }
        tracee.dispatch = Dispatch::suspend(tid)?;
        Ok(tracee)
    }

    /// Takes over a thread that is in a ptrace stop of ours already, and blocks its signals.
    fn adopt(tid: i32, syscall_at: u64) -> Result<Tracee, TraceError> {
        let mut mask = 0u64;
        ptrace(PTRACE_GETSIGMASK, tid, 8, &raw mut mask as usize).map_err(|_| TraceError::Died { tid })?;
        let all = u64::MAX;
        ptrace(PTRACE_SETSIGMASK, tid, 8, &raw const all as usize).map_err(|_| TraceError::Died { tid })?;
        let saved = registers(tid)?;
        Ok(Tracee { tid, syscall_at, saved, mask, dispatch: None, not_send: PhantomData })
    }

    /// The registers with which the thread makes a system call.
    fn registers_for(&self, number: i64, args: [u64; 6]) -> libc::user_regs_struct {
        let mut regs = self.saved;
        regs.rip = self.syscall_at;
        regs.rax = number as u64;
        regs.orig_rax = u64::MAX;
        regs.eflags &= !TRAP_FLAG;
        [regs.rdi, regs.rsi, regs.rdx, regs.r10, regs.r8, regs.r9] = args;
        regs
    }

    /// Makes the thread execute one system call; the raw result (negative errno on failure).
    pub fn syscall(&mut self, number: i64, args: [u64; 6]) -> Result<i64, TraceError> {
        self.set_registers(&self.registers_for(number, args))?;
        for _entry_then_exit in 0..2 {
            loop {
                ptrace(libc::PTRACE_SYSCALL, self.tid, 0, 0).map_err(|_| TraceError::Died { tid: self.tid })?;
                match libc::WSTOPSIG(wait(self.tid)?) {
                    SYSCALL_STOP => break,
                    // Of the instruction itself, for all others are blocked: it would come again
                    // and again.
                    signal @ (libc::SIGSEGV | libc::SIGBUS | libc::SIGILL) => {
                        return Err(TraceError::Astray { tid: self.tid, signal });
                    }
                    _ => {}
                }
            }
        }
        Ok(registers(self.tid)?.rax as i64)
    }

    /// [`Tracee::syscall`], with a failure turned into an error that names the call.
    pub fn call(&mut self, call: &'static str, number: i64, args: [u64; 6]) -> Result<u64, TraceError> {
        match self.syscall(number, args)? {
            e if (-4095..0).contains(&e) => {
                Err(TraceError::Call { pid: self.tid, call, source: io::Error::from_raw_os_error(-e as i32) })
            }
            value => Ok(value as u64),
        }
    }

    /// `clone(CLONE_VM)` in the thread: a new process in the same address space, stopped and traced
    /// by us from its birth. Returns it and the PID it has in the thread's own namespace. A thread
    /// `beside` that stops only now is none of the new process: it is let go.
    pub fn clone_process(&mut self, beside: &mut Beside) -> Result<(Tracee, i32), TraceError> {
        let flags = libc::CLONE_VM | libc::CLONE_FILES | libc::CLONE_PTRACE;
        let pid_there = self.call("clone", libc::SYS_clone, [flags as u64, 0, 0, 0, 0, 0])? as i32;
        let deadline = Instant::now() + STOP_DEADLINE;
        loop {
            match next_to_tell() {
                Some(pid) if pid == self.tid => return Err(TraceError::Died { tid: self.tid }),
                Some(pid) if beside.contains(pid) => beside.let_go(),
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
        accompany(self.tid, &mut Beside::default());
    }

    pub fn tid(&self) -> i32 {
        self.tid
    }

    /// Writes to the process's memory, read-only mappings included.
    pub fn poke(&self, addr: u64, bytes: &[u8]) -> Result<(), TraceError> {
        for (i, chunk) in bytes.chunks(8).enumerate() {
            let mut word = [0u8; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            let at = addr as usize + i * 8;
            ptrace(libc::PTRACE_POKEDATA, self.tid, at, usize::from_le_bytes(word))
                .map_err(|source| TraceError::Call { pid: self.tid, call: "poke", source: source.into() })?;
        }
        Ok(())
    }

    /// Lets the thread go on exactly where it was.
    pub fn release(self) -> Result<(), TraceError> {
        let died = |_| TraceError::Died { tid: self.tid };
        // A harmless getpid, so that the thread is in kernel mode when the interrupt reaches it: it
        // then stops before any instruction of the program's runs.
        self.set_registers(&self.registers_for(libc::SYS_getpid, [0; 6]))?;
        ptrace(libc::PTRACE_INTERRUPT, self.tid, 0, 0).map_err(died)?;
        ptrace(libc::PTRACE_CONT, self.tid, 0, 0).map_err(died)?;
        while wait(self.tid)? >> 16 != PTRACE_EVENT_STOP {
            ptrace(libc::PTRACE_CONT, self.tid, 0, 0).map_err(died)?;
        }
        self.detach()
    }

    /// Lets the thread go, which is in a `PTRACE_EVENT_STOP`.
    fn detach(self) -> Result<(), TraceError> {
        let died = |_| TraceError::Died { tid: self.tid };
        self.set_registers(&self.saved)?;
        if let Some(dispatch) = self.dispatch {
            dispatch.set(self.tid)?;
        }
        ptrace(PTRACE_SETSIGMASK, self.tid, 8, &raw const self.mask as usize).map_err(died)?;
        ptrace(libc::PTRACE_DETACH, self.tid, 0, 0).map_err(died)
    }

    /// Sends the thread to `entry` with `rbx = argument` and no stack. With `stay_traced` it runs
    /// on as our tracee (its seccomp filter stays suspended) and the caller must go on waiting for
    /// it.
    pub fn jump(self, entry: u64, argument: u64, stay_traced: bool) -> Result<(), TraceError> {
        let mut regs = self.saved;
        regs.rip = entry;
        regs.rbx = argument;
        regs.rsp = 0;
        regs.rax = 0;
        regs.orig_rax = u64::MAX;
        regs.eflags &= !TRAP_FLAG;
        self.set_registers(&regs)?;
        let request = if stay_traced { libc::PTRACE_CONT } else { libc::PTRACE_DETACH };
        ptrace(request, self.tid, 0, 0).map_err(|_| TraceError::Died { tid: self.tid })
    }

    fn set_registers(&self, regs: &libc::user_regs_struct) -> Result<(), TraceError> {
        ptrace(libc::PTRACE_SETREGS, self.tid, 0, std::ptr::from_ref(regs) as usize)
            .map_err(|_| TraceError::Died { tid: self.tid })
    }
}

/// A process that was made for us must never run on as a copy of the program: it ends when its
/// tracer does, until it is let go. Its options are those of the thread that has made it, else.
fn end_with_us(pid: i32, like: i32) {
    let seccomp = process::identity(like).is_ok_and(|identity| identity.seccomp);
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

/// Asks thread `tid`, which nobody traces, to stop.
fn interrupt_new(tid: i32, suspend_seccomp: bool) -> Result<(), TraceError> {
    let options = PTRACE_O_TRACESYSGOOD | if suspend_seccomp { PTRACE_O_SUSPEND_SECCOMP } else { 0 };
    let seize = |source: Errno| TraceError::Seize { tid, source: source.into() };
    ptrace(libc::PTRACE_SEIZE, tid, 0, options).map_err(seize)?;
    ptrace(libc::PTRACE_INTERRUPT, tid, 0, 0).map_err(seize)
}

/// Keeps a traced thread running until it ends: every stop is passed on. For a stub whose seccomp
/// filter is suspended. Threads that were asked to stop beside it are let go when they do.
pub fn accompany(tid: i32, beside: &mut Beside) {
    loop {
        let mut status = 0;
        let hang = if beside.is_empty() { 0 } else { libc::WNOHANG };
        // SAFETY: waitpid writes one int.
        let pid = unsafe { libc::waitpid(tid, &mut status, libc::__WALL | libc::__WNOTHREAD | hang) };
        if pid < 0 && Errno::last() == Errno::EINTR {
            continue;
        }
        if pid == 0 {
            beside.let_go();
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

fn ptrace(request: libc::c_uint, tid: i32, addr: usize, data: usize) -> Result<(), Errno> {
    // SAFETY: requests that write through `data` are only made here with a pointer to a live object
    // of the right size.
    Errno::result(unsafe { libc::ptrace(request, tid, addr, data) }).map(drop)
}

fn peek(tid: i32, addr: u64) -> Result<u64, Errno> {
    let mut word = 0u64;
    // The kernel's own call, unlike the C library's, writes the word through `data`.
    // SAFETY: a live object of the right size.
    Errno::result(unsafe { libc::syscall(libc::SYS_ptrace, libc::PTRACE_PEEKTEXT, tid, addr, &raw mut word) })?;
    Ok(word)
}

fn registers(tid: i32) -> Result<libc::user_regs_struct, TraceError> {
    // SAFETY: all-zero is a valid value of this plain C struct.
    let mut regs: libc::user_regs_struct = unsafe { std::mem::zeroed() };
    ptrace(libc::PTRACE_GETREGS, tid, 0, &raw mut regs as usize).map_err(|_| TraceError::Died { tid })?;
    Ok(regs)
}

/// The next stop of `tid`. A stop of a tracee is a matter of microseconds, so this yields before it
/// sleeps.
fn wait(tid: i32) -> Result<i32, TraceError> {
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
fn pause(waited: Duration) {
    if waited > Duration::from_micros(500) {
        std::thread::sleep(Duration::from_micros(50));
    } else {
        std::thread::yield_now();
    }
}

/// The address of a `syscall` instruction in the vdso of thread `tid`'s process.
fn find_syscall(tid: i32) -> Option<u64> {
    let maps = process::maps(tid).ok()?;
    let vdso = maps.iter().find(|m| m.name == "[vdso]")?;
    let mut code = vec![0u8; (vdso.end - vdso.start) as usize];
    process::read_memory(tid, vdso.start, &mut code).ok()?;
    let at = code.windows(2).position(|w| w == SYSCALL)?;
    Some(vdso.start + at as u64)
}
