//! A thread that is stopped, and makes system calls for us.

use super::dispatch::Dispatch;
use super::ptrace::{
    PTRACE_EVENT_STOP, PTRACE_GETSIGMASK, PTRACE_SETSIGMASK, SYSCALL, SYSCALL_STOP, TRAP_FLAG, TraceError,
    find_syscall, peek, ptrace, registers, wait,
};
use super::{interrupted, rseq};
use std::io;
use std::marker::PhantomData;

pub struct Tracee {
    pub(super) tid: i32,
    pub(super) syscall_at: u64,
    saved: libc::user_regs_struct,
    mask: u64,
    dispatch: Option<Dispatch>,
    not_send: PhantomData<*const ()>,
}

impl Tracee {
    /// Takes thread `tid` of process `pid`, which has stopped as it was asked to.
    ///
    /// The instruction was `looked_up` while the process ran, so that the stop is short.
    pub(super) fn take(pid: i32, tid: i32, looked_up: Option<u64>) -> Result<Tracee, TraceError> {
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
    pub(super) fn adopt(tid: i32, syscall_at: u64) -> Result<Tracee, TraceError> {
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
                match libc::WSTOPSIG(self.next_stop(libc::PTRACE_SYSCALL)?) {
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
        while self.next_stop(libc::PTRACE_CONT)? >> 16 != PTRACE_EVENT_STOP {}
        self.detach()
    }

    /// Lets the thread go on by this request until it stops. SIGSTOP, which can't be blocked, is
    /// passed on: it stops the process's other threads, and this one when it is let go.
    fn next_stop(&self, request: libc::c_uint) -> Result<i32, TraceError> {
        let mut signal = 0;
        loop {
            ptrace(request, self.tid, 0, signal as usize).map_err(|_| TraceError::Died { tid: self.tid })?;
            let status = wait(self.tid)?;
            if status >> 16 != 0 || libc::WSTOPSIG(status) != libc::SIGSTOP {
                return Ok(status);
            }
            signal = libc::SIGSTOP;
        }
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
