//! Stubs that were there before this annexd, or that another process has put there: found by their
//! traces, adopted or ended.

use super::gate::Gate;
use super::handle::{Stub, StubError, system};
use super::layout::{Comm, HUGE, NAME, STAGING, VERSION};
use crate::kernel::uffd::Uffd;
use crate::kernel::{Mark, process};
use crate::space::StubTraces;
use annex_shared::memfd;
use annex_shared::page::PAGE_SIZE;
use memmap2::MmapRaw;
use nix::poll::{PollFd, PollFlags};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::Duration;

/// Ends a stub that lives in this address space, whoever has put it there.
pub fn end(pid: i32, mark: Mark) {
    let Ok(pidfd) = process::pidfd_open(pid) else { return };
    // Asked once its PID can't become somebody else's.
    if process::Stat::read(pid).is_some_and(|stat| stat.comm == NAME) && mark.is_in(pid) == Some(true) {
        let _ = process::pidfd_kill(pidfd.as_fd(), libc::SIGKILL);
    }
}

impl Stub {
    /// The stub that the annexd before had around this userfaultfd, if it lives and does as ours
    /// do. What it has open tells which it is: the process that it was put into may have ended
    /// since.
    pub fn adopt(traces: &StubTraces, uffd: &Uffd) -> Option<Stub> {
        let stub = Stub::found(traces)?;
        let same = process::same_file((traces.pid, traces.fds[1]), (std::process::id() as i32, uffd.as_raw_fd()));
        // Asked after it was opened: a PID that is somebody else's by now has no such descriptor.
        (same == Some(true) && stub.is_alive()).then_some(stub)
    }

    fn found(traces: &StubTraces) -> Option<Stub> {
        let named = process::Stat::read(traces.pid).is_some_and(|stat| stat.comm == NAME && !stat.is_zombie());
        if !named || traces.version != VERSION {
            return None;
        }
        let pidfd = process::pidfd_open(traces.pid).ok()?;
        let comm = process::pidfd_getfd(&pidfd, traces.fds[0])
            .ok()
            .filter(|fd| matches!(memfd::fixed_len(fd), Ok(Some(_))))?;
        let inode = nix::sys::stat::fstat(&comm).ok()?.st_ino;
        if inode != traces.inode {
            return None;
        }
        let comm = MmapRaw::map_raw(&comm).ok().filter(|map| map.len() == size_of::<Comm>())?;
        let stub = Stub {
            pid: traces.pid,
            pid_there: traces.pid_there,
            pidfd,
            gate: Gate::new(comm),
            inode,
            fds_there: traces.fds,
            code_at: traces.code_at,
            comm_at: traces.comm_at,
            staging_map: (traces.staging_map_at, STAGING + HUGE),
            staging: traces.staging.0,
            // It may be anything.
            used: STAGING / PAGE_SIZE as u64,
            held: 0,
            releasing: false,
            failed_releases: 0,
        };
        // Another annexd may have said what is to be done, and have ended before it rang: it is
        // done now.
        stub.gate.ring();
        Some(stub)
    }

    /// True if process `app` does not live where it was put: it has called exec since.
    pub fn is_elsewhere(traces: &StubTraces, app: i32) -> bool {
        traces.mark().was_left_by(app)
    }

    /// Waits until it has done all that another annexd rang for. False: it has not, and can't be
    /// relied on.
    pub fn quiesce(&mut self, limit: Duration) -> bool {
        self.wait(limit).is_ok()
    }

    /// Kills it and waits for its end, so that nothing it was rung for happens any more.
    pub fn end(traces: &StubTraces) {
        if process::Stat::read(traces.pid).is_none_or(|stat| stat.comm != NAME) {
            return;
        }
        let Ok(pidfd) = process::pidfd_open(traces.pid) else { return };
        let _ = process::pidfd_kill(pidfd.as_fd(), libc::SIGKILL);
        let mut fds = [PollFd::new(pidfd.as_fd(), PollFlags::POLLIN)];
        let _ = nix::poll::poll(&mut fds, 2000u16);
    }

    /// The stub that was just put there, and the context it made if it did.
    pub fn injected(traces: &StubTraces, app: i32) -> Result<(Stub, OwnedFd), StubError> {
        let stub = Stub::found(traces).filter(|stub| stub.mark().task_of(app).is_some());
        let mut stub = stub.ok_or(StubError::Silent)?;
        if !stub.quiesce(Duration::from_secs(2)) {
            return Err(StubError::Silent);
        }
        let uffd = process::pidfd_getfd(&stub.pidfd, traces.fds[1]).map_err(system("fetch the userfaultfd"))?;
        Ok((stub, uffd))
    }
}
