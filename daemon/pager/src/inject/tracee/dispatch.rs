//! Syscall user dispatch (prctl(PR_SET_SYSCALL_USER_DISPATCH)).
//!
//! A thread that emulates its own system calls gets SIGSYS for those from outside of one range of
//! addresses. The calls that it makes for us come from the vdso: the dispatch is off meanwhile.

use super::ptrace::{TraceError, ptrace};

const PTRACE_SET_SYSCALL_USER_DISPATCH_CONFIG: libc::c_uint = 0x4210;
const PTRACE_GET_SYSCALL_USER_DISPATCH_CONFIG: libc::c_uint = 0x4211;
const OFF: u64 = 0;

/// struct ptrace_sud_config.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Dispatch {
    mode: u64,
    selector: u64,
    offset: u64,
    len: u64,
}

impl Dispatch {
    /// Switches the dispatch of a stopped thread off; what to put back, if there was one.
    pub fn suspend(tid: i32) -> Result<Option<Dispatch>, TraceError> {
        let mut found = Dispatch::default();
        let (size, at) = (size_of::<Dispatch>(), &raw mut found as usize);
        // Kernels before 6.4 don't know the request; there such a program can't be attached
        // unharmed.
        let asked = ptrace(PTRACE_GET_SYSCALL_USER_DISPATCH_CONFIG, tid, size, at);
        if asked.is_err() || found.mode == OFF {
            return Ok(None);
        }
        Dispatch::default().set(tid)?;
        Ok(Some(found))
    }

    pub fn set(self, tid: i32) -> Result<(), TraceError> {
        let (size, at) = (size_of::<Dispatch>(), &raw const self as usize);
        ptrace(PTRACE_SET_SYSCALL_USER_DISPATCH_CONFIG, tid, size, at).map_err(|_| TraceError::Died { tid })
    }
}
