//! The stub: a small process in the app's address space that makes the few system calls which only work from there.
//!
//! It is cloned by the app's own (briefly stopped) thread with `CLONE_VM`, gets an empty descriptor table of its own, and then runs a
//! loop of four dozen instructions ([`code`]): wait for the doorbell, make N raw system calls from a shared page, each if the [`gate`] is open, ring back. It has no
//! stack, no signal handlers, every signal blocked, and its code page is never writable: the code is poked in through
//! ptrace. What lies in the app's address space for it, all of it invisible to fork children (`MADV_DONTFORK`):
//!
//! | mapping | protection | use |
//! | --- | --- | --- |
//! | code, 4 KiB | read + execute, private | the loop below |
//! | comm, 28 KiB | read + write, shared with annexd | doorbell words, calls, MOVE arguments ([`Comm`]) |
//! | staging, [`STAGING`] | read + write, private | where MOVE puts evicted pages until they are written |

mod code;
mod found;
mod gate;

use code::{Call, Comm};
pub use gate::Gate;

use super::mortal;
use super::moves::Hurry;
use super::process;
use super::table::StubTraces;
use super::tracee::{self, TraceError, Tracee};
use super::turns;
use super::uffd::{MOVE_DONTWAKE, MOVE_SOURCE_HOLES, MoveArg, UFFDIO_MOVE, USERFAULTFD_IOC_NEW, Uffd};
use annex_shared::page::PAGE_SIZE;
use annex_shared::priority::Precedence;
use memmap2::MmapRaw;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::unistd::Pid;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

/// Bytes of staging. 2 MiB-aligned so that a transparent huge page can be moved whole.
pub const STAGING: u64 = 8 << 20;
/// Pages of it that the spans of one batch may cover. Batches follow each other there, so that it need not be emptied after each: that takes the program's CPU for as long as it takes
/// to free the pages, an event that a worker must read, and interrupts.
pub const STAGING_PART: u64 = STAGING / PAGE_SIZE as u64 / 2;
/// Pages in it from which on it is emptied after a batch: half a megabyte beyond the program's limit.
const MOST_HELD: u64 = 128;
/// Of the code and the shared page: a stub of another version is replaced, not adopted.
const VERSION: u32 = 3;
/// The stub's shared page in its program's mappings: a name that nobody else's mapping has.
pub const SHARED_PAGE: &str = "/memfd:annex-stub-page";
const SHARED_PAGE_MEMFD: &std::ffi::CStr = c"annex-stub-page";
/// What the stub is called in process listings.
pub const NAME: &str = "annex-stub";
/// How long a batch that is made in portions may take before its evictor sees to it.
const PORTIONS: Duration = Duration::from_micros(300);
/// Between two looks whether the stub has done what it does not answer.
const LOOK: Duration = Duration::from_micros(50);
/// Ranges one doorbell can move.
pub const MAX_MOVES: usize = super::table::INTENT_RANGES;

const HUGE: u64 = 2 << 20;
/// Clock ticks of CPU (3 s) after which a MOVE, which takes milliseconds, will not come to an end any more.
const ENDLESS: u64 = 300;

impl StubTraces {
    /// Everything the stub has mapped in the app.
    pub fn mappings(&self) -> [(u64, u64); 3] {
        [(self.code_at, 4096), (self.comm_at, size_of::<Comm>() as u64), (self.staging_map_at, STAGING + HUGE)]
    }
}

/// How long the app was stopped, for the attach benchmark and the log.
#[derive(Clone, Copy, Debug)]
pub struct Pause(pub Duration);

/// Why there is no stub.
#[derive(Debug, thiserror::Error)]
pub enum StubError {
    #[error(transparent)]
    Trace(#[from] TraceError),
    #[error("failed to {what}: {source}")]
    System { what: &'static str, source: io::Error },
    /// As the tracing process said it.
    #[error("{0}")]
    Apart(String),
    #[error("the stub does not answer")]
    Silent,
}

fn system(what: &'static str) -> impl Fn(io::Error) -> StubError {
    move |source| StubError::System { what, source }
}

/// The context a stub is made around.
pub enum Seed<'a> {
    /// `/dev/userfaultfd`: the stub makes a new context for its address space.
    Device(BorrowedFd<'a>),
    /// The context a fork child came with.
    Inherited(BorrowedFd<'a>),
}

/// Why a doorbell brought nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallError {
    /// The stub, or the whole address space, is gone.
    Dead,
    /// No answer in time: the app is frozen. The calls may still happen.
    NoAnswer,
}

/// What is known of a stub that takes long.
#[derive(Default)]
struct Overdue {
    /// Since it was rung for, at the last look.
    seconds: u64,
    /// Of its CPU time, at the first.
    ticks: Option<u64>,
}

#[derive(Debug)]
pub struct Stub {
    /// As annexd sees it.
    pid: i32,
    /// As the app's PID namespace sees it.
    pid_there: i32,
    pidfd: OwnedFd,
    comm: Arc<MmapRaw>,
    command: Arc<EventFd>,
    done: EventFd,
    /// Descriptor numbers in the stub's table: shared page, doorbell, answer, userfaultfd.
    fds_there: [i32; 4],
    code_at: u64,
    comm_at: u64,
    staging_map: (u64, u64),
    staging: u64,
    /// Pages from the start of staging that may have something in them, and how many of them have at most.
    used: u64,
    held: u64,
    outstanding: bool,
    /// Staging is being emptied.
    releasing: bool,
}

// SAFETY: the mapping is shared memory addressed through atomics and volatile accesses; nothing is tied to a thread.
unsafe impl Send for Stub {}

/// A new stub, and whether the calling thread must [`tracee::accompany`] it.
pub struct Injected {
    pub stub: Stub,
    pub pause: Pause,
    pub accompany: bool,
}

/// Stops a thread of `pid`, has it clone the stub, lets it go, and sets the stub up. Must be called on a thread that does
/// nothing else with ptrace meanwhile.
pub fn inject(pid: i32, tid: i32, suspend_seccomp: bool, seed: Seed<'_>) -> Result<Injected, StubError> {
    let start = Instant::now();
    let mut thread = Tracee::stop(pid, tid, suspend_seccomp)?;
    let cloned = thread.clone_stub();
    let released = thread.release();
    let pause = Pause(start.elapsed());
    let (mut child, pid_there) = cloned?;
    let stub_pid = child.tid();
    let result = released.map_err(StubError::from).and_then(|()| furnish(&mut child, pid, stub_pid, pid_there, &seed));
    match result {
        Ok(stub) => {
            // Faults wait while it moves pages; it never runs for longer than that takes.
            Precedence::OfAll.give(stub_pid);
            child.jump(stub.code_at, stub.comm_at, suspend_seccomp)?;
            Ok(Injected { stub, pause, accompany: suspend_seccomp })
        }
        Err(e) => {
            // SAFETY: our own tracee, so the PID can't have been recycled.
            unsafe { libc::kill(stub_pid, libc::SIGKILL) };
            // Collected here as its tracer; then as the app's child, so that no zombie stays behind.
            tracee::accompany(stub_pid);
            reap(pid, tid, suspend_seccomp, pid_there, &[]);
            Err(e)
        }
    }
}

/// Everything between the clone and the loop, done by the stub itself while the app runs on.
fn furnish(child: &mut Tracee, app: i32, pid: i32, pid_there: i32, seed: &Seed<'_>) -> Result<Stub, StubError> {
    let pidfd = process::pidfd_open(pid).map_err(system("open the stub's pidfd"))?;
    const UNSHARE: u64 = 2;
    child.call("close_range", libc::SYS_close_range, [0, u32::MAX as u64, UNSHARE, 0, 0, 0])?;
    let death = [libc::PR_SET_PDEATHSIG as u64, libc::SIGKILL as u64, 0, 0, 0, 0];
    child.call("prctl(PR_SET_PDEATHSIG)", libc::SYS_prctl, death)?;
    // A parent that ended before this took effect is never told of: nobody else would end the stub.
    if process::Stat::read(pid).is_none_or(|stat| stat.parent != app) {
        return Err(TraceError::Died { tid: app }.into());
    }
    child.call("setsid", libc::SYS_setsid, [0; 6])?;

    let scratch = map(child, "mmap scratch", 4096, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_ANONYMOUS, None)?;
    child.poke(scratch, &[NAME.as_bytes(), b"\0"].concat())?;
    child.syscall(libc::SYS_prctl, [libc::PR_SET_NAME as u64, scratch, 0, 0, 0, 0])?;

    let memfd = memfd_create(SHARED_PAGE_MEMFD, MFdFlags::MFD_CLOEXEC)
        .and_then(|fd| nix::unistd::ftruncate(&fd, size_of::<Comm>() as i64).map(|()| fd))
        .map_err(|e| system("create the stub's shared page")(e.into()))?;
    let comm = MmapRaw::map_raw(&memfd).map_err(system("map the stub's shared page"))?;
    let eventfd = |flags| EventFd::from_flags(flags).map_err(|e| system("create an eventfd")(e.into()));
    let command = Arc::new(eventfd(EfdFlags::EFD_CLOEXEC)?);
    let done = eventfd(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
    let seed_fd = match seed {
        Seed::Device(fd) | Seed::Inherited(fd) => *fd,
    };
    let [seed_there, memfd_there, command_there, done_there] =
        pass(child, &pidfd, scratch, [seed_fd, memfd.as_fd(), (*command).as_fd(), done.as_fd()])?;

    let uffd_there = match seed {
        Seed::Inherited(_) => seed_there,
        Seed::Device(_) => {
            let flags = (libc::O_CLOEXEC | libc::O_NONBLOCK) as u64;
            let args = [seed_there as u64, USERFAULTFD_IOC_NEW, flags, 0, 0, 0];
            let there = child.call("USERFAULTFD_IOC_NEW", libc::SYS_ioctl, args)? as i32;
            child.call("close", libc::SYS_close, [seed_there as u64, 0, 0, 0, 0, 0])?;
            there
        }
    };

    let code_at = map(child, "mmap code", 4096, libc::PROT_READ | libc::PROT_EXEC, libc::MAP_ANONYMOUS, None)?;
    child.poke(code_at, code::code())?;
    let read_write = libc::PROT_READ | libc::PROT_WRITE;
    let comm_at = map(child, "mmap comm", size_of::<Comm>() as u64, read_write, 0, Some(memfd_there))?;
    let reserve = libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let staging_map = (map(child, "mmap staging", STAGING + HUGE, read_write, reserve, None)?, STAGING + HUGE);
    for (at, len) in [(code_at, 4096), (comm_at, size_of::<Comm>() as u64), staging_map] {
        advise(child, at, len, libc::MADV_DONTFORK)?;
    }
    advise(child, staging_map.0, staging_map.1, libc::MADV_NOHUGEPAGE)?;
    child.call("munmap", libc::SYS_munmap, [scratch, 4096, 0, 0, 0, 0])?;

    let staging = staging_map.0.next_multiple_of(HUGE);
    let stub = Stub {
        pid,
        pid_there,
        pidfd,
        comm: Arc::new(comm),
        command,
        done,
        fds_there: [memfd_there, command_there, done_there, uffd_there],
        code_at,
        comm_at,
        staging_map,
        staging,
        used: 0,
        held: 0,
        outstanding: false,
        releasing: false,
    };
    stub.shared().command.store(command_there as i64, Ordering::Relaxed);
    stub.shared().done.store(done_there as i64, Ordering::Release);
    Ok(stub)
}

fn map(
    child: &mut Tracee,
    what: &'static str,
    len: u64,
    protection: i32,
    flags: i32,
    fd: Option<i32>,
) -> Result<u64, TraceError> {
    let sharing = if fd.is_some() { libc::MAP_SHARED } else { libc::MAP_PRIVATE };
    let fd = fd.unwrap_or(-1) as i64 as u64;
    child.call(what, libc::SYS_mmap, [0, len, protection as u64, (flags | sharing) as u64, fd, 0])
}

fn advise(child: &mut Tracee, at: u64, len: u64, advice: i32) -> Result<(), TraceError> {
    child.call("madvise", libc::SYS_madvise, [at, len, advice as u64, 0, 0, 0]).map(drop)
}

/// Puts four descriptors of ours into the stub's table, over a socket pair made there.
fn pass(child: &mut Tracee, pidfd: &OwnedFd, scratch: u64, fds: [BorrowedFd<'_>; 4]) -> Result<[i32; 4], StubError> {
    let kind = (libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC) as u64;
    child.call("socketpair", libc::SYS_socketpair, [libc::AF_UNIX as u64, kind, 0, scratch, 0, 0])?;
    let mut pair = [0u8; 8];
    let peek = |child: &Tracee, at, into: &mut [u8]| process::read_memory(child.tid(), at, into);
    peek(child, scratch, &mut pair).map_err(system("read the stub's memory"))?;
    let [theirs, ours] = [0, 4].map(|i| i32::from_le_bytes(pair[i..i + 4].try_into().expect("four bytes")));
    let socket = process::pidfd_getfd(pidfd, ours).map_err(system("fetch a socket from the stub"))?;
    let raw = fds.map(|fd| fd.as_raw_fd());
    let rights = [ControlMessage::ScmRights(&raw)];
    sendmsg::<()>(socket.as_raw_fd(), &[IoSlice::new(b"x")], &rights, MsgFlags::empty(), None)
        .map_err(|e| system("pass descriptors to the stub")(e.into()))?;

    // struct msghdr, one iovec, one byte of data and the control buffer, at known offsets of the scratch page.
    let (iovec, data, control) = (scratch + 64, scratch + 80, scratch + 96);
    let header: [u64; 7] = [0, 0, iovec, 1, control, 64, 0];
    let bytes: Vec<u8> = header.iter().chain(&[0, data, 1]).flat_map(|w| w.to_le_bytes()).collect();
    child.poke(scratch, &bytes)?;
    let flags = libc::MSG_CMSG_CLOEXEC as u64;
    child.call("recvmsg", libc::SYS_recvmsg, [theirs as u64, scratch, flags, 0, 0, 0])?;
    let mut message = [0u8; 32];
    // cmsghdr is 16 bytes: length, level, type; then the descriptors.
    peek(child, control, &mut message).map_err(system("read the stub's memory"))?;
    for fd in [theirs, ours] {
        child.call("close", libc::SYS_close, [fd as u64, 0, 0, 0, 0, 0])?;
    }
    Ok([16, 20, 24, 28].map(|i| i32::from_le_bytes(message[i..i + 4].try_into().expect("four bytes"))))
}

/// In the app: collects the dead stub so that no zombie stays, and unmaps what it left, if that is still the stub's: when the process has called exec since,
/// the same addresses are another program's. Best effort: the app may be gone.
pub fn reap(pid: i32, tid: i32, suspend_seccomp: bool, pid_there: i32, mappings: &[(u64, u64)]) {
    let is_ours =
        |m: &process::Mapping| m.name.starts_with(SHARED_PAGE) && mappings.iter().any(|(at, _)| m.start == *at);
    let mappings = if process::maps(pid).is_ok_and(|maps| maps.iter().any(is_ours)) { mappings } else { &[] };
    let Ok(mut thread) = Tracee::stop(pid, tid, suspend_seccomp) else { return };
    for (at, len) in mappings {
        let _ = thread.syscall(libc::SYS_munmap, [*at, *len, 0, 0, 0, 0]);
    }
    let wait = [pid_there as u64, 0, libc::__WALL as u64, 0, 0, 0];
    let _ = thread.syscall(libc::SYS_wait4, wait);
    let _ = thread.release();
}

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
        let mut fds = [PollFd::new(self.pidfd.as_fd(), PollFlags::POLLIN)];
        nix::poll::poll(&mut fds, PollTimeout::ZERO) == Ok(0)
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
            version: VERSION,
        }
    }

    /// Everything the stub has mapped in the app, never to be paged.
    pub fn mappings(&self) -> [(u64, u64); 3] {
        [(self.code_at, 4096), (self.comm_at, size_of::<Comm>() as u64), self.staging_map]
    }

    fn shared(&self) -> &Comm {
        // SAFETY: the mapping is as large and as aligned as `Comm`, lives as long as `self`, and what the stub writes is behind
        // atomics or read volatile after its doorbell.
        unsafe { &*self.comm.as_ptr().cast::<Comm>() }
    }

    fn call_slot(&self, i: usize) -> *mut Call {
        assert!(i < MAX_MOVES);
        // SAFETY: in bounds of the mapping.
        unsafe { (&raw mut (*self.comm.as_mut_ptr().cast::<Comm>()).calls[i]).cast() }
    }

    fn move_slot(&self, i: usize) -> *mut MoveArg {
        assert!(i < MAX_MOVES);
        // SAFETY: in bounds of the mapping.
        unsafe { &raw mut (*self.comm.as_mut_ptr().cast::<Comm>()).moves[i] }
    }

    fn prepare(&self, i: usize, number: i64, args: [u64; 6]) {
        // SAFETY: the slot is in bounds, and the stub does not look at it before the doorbell.
        unsafe { self.call_slot(i).write_volatile(Call { number, args, result: gate::UNMADE }) };
    }

    fn ring(&mut self, calls: usize) {
        self.gate().prepare_ring(0, calls, true);
        self.gate().ring();
        self.outstanding = true;
    }

    /// Waits for the calls that were rung for, if any.
    pub fn wait(&mut self, limit: Duration) -> Result<(), CallError> {
        let deadline = Instant::now() + limit;
        if self.releasing {
            self.wait_for_release(deadline)?;
        }
        while self.outstanding {
            match self.done.read() {
                Ok(_) => self.outstanding = false,
                Err(Errno::EAGAIN | Errno::EINTR) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return Err(CallError::NoAnswer);
                    }
                    let mut fds = [
                        PollFd::new(self.done.as_fd(), PollFlags::POLLIN),
                        PollFd::new(self.pidfd.as_fd(), PollFlags::POLLIN),
                    ];
                    let _ = nix::poll::ppoll(&mut fds, Some(left.into()), None);
                    let dead = fds[1].any().unwrap_or(false) && !fds[0].any().unwrap_or(false);
                    if dead {
                        self.outstanding = false;
                        return Err(CallError::Dead);
                    }
                }
                Err(_) => return Err(CallError::Dead),
            }
        }
        fence(Ordering::SeqCst);
        Ok(())
    }

    /// Whether the stub may go on.
    pub fn gate(&self) -> Gate {
        Gate { comm: self.comm.clone(), bell: self.command.clone() }
    }

    /// The next empty part of staging, in pages from its start, for so many that hold so many at most: no more than [`STAGING_PART`]. It is used from here on.
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

    /// Makes ready to move each `(source, length)` into staging, one after the other from page `at` on; holes in a source stay holes. Nothing moves before
    /// [`Stub::make_moves`]; from here on the gate is in use.
    pub fn prepare_moves(&mut self, ranges: &[(u64, u64)], at: u64) {
        let mut dst = self.staging + at * PAGE_SIZE as u64;
        for (i, (src, len)) in ranges.iter().enumerate() {
            let arg = MoveArg { dst, src: *src, len: *len, mode: MOVE_DONTWAKE | MOVE_SOURCE_HOLES, moved: 0 };
            // SAFETY: the slot is in bounds, and the stub does not look at it before the doorbell.
            unsafe { self.move_slot(i).write_volatile(arg) };
            let there = self.comm_at + (self.move_slot(i).addr() - self.comm.as_ptr().addr()) as u64;
            self.prepare(i, libc::SYS_ioctl, [self.fds_there[3] as u64, UFFDIO_MOVE, there, 0, 0, 0]);
            dst += len;
        }
        self.gate().reset(ranges.len() as u32);
    }

    /// Has the first `count` moves made that were prepared, and waits until they are, or are given up: the gate tells which were made, and what stopped
    /// them. Where something did, only staging itself tells how much of a range arrived. The kernel's count does not: Linux 6.18's `move_pages` goes on after an
    /// inner EAGAIN (the app touched the page just then) with the old error, so that it moves the page, or a run of them, without counting it, tries again and
    /// answers EEXIST.
    pub fn make_moves(&mut self, count: usize) -> Result<(), CallError> {
        self.ring(count);
        mortal::point("moves-rung");
        self.await_moves()
    }

    /// Waits until the moves that were prepared are made, or given up. Others ring for them, and `hurry` is asked to whenever that takes long.
    pub fn await_portions(&mut self, mut hurry: impl FnMut() -> Hurry) -> Result<(), CallError> {
        let (gate, began) = (self.gate(), Instant::now());
        let mut watch = Overdue::default();
        while !gate.is_finished() {
            if !self.is_alive() {
                return Err(CallError::Dead);
            }
            std::thread::sleep(LOOK);
            if began.elapsed() > PORTIONS {
                match hurry() {
                    Hurry::Finished => break,
                    Hurry::Rung => {
                        self.outstanding = true;
                        return self.await_moves();
                    }
                    Hurry::AtAPortion => self.look_whether_overdue(&mut watch, began),
                }
            }
        }
        fence(Ordering::SeqCst);
        Ok(())
    }

    fn await_moves(&mut self) -> Result<(), CallError> {
        // While it is not known what moved, there is no giving up, except with the app.
        let (began, mut watch) = (Instant::now(), Overdue::default());
        loop {
            match self.wait(Duration::from_secs(1)) {
                Err(CallError::NoAnswer) => self.look_whether_overdue(&mut watch, began),
                answer => return answer,
            }
        }
    }

    /// Ends a stub that is in an endless call; to be asked as long as it does not come to an end with what it was rung for.
    fn look_whether_overdue(&self, watch: &mut Overdue, began: Instant) {
        let seconds = began.elapsed().as_secs();
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
            turns::place(self.pid)
        );
    }

    /// Makes ready to drop what lies in staging. Whoever rings the bell need not wait: the stub's REMOVE event must be read before it can go on; the next
    /// [`Stub::wait`] sees to the end of it.
    pub fn prepare_release(&mut self) -> Gate {
        self.prepare(0, libc::SYS_madvise, [self.staging, STAGING, libc::MADV_DONTNEED as u64, 0, 0, 0]);
        let gate = self.gate();
        gate.reset(1);
        gate.prepare_ring(0, 1, false);
        self.releasing = true;
        (self.used, self.held) = (0, 0);
        gate
    }

    /// Waits until staging is empty, if it was to be emptied. No interrupt tells: it is over long since, nearly always.
    fn wait_for_release(&mut self, deadline: Instant) -> Result<(), CallError> {
        let gate = self.gate();
        while !gate.is_idle() {
            if !self.is_alive() {
                return Err(CallError::Dead);
            }
            if Instant::now() > deadline {
                return Err(CallError::NoAnswer);
            }
            std::thread::sleep(LOOK);
        }
        self.releasing = false;
        let answer = gate.answer(0);
        if answer != Some(0) {
            // What is still in there would be taken for the next batch.
            tracing::warn!(stub = self.pid, "staging could not be emptied ({answer:?}): ending the stub");
            self.kill();
            return Err(CallError::Dead);
        }
        Ok(())
    }

    /// One call that does nothing, to see whether the stub answers.
    pub fn ping(&mut self, limit: Duration) -> Result<(), CallError> {
        self.wait(limit)?;
        self.gate().reset(0);
        self.ring(0);
        self.wait(limit)
    }

    /// Reads staged pages; `runs` are (offset in staging, bytes), in the order of `into`. Through the stub, or through the app's process `pid` if
    /// the stub has been killed.
    pub fn read_staging(&self, pid: i32, runs: &[(u64, u64)], into: &mut [u8]) -> io::Result<()> {
        self.read_through(self.pid, runs, into).or_else(|_| self.read_through(pid, runs, into))
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

    /// Ends the stub and takes everything of it out of the app.
    pub fn remove(self, app: i32, uffd: &Uffd) {
        // Unregistered first: the unmapping would otherwise send an event to us and wait for ourselves.
        let _ = uffd.unregister(self.staging, STAGING);
        let _ = process::pidfd_kill(self.pidfd.as_fd(), libc::SIGKILL);
        let mut fds = [PollFd::new(self.pidfd.as_fd(), PollFlags::POLLIN)];
        let _ = nix::poll::poll(&mut fds, 2000u16);
        super::apart::reap(app, self.pid_there, &self.mappings());
    }

    /// True if the answer to a doorbell is still out.
    pub fn is_ringing(&self) -> bool {
        self.outstanding || self.releasing
    }

    /// Kills the stub of an address space that is dead or abandoned (exec), so that its memory can go.
    pub fn kill(&self) {
        let _ = process::pidfd_kill(self.pidfd.as_fd(), libc::SIGKILL);
    }
}
