//! ptrace in a process of its own, which outlives annexd.
//!
//! A thread that is stopped runs our system calls with our registers. Were its tracer killed in the
//! middle, the kernel would let it go as it is, and the program would crash. So what traces is a
//! child of annexd, forked for the occasion: if annexd is killed meanwhile, the child finishes what
//! it has begun. It has annexd's memory by copy, the descriptors it is given and no others, and
//! ends without running anything of annexd's.
//!
//! The child of an annexd with many threads must not touch a lock of theirs: what runs here does
//! not log.

use crate::inject::stub::{Pause, STAGING, Seed, Stub, StubError};
use crate::inject::tracee::TraceError;
use crate::inject::{stub, tracee};
use crate::kernel::process;
use crate::kernel::uffd::Uffd;
use crate::space::StubTraces;
use nix::poll::{PollFd, PollFlags};
use nix::sys::signal::{SigHandler, Signal, signal};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, fork};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

/// Not in the libc crate.
const PR_GET_TID_ADDRESS: u64 = 40;

/// What the child says.
#[derive(Serialize, Deserialize)]
enum Report {
    Injected {
        traces: StubTraces,
        pause_ns: u64,
    },
    Failed {
        why: String,
        is_the_programs: bool,
    },
    /// What threads answered, and which one it was.
    Answers(Vec<(i32, Option<u64>)>),
}

/// A stub that annexd has yet to write down. Were annexd killed before, nobody would know of it,
/// and it would keep the program's memory for ever: unless it is said to be known, the tracing
/// process ends it.
pub struct NewStub {
    pub traces: StubTraces,
    pub pause: Pause,
    word: Option<OwnedFd>,
    tracer: Pid,
}

impl NewStub {
    /// A successor would find the stub.
    pub fn acknowledge(self) {
        // A tracing process that is gone has been killed, and leaves the stub as it is.
        let _ = self.word.as_ref().map(|word| nix::unistd::write(word, &[1]));
    }

    /// The stub is of no use. Returns when nothing is left of it.
    pub fn withdraw(mut self) {
        self.word = None;
        let _ = waitpid(self.tracer, Some(WaitPidFlag::__WALL));
    }
}

impl Drop for NewStub {
    fn drop(&mut self) {
        self.word = None;
        collect(self.tracer);
    }
}

/// Puts a stub into process `pid`, around the context behind `seed` or, if that is
/// `/dev/userfaultfd`, a new one.
pub fn inject(pid: i32, seed: BorrowedFd<'_>, is_device: bool) -> Result<NewStub, StubError> {
    let failed = |error| apart(format!("failed to start a tracing process: {error}"), false);
    let (heard, word) = nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC).map_err(|errno| failed(errno.into()))?;
    let (said, tracer) = run(&[seed.as_raw_fd(), heard.as_raw_fd()], |mut report| {
        let seed = if is_device { Seed::Device(seed) } else { Seed::Inherited(seed) };
        let injected = stub::inject(pid, seed);
        report.send(&match &injected {
            Ok(injected) => {
                let pause_ns = injected.pause.0.as_nanos() as u64;
                Report::Injected { traces: injected.stub.traces(), pause_ns }
            }
            Err(error) => {
                let hint = hint(pid, error);
                let is_namespace = matches!(error, StubError::Trace(TraceError::BeginsNamespace { .. }));
                let why = format!("{error}{}", hint.unwrap_or_default());
                Report::Failed { why, is_the_programs: hint.is_some() || is_namespace }
            }
        });
        drop(report);
        if let Ok(mut injected) = injected {
            let is_known = nix::unistd::read(&heard, &mut [0]) == Ok(1);
            if !is_known {
                injected.stub.kill();
            }
            if injected.accompany {
                tracee::accompany(injected.stub.pid(), &mut injected.asked);
            }
            if !is_known {
                let traces = injected.stub.traces();
                stub::reap(pid, traces.pid, &traces.mappings());
            }
        }
    })
    .map_err(failed)?;
    let why = match serde_json::from_slice(&said) {
        Ok(Report::Injected { traces, pause_ns }) => {
            return Ok(NewStub { traces, pause: Pause(Duration::from_nanos(pause_ns)), word: Some(word), tracer });
        }
        Ok(Report::Failed { why, is_the_programs }) => apart(why, is_the_programs),
        Ok(Report::Answers(_)) | Err(_) => apart("the tracing process ended without a word".into(), false),
    };
    collect(tracer);
    Err(why)
}

fn apart(why: String, is_the_programs: bool) -> StubError {
    StubError::Apart { why, is_the_programs }
}

/// What of the program explains that it could not make the stub.
fn hint(pid: i32, error: &StubError) -> Option<&'static str> {
    let StubError::Trace(error) = error else { return None };
    match error.errno()? {
        libc::EAGAIN if process::has_deadlines(pid) => {
            Some("; it is scheduled by deadline (SCHED_DEADLINE), and the kernel lets such a thread make no process")
        }
        libc::ENOMEM if process::makes_processes_elsewhere(pid) => Some(
            "; it makes its processes in another PID namespace (unshare, setns), whose first process may have ended",
        ),
        libc::EMFILE | libc::EAGAIN | libc::ENOMEM => Some(
            "; the program's resource limits (prlimit -p PID) leave no room for it, and annexd can lift them with CAP_SYS_RESOURCE only",
        ),
        _ => None,
    }
}

/// [`stub::reap`], from there.
pub fn reap(pid: i32, stub: i32, mappings: &[(u64, u64)]) {
    match run(&[], |_| stub::reap(pid, stub, mappings)) {
        Ok((_, tracer)) => collect(tracer),
        Err(error) => tracing::warn!(pid, "failed to start a tracing process: {error}"),
    }
    // If annexd adopts orphans, this one may be its own child.
    if process::Stat::read(stub).is_some_and(|stat| stat.parent == std::process::id() as i32 && stat.comm == stub::NAME)
    {
        let _ = waitpid(Pid::from_raw(stub), Some(WaitPidFlag::__WALL | WaitPidFlag::WNOHANG));
    }
}

/// How long threads are asked in one go: those that are left are asked in the next.
const ASKING: Duration = Duration::from_millis(100);

/// Asks threads of process `pid` at which address the kernel is to clear their TID (0: nowhere).
/// `None`: the thread can't be asked. They write their answer to `scratch`, in the memory that they
/// share with `stub`: one that has called exec since has other memory there.
pub fn ask_where_tids_are_cleared(pid: i32, tids: &[i32], (stub, scratch): (i32, u64)) -> Vec<(i32, Option<u64>)> {
    let asked = run(&[], |mut report| {
        let until = Instant::now() + ASKING;
        let borrowing = tracee::Borrowing::from(pid);
        let in_time = tids.iter().take_while(|_| Instant::now() < until);
        let ask = |tid: &i32| {
            let mut thread = borrowing.thread(*tid)?;
            if process::same_address_space(*tid, stub) != Some(true) {
                thread.release().ok()?;
                return None;
            }
            let made = thread.call("prctl", libc::SYS_prctl, [PR_GET_TID_ADDRESS, scratch, 0, 0, 0, 0]);
            let mut answer = [0; 8];
            let answer = made.ok().and_then(|_| process::read_memory(*tid, scratch, &mut answer).ok().map(|()| answer));
            thread.release().ok()?;
            answer.map(u64::from_le_bytes)
        };
        report.send(&Report::Answers(in_time.map(|tid| (*tid, ask(tid))).collect()));
    });
    match asked {
        Ok((said, tracer)) => {
            collect(tracer);
            match serde_json::from_slice(&said) {
                Ok(Report::Answers(answers)) => answers,
                _ => Vec::new(),
            }
        }
        Err(error) => {
            tracing::warn!(pid, "failed to start a tracing process: {error}");
            Vec::new()
        }
    }
}

/// Ends a stub and takes everything of it out of the address space that a process, which lives,
/// has.
pub fn remove(stub: Stub, process: i32, uffd: &Uffd) {
    // Unregistered first: the unmapping would otherwise send an event to us and wait for ourselves.
    let _ = uffd.unregister(stub.staging(), STAGING);
    stub.kill();
    let mut fds = [PollFd::new(stub.pidfd(), PollFlags::POLLIN)];
    let _ = nix::poll::poll(&mut fds, 2000u16);
    reap(process, stub.pid(), &stub.mappings());
}

/// Where the child puts its report; dropping it ends the report.
struct Reporter(File);

impl Reporter {
    fn send(&mut self, report: &Report) {
        // If annexd is gone there is nobody to tell.
        let _ = serde_json::to_vec(report).map(|bytes| self.0.write_all(&bytes));
    }
}

/// Runs `body` in a child that has these descriptors; what it reported, and the child, which may go
/// on after its report and is to be [collected](collect).
fn run(keep: &[RawFd], body: impl FnOnce(Reporter)) -> io::Result<(Vec<u8>, Pid)> {
    let (ours, theirs) = nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC)?;
    // SAFETY: the child runs only `body`, on this thread's copy, and ends by _exit. The C library
    // makes its allocator usable there.
    match unsafe { fork() }? {
        ForkResult::Child => {
            let ended = catch_unwind(AssertUnwindSafe(|| {
                settle_in(keep, &theirs);
                body(Reporter(File::from(theirs)));
            }));
            // SAFETY: ends this process at once; nothing of annexd's may be taken down here.
            unsafe { libc::_exit(i32::from(ended.is_err())) }
        }
        ForkResult::Parent { child } => {
            drop(theirs);
            let mut said = Vec::new();
            if File::from(ours).read_to_end(&mut said).is_err() {
                said.clear();
            }
            Ok((said, child))
        }
    }
}

fn settle_in(keep: &[RawFd], report: &OwnedFd) {
    for kind in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGQUIT, Signal::SIGUSR1, Signal::SIGPIPE] {
        // SAFETY: ignoring a signal installs no handler.
        let _ = unsafe { signal(kind, SigHandler::SigIgn) };
    }
    let _ = nix::unistd::setsid();
    // SAFETY: the name is a C string; setpriority takes numbers only.
    unsafe {
        libc::prctl(libc::PR_SET_NAME, c"annex-tracer".as_ptr());
        libc::setpriority(libc::PRIO_PROCESS, 0, -20);
    }
    let mut keep: Vec<RawFd> = keep.iter().copied().chain([0, 1, 2, report.as_fd().as_raw_fd()]).collect();
    keep.sort_unstable();
    let mut from = 0u32;
    for fd in keep.into_iter().map(|fd| fd as u32).chain([u32::MAX]) {
        if fd > from {
            // SAFETY: these are copies of annexd's descriptors; nothing in this child uses them.
            unsafe { libc::syscall(libc::SYS_close_range, from, fd - 1, 0) };
        }
        from = from.max(fd.saturating_add(1));
    }
}

/// No zombie stays: at once, or when a child that goes on has ended.
fn collect(child: Pid) {
    let flags = WaitPidFlag::__WALL;
    for _ in 0..50 {
        if !matches!(waitpid(child, Some(flags | WaitPidFlag::WNOHANG)), Ok(WaitStatus::StillAlive)) {
            return;
        }
        std::thread::sleep(Duration::from_micros(200));
    }
    let thread = std::thread::Builder::new().name("annex-tracer".into());
    let _ = thread.spawn(move || waitpid(child, Some(flags)));
}
