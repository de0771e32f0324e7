//! annexd's end of a stub: what it is told to do, and how long it is waited for.

use super::gate::{self, Gate};
use super::layout::{Call, Comm, HUGE, MAX_MOVES, STAGING, STAGING_PART, UNMADE, VERSION};
use crate::inject::tracee::TraceError;
use crate::kernel::uffd::{
    MOVE_DONTWAKE, MOVE_SOURCE_HOLES, MoveArg, RegisterArg, UFFDIO_MOVE, UFFDIO_REGISTER, UFFDIO_UNREGISTER,
};
use crate::kernel::{Mark, Mm, process};
use crate::page::PageIdx;
use crate::space::StubTraces;
use annex_host::failpoint::failpoint;
use annex_shared::page::PAGE_SIZE;
use nix::errno::Errno;
use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::unistd::Pid;
use std::io::{self, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

/// Pages in it from which on it is emptied after a batch: a quarter of a megabyte beyond the
/// program's limit, and 50 us in which no fault of the program's CPU is served.
const MOST_HELD: u64 = 64;
/// Calls that empty it.
const RELEASE: usize = 4;
/// Attempts to empty it, should the program lock its memory again and again.
const RELEASES: u32 = 8;
/// How long a batch that is made in chunks may take before its evictor sees to it.
const CHUNKS: Duration = Duration::from_micros(300);
/// Between two looks whether a stub that does not answer has ended.
const LOOK_AT_ITS_END: Duration = Duration::from_millis(5);
/// The same for a stub that takes long: its program may be frozen.
const LONGEST_LOOK: Duration = Duration::from_millis(10);
/// Clock ticks of CPU (3 s) after which a MOVE, which takes milliseconds, will not come to an end
/// any more.
const ENDLESS: u64 = 300;

/// Why there is no stub.
#[derive(Debug, thiserror::Error)]
pub enum StubError {
    #[error(transparent)]
    Trace(#[from] TraceError),
    #[error("failed to {what}: {source}")]
    System { what: &'static str, source: io::Error },
    /// As the tracing process said it, and whether it is for something that the program did.
    #[error("{why}")]
    Apart { why: String, is_the_programs: bool },
    #[error("the stub does not answer")]
    Silent,
}

pub(super) fn system(what: &'static str) -> impl Fn(io::Error) -> StubError {
    move |source| StubError::System { what, source }
}

/// Why a doorbell brought nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallError {
    /// The stub, or the whole address space, is gone.
    Dead,
    /// No answer in time: the app is frozen. The calls may still happen.
    NoAnswer,
}

/// What comes of hurrying a stub whose moves are rung for in chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hurry {
    /// There is nothing left to be made.
    Finished,
    /// It will answer.
    Rung,
    /// It is still at the last chunk.
    AtAChunk,
}

/// What is known of a stub that takes long.
struct Overdue {
    began: Instant,
    /// Since then, at the last look.
    seconds: u64,
    /// Of its CPU time, at the first.
    ticks: Option<u64>,
}

impl Overdue {
    fn watch() -> Overdue {
        Overdue { began: Instant::now(), seconds: 0, ticks: None }
    }
}

#[derive(Debug)]
pub struct Stub {
    /// As annexd sees it.
    pub(super) pid: i32,
    /// As the app's PID namespace sees it.
    pub(super) pid_there: i32,
    pub(super) pidfd: OwnedFd,
    pub(super) gate: Gate,
    /// Of its shared page.
    pub(super) inode: u64,
    /// Descriptor numbers in the stub's table: shared page, userfaultfd.
    pub(super) fds_there: [i32; 2],
    pub(super) code_at: u64,
    pub(super) comm_at: u64,
    pub(super) staging_map: (u64, u64),
    pub(super) staging: u64,
    /// Pages from the start of staging that may have something in them, and how many of them have
    /// at most.
    pub(super) used: u64,
    pub(super) held: u64,
    /// Staging is being emptied.
    pub(super) releasing: bool,
    /// How often in a row that has failed.
    pub(super) failed_releases: u32,
}

// SAFETY: the mapping is shared memory addressed through atomics and volatile accesses; nothing is
// tied to a thread.
unsafe impl Send for Stub {}

impl Stub {
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Its PID in the app's own namespace.
    pub fn pid_there(&self) -> i32 {
        self.pid_there
    }

    /// Where moved pages go.
    pub fn staging(&self) -> u64 {
        self.staging
    }

    pub fn is_alive(&self) -> bool {
        !process::has_ended(self.pidfd.as_fd())
    }

    pub fn pidfd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }

    /// What tells its address space from all others.
    pub fn mark(&self) -> Mark {
        Mark { at: self.comm_at, inode: self.inode }
    }

    /// Something that did not come by a MOVE is in staging: all of it is to be emptied before
    /// anything moves there.
    pub fn is_soiled(&mut self) {
        self.used = STAGING / PAGE_SIZE as u64;
    }

    /// What a successor of this annexd finds it by.
    pub fn traces(&self) -> StubTraces {
        StubTraces {
            pid: self.pid,
            pid_there: self.pid_there,
            staging: (self.staging, STAGING),
            code_at: self.code_at,
            comm_at: self.comm_at,
            staging_map_at: self.staging_map.0,
            fds: self.fds_there,
            inode: self.inode,
            version: VERSION,
        }
    }

    /// Everything the stub has mapped in the app, never to be paged.
    pub fn mappings(&self) -> [(u64, u64); 3] {
        [(self.code_at, 4096), (self.comm_at, size_of::<Comm>() as u64), self.staging_map]
    }

    fn call_slot(&self, i: usize) -> *mut Call {
        assert!(i < MAX_MOVES);
        // SAFETY: in bounds of the mapping.
        unsafe { (&raw mut (*self.gate.comm.as_mut_ptr().cast::<Comm>()).calls[i]).cast() }
    }

    fn move_slot(&self, i: usize) -> *mut MoveArg {
        assert!(i < MAX_MOVES);
        // SAFETY: in bounds of the mapping.
        unsafe { &raw mut (*self.gate.comm.as_mut_ptr().cast::<Comm>()).moves[i] }
    }

    /// Where the stub has what is there in the shared page.
    fn there(&self, slot: *mut MoveArg) -> u64 {
        self.comm_at + (slot.addr() - self.gate.comm.as_ptr().addr()) as u64
    }

    /// 8 bytes in the program's memory for what its threads are asked.
    pub fn scratch_at(&self) -> u64 {
        self.comm_at + std::mem::offset_of!(Comm, answer) as u64
    }

    fn prepare(&self, i: usize, number: i64, args: [u64; 6]) {
        // SAFETY: the slot is in bounds, and the stub does not look at it before the doorbell.
        unsafe { self.call_slot(i).write_volatile(Call { number, args, result: UNMADE }) };
    }

    fn ring(&mut self, calls: usize) {
        self.gate.prepare_ring(0, calls, true);
        self.gate.ring();
    }

    /// Waits for the calls that were rung for, if any.
    pub fn wait(&mut self, limit: Duration) -> Result<(), CallError> {
        let deadline = Instant::now() + limit;
        self.await_idle(deadline)?;
        if self.releasing {
            self.see_to_release(deadline)?;
        }
        fence(Ordering::SeqCst);
        Ok(())
    }

    fn await_idle(&self, deadline: Instant) -> Result<(), CallError> {
        while !self.gate.is_idle() {
            let left = deadline.saturating_duration_since(Instant::now());
            self.gate.await_end(left.min(LOOK_AT_ITS_END));
            if self.gate.is_idle() {
                break;
            }
            if !self.is_alive() {
                return Err(CallError::Dead);
            }
            if left.is_zero() {
                return Err(CallError::NoAnswer);
            }
        }
        Ok(())
    }

    /// Whether the stub may go on.
    pub fn gate(&self) -> Gate {
        self.gate.clone()
    }

    /// The next empty part of staging, in pages from its start, for so many that hold so many at
    /// most: no more than [`STAGING_PART`]. It is used from here on.
    pub fn take_part(&mut self, covered: u64, pages: usize) -> u64 {
        // A huge page is moved whole to where one can be only.
        let huge = HUGE / PAGE_SIZE as u64;
        let at = if covered >= huge { self.used.next_multiple_of(huge) } else { self.used };
        (self.used, self.held) = (at + covered, self.held + pages as u64);
        assert!(self.used * PAGE_SIZE as u64 <= STAGING);
        at
    }

    /// Whether staging is to be emptied before anything else comes there.
    pub fn is_used_up(&self) -> bool {
        self.held >= MOST_HELD || self.used > STAGING_PART
    }

    /// Makes ready to move each `(source, length)` into staging, one after the other from page `at`
    /// on; holes in a source stay holes. Nothing moves before [`Stub::make_moves`]; from here on
    /// the gate is in use.
    pub fn prepare_moves(&mut self, ranges: &[(u64, u64)], at: u64) {
        let mut dst = self.staging + at * PAGE_SIZE as u64;
        for (i, (src, len)) in ranges.iter().enumerate() {
            let arg = MoveArg { dst, src: *src, len: *len, mode: MOVE_DONTWAKE | MOVE_SOURCE_HOLES, moved: 0 };
            // SAFETY: the slot is in bounds, and the stub does not look at it before the doorbell.
            unsafe { self.move_slot(i).write_volatile(arg) };
            let there = self.there(self.move_slot(i));
            self.prepare(i, libc::SYS_ioctl, [self.fds_there[1] as u64, UFFDIO_MOVE, there, 0, 0, 0]);
            dst += len;
        }
        self.gate.reset(ranges.len() as u32);
    }

    /// Has the first `count` moves made that were prepared, and waits until they are, or are given
    /// up: the gate tells which were made, and what stopped them. Where something did, only staging
    /// itself tells how much of a range arrived. The kernel's count does not: Linux 6.18's
    /// `move_pages` goes on after an inner EAGAIN (the app touched the page just then) with the old
    /// error, so that it moves the page, or a run of them, without counting it, tries again and
    /// answers EEXIST.
    pub fn make_moves(&mut self, count: usize) -> Result<(), CallError> {
        self.ring(count);
        failpoint("moves-rung");
        self.await_moves()
    }

    /// Waits until the moves that were prepared are made, or given up. Others ring for them, and
    /// `hurry` is asked to if that takes long, less and less often: it needs the space's lock.
    pub fn await_chunks(&mut self, mut hurry: impl FnMut() -> Hurry) -> Result<(), CallError> {
        let (mut watch, mut patience) = (Overdue::watch(), CHUNKS);
        while !self.gate.is_finished() {
            if !self.is_alive() {
                return Err(CallError::Dead);
            }
            let waited = watch.began.elapsed();
            std::thread::sleep((waited / 8).clamp(gate::LOOK, LONGEST_LOOK));
            if waited > patience {
                patience = waited * 2;
                match hurry() {
                    Hurry::Finished => break,
                    Hurry::Rung => return self.await_moves(),
                    Hurry::AtAChunk => {}
                }
            }
            self.look_whether_overdue(&mut watch);
        }
        fence(Ordering::SeqCst);
        Ok(())
    }

    fn await_moves(&mut self) -> Result<(), CallError> {
        // While it is not known what moved, there is no giving up, except with the app.
        let mut watch = Overdue::watch();
        loop {
            match self.wait(Duration::from_secs(1)) {
                Err(CallError::NoAnswer) => self.look_whether_overdue(&mut watch),
                answer => return answer,
            }
        }
    }

    /// Ends a stub that is in an endless call; to be asked as long as it does not come to an end
    /// with what it was rung for.
    fn look_whether_overdue(&self, watch: &mut Overdue) {
        let seconds = watch.began.elapsed().as_secs();
        if seconds == watch.seconds {
            return;
        }
        watch.seconds = seconds;
        if seconds % 10 == 5 {
            self.say_that_it_is_overdue(seconds);
        }
        let ticks = process::Stat::read(self.pid).map_or(0, |stat| stat.ticks);
        if ticks > *watch.ticks.get_or_insert(ticks) + ENDLESS {
            tracing::warn!(stub = self.pid, "the kernel does not come to an end with a MOVE: ending the stub");
            self.kill();
        }
    }

    fn say_that_it_is_overdue(&self, seconds: u64) {
        tracing::warn!(
            "the stub {} has not answered for {seconds} s, and its program's faults wait; is the program frozen? It is in {}",
            self.pid,
            process::where_in_kernel(self.pid)
        );
    }

    /// Makes ready to drop what lies in staging. Whoever rings the bell need not wait: the next
    /// [`Stub::wait`] sees to the end of it. Staging is unregistered meanwhile: else the stub would
    /// have to wait until its REMOVE event is read, and nobody could install a page as long. And it
    /// is unlocked: a program that locks its memory (mlockall) locks staging too, which is not
    /// emptied then.
    pub fn prepare_release(&mut self) -> Gate {
        let slot = self.move_slot(0);
        // SAFETY: the slot is in bounds and large enough, and the stub does not look at it before
        // the doorbell.
        unsafe { slot.cast::<RegisterArg>().write_volatile(RegisterArg::missing(self.staging, STAGING)) };
        let ioctl = |request| (libc::SYS_ioctl, [self.fds_there[1] as u64, request, self.there(slot), 0, 0, 0]);
        let used = self.used * PAGE_SIZE as u64;
        let drop = (libc::SYS_madvise, [self.staging, used, libc::MADV_DONTNEED as u64, 0, 0, 0]);
        let unlock = (libc::SYS_munlock, [self.staging, STAGING, 0, 0, 0, 0]);
        let calls = [ioctl(UFFDIO_UNREGISTER), unlock, drop, ioctl(UFFDIO_REGISTER)];
        for (i, (number, args)) in calls.into_iter().enumerate() {
            self.prepare(i, number, args);
        }
        self.gate.reset(RELEASE as u32);
        self.gate.prepare_ring(0, RELEASE, false);
        self.releasing = true;
        (self.used, self.held) = (0, 0);
        self.gate.clone()
    }

    /// Staging is empty, if it was to be emptied.
    fn see_to_release(&mut self, deadline: Instant) -> Result<(), CallError> {
        self.releasing = false;
        let answers: [_; RELEASE] = std::array::from_fn(|nth| self.gate.answer(nth));
        // That it was unregistered only saves time, and it is locked seldom.
        if answers[2..] == [Some(0); 2] {
            self.failed_releases = 0;
            return Ok(());
        }
        // What is still in there would be taken for the next batch, and nothing moves to where
        // nothing is registered.
        self.failed_releases += 1;
        if self.failed_releases < RELEASES {
            self.is_soiled();
            self.prepare_release().ring();
            self.await_idle(deadline)?;
            return self.see_to_release(deadline);
        }
        tracing::warn!(stub = self.pid, "staging could not be emptied ({answers:?}): the stub is replaced");
        self.kill();
        Err(CallError::Dead)
    }

    /// Unmaps what another stub of this address space has left. False: some of it is still there.
    pub fn unmap(&mut self, mappings: &[(u64, u64)], limit: Duration) -> bool {
        if self.wait(limit).is_err() {
            return false;
        }
        for (i, (at, len)) in mappings.iter().enumerate() {
            self.prepare(i, libc::SYS_munmap, [*at, *len, 0, 0, 0, 0]);
        }
        self.gate.reset(mappings.len() as u32);
        self.ring(mappings.len());
        self.wait(limit).is_ok() && (0..mappings.len()).all(|nth| self.gate.answer(nth) == Some(0))
    }

    /// Has these pages become the program's own, which a fork left shared: it populates them for
    /// writing, which changes no byte.
    ///
    /// A pinning read gives the program copies too, but ones that the kernel takes for clean.
    /// Should a child that shares such a copy after another fork give it away (MADV_FREE), and end,
    /// the kernel may drop it (MADV_PAGEOUT, memory pressure), and the parent finds zeros: seen on
    /// Linux 6.18.
    pub fn populate(&mut self, pages: &[PageIdx], limit: Duration) -> Result<(), CallError> {
        self.wait(limit)?;
        let runs: Vec<&[PageIdx]> = pages.chunk_by(|page, next| page.plus(1) == *next).collect();
        for runs in runs.chunks(MAX_MOVES) {
            for (nth, run) in runs.iter().enumerate() {
                let len = (run.len() * PAGE_SIZE) as u64;
                let args = [run[0].addr(), len, libc::MADV_POPULATE_WRITE as u64, 0, 0, 0];
                self.prepare(nth, libc::SYS_madvise, args);
            }
            self.gate.reset(runs.len() as u32);
            self.ring(runs.len());
            self.wait(limit)?;
        }
        Ok(())
    }

    /// One call that does nothing, to see whether the stub answers.
    pub fn ping(&mut self, limit: Duration) -> Result<(), CallError> {
        self.wait(limit)?;
        self.gate.reset(0);
        self.ring(0);
        self.wait(limit)
    }

    /// Reads staged pages; `runs` are (offset in staging, bytes), in the order of `into`. Through
    /// the stub, which is fast, or through what is open of its address space if it has been killed:
    /// its PID may be somebody else's then.
    pub fn read_staging(&self, mm: &Mm, runs: &[(u64, u64)], into: &mut [u8]) -> io::Result<()> {
        if self.read_through(self.pid, runs, into).is_ok() && self.is_alive() {
            return Ok(());
        }
        let mut into = into;
        for (offset, len) in runs {
            let (run, rest) = into.split_at_mut(*len as usize);
            mm.read(self.staging + offset, run)?;
            into = rest;
        }
        Ok(())
    }

    fn read_through(&self, pid: i32, runs: &[(u64, u64)], into: &mut [u8]) -> io::Result<()> {
        // The kernel takes 1024 pieces in one call.
        let mut at = 0;
        for runs in runs.chunks(1024) {
            let len: u64 = runs.iter().map(|(_, len)| len).sum();
            let remote: Vec<RemoteIoVec> = runs
                .iter()
                .map(|(offset, len)| RemoteIoVec { base: (self.staging + offset) as usize, len: *len as usize })
                .collect();
            let local = &mut into[at..at + len as usize];
            let read = process_vm_readv(Pid::from_raw(pid), &mut [IoSliceMut::new(local)], &remote)?;
            if read as u64 != len {
                return Err(Errno::EFAULT.into());
            }
            at += len as usize;
        }
        Ok(())
    }

    /// True if the answer to a doorbell is still out.
    pub fn is_ringing(&self) -> bool {
        self.releasing || !self.gate.is_idle()
    }

    /// Kills the stub of an address space that is dead or abandoned (exec), so that its memory can
    /// go.
    pub fn kill(&self) {
        let _ = process::pidfd_kill(self.pidfd.as_fd(), libc::SIGKILL);
    }
}

#[cfg(test)]
pub(super) mod tests;
