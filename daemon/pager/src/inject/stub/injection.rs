//! Putting a stub into an app: a thread of the app clones it, and it makes all else by itself while
//! the app runs on. And taking it out again.

use super::code;
use super::gap;
use super::gate::Gate;
use super::handle::{Stub, StubError, system};
use super::layout::{Comm, HUGE, NAME, SHARED_PAGE_MEMFD, STAGING};
use super::reap;
use crate::inject::tracee;
use crate::inject::tracee::{AskedThreads, TraceError, Tracee};
use crate::kernel::process;
use crate::kernel::uffd::USERFAULTFD_IOC_NEW;
use annex_host::priority::Precedence;
use annex_shared::memfd;
use memmap2::MmapRaw;
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use std::io::IoSlice;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// Places that are tried for the stub's memory, and how far from each other they are.
const TRIES: u64 = 8;
const APART: u64 = 1 << 30;

const READ_WRITE: i32 = libc::PROT_READ | libc::PROT_WRITE;

/// How long the app was stopped, for the attach benchmark and the log.
#[derive(Clone, Copy, Debug)]
pub struct Pause(pub Duration);

/// The context a stub is made around.
pub enum Seed<'a> {
    /// `/dev/userfaultfd`: the stub makes a new context for its address space.
    Device(BorrowedFd<'a>),
    /// The context a fork child came with.
    Inherited(BorrowedFd<'a>),
}

/// A new stub, and whether the calling thread must [`tracee::accompany`] it.
pub struct Injected {
    pub stub: Stub,
    pub pause: Pause,
    pub accompany: bool,
    /// Threads of the app that may still stop because they were asked to.
    pub asked: AskedThreads,
}

/// Stops a thread of `pid`, has it clone the stub, lets it go, and sets the stub up. Must be called
/// on a thread that does nothing else with ptrace meanwhile.
pub fn inject(pid: i32, seed: Seed<'_>) -> Result<Injected, StubError> {
    let is_init = process::number_in_own_namespace(pid) == Some(1);
    // Looked for while the app runs: it may take long.
    let block = gap::middle(pid).ok_or(TraceError::Died { tid: pid })?;
    let start = Instant::now();
    let (mut thread, mut asked) = tracee::borrow(pid)?;
    // The stub's filter is that of the thread that makes it.
    let has_seccomp = process::has_seccomp(thread.tid());
    let cloned = match process::begins_a_namespace(thread.tid()) {
        true => Err(TraceError::BeginsNamespace { pid }),
        false => clone_stub(&mut thread, &mut asked, pid, (is_init, block)),
    };
    let released = thread.release();
    let pause = Pause(start.elapsed());
    asked.let_go();
    let (mut child, pid_there, scratch) = cloned?;
    let block = scratch + HUGE;
    let stub_pid = child.tid();
    let result = released
        .map_err(StubError::from)
        .and_then(|()| furnish(&mut child, (stub_pid, pid_there), (scratch, block), &seed));
    asked.let_go();
    match result {
        Ok(stub) => {
            // Faults wait while it moves pages; it never runs for longer than that takes.
            Precedence::OfAll.give(stub_pid);
            child.jump(stub.code_at, stub.comm_at, has_seccomp)?;
            Ok(Injected { stub, pause, accompany: has_seccomp, asked })
        }
        Err(e) => {
            child.kill();
            reap::reap(pid, stub_pid, &[]);
            Err(e)
        }
    }
}

/// Has the borrowed thread make a process in its address space. Returns it, the PID it has in the
/// thread's namespace, and a page of memory there to write into.
///
/// The program must not have it for a child: a wait for any child would meet it. So the thread
/// makes a process between, which makes the stub and ends, and the thread collects that one. The
/// stub is then the child of whoever adopts orphans. If that is the borrowed process itself, the
/// stub is its child from the start, without a signal to send at its end: a plain wait then passes
/// it over.
fn clone_stub(
    thread: &mut Tracee,
    asked: &mut AskedThreads,
    pid: i32,
    how: (bool, u64),
) -> Result<(Tracee, i32, u64), TraceError> {
    let (mut between, between_there) = clone_unlimited(thread, asked, pid)?;
    let made = clone_from(&mut between, thread, asked, how);
    match made {
        Ok((Some((stub, pid_there)), scratch)) => {
            collect_own(between, between_there, thread);
            Ok((stub, pid_there, scratch))
        }
        Ok((None, scratch)) => Ok((between, between_there, scratch)),
        Err(error) => {
            collect_own(between, between_there, thread);
            Err(error)
        }
    }
}

/// The stub that the process between makes, unless that is to be the stub itself.
fn clone_from(
    between: &mut Tracee,
    thread: &mut Tracee,
    asked: &mut AskedThreads,
    (is_init, block): (bool, u64),
) -> Result<(Option<(Tracee, i32)>, u64), TraceError> {
    process::lift_limits(between.tid());
    let scratch = map_scratch(between, block)?;
    let adopts = is_init || {
        thread.syscall(libc::SYS_prctl, [libc::PR_GET_CHILD_SUBREAPER as u64, scratch, 0, 0, 0, 0])?;
        let mut is_subreaper = [0u8; 4];
        process::read_memory(between.tid(), scratch, &mut is_subreaper).is_ok() && is_subreaper != [0; 4]
    };
    let made = if adopts { None } else { Some(between.clone_process(asked)?) };
    Ok((made, scratch))
}

fn collect_own(between: Tracee, there: i32, thread: &mut Tracee) {
    between.kill();
    let _ = thread.syscall(libc::SYS_wait4, [there as u64, 0, libc::__WALL as u64, 0, 0, 0]);
}

/// `clone` in the thread, though the program's user may have no more processes: for that moment it
/// may.
fn clone_unlimited(thread: &mut Tracee, asked: &mut AskedThreads, pid: i32) -> Result<(Tracee, i32), TraceError> {
    let first = thread.clone_process(asked);
    if !first.as_ref().is_err_and(|e| e.errno() == Some(libc::EAGAIN)) {
        return first;
    }
    let Some(limit) = process::set_limit(pid, libc::RLIMIT_NPROC, process::UNLIMITED) else { return first };
    let second = thread.clone_process(asked);
    process::set_limit(pid, libc::RLIMIT_NPROC, limit);
    second
}

/// Everything between the clone and the loop, done by the stub itself while the app runs on.
fn furnish(
    child: &mut Tracee,
    (pid, pid_there): (i32, i32),
    (scratch, block): (u64, u64),
    seed: &Seed<'_>,
) -> Result<Stub, StubError> {
    let pidfd = process::pidfd_open(pid).map_err(system("open the stub's pidfd"))?;
    const UNSHARE: u64 = 2;
    child.poke(scratch, &[NAME.as_bytes(), b"\0"].concat())?;
    child.syscall(libc::SYS_prctl, [libc::PR_SET_NAME as u64, scratch, 0, 0, 0, 0])?;
    child.call("close_range", libc::SYS_close_range, [0, u32::MAX as u64, UNSHARE, 0, 0, 0])?;
    child.call("setsid", libc::SYS_setsid, [0; 6])?;

    // The program has it too, and could truncate it under us.
    let memfd = memfd::create(SHARED_PAGE_MEMFD, size_of::<Comm>())
        .map_err(|e| system("create the stub's shared page")(e.into()))?;
    let shared = MmapRaw::map_raw(&memfd).map_err(system("map the stub's shared page"))?;
    let seed_fd = match seed {
        Seed::Device(fd) | Seed::Inherited(fd) => *fd,
    };
    let [seed_there, memfd_there] = pass(child, &pidfd, scratch, [seed_fd, memfd.as_fd()])?;

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

    let code = (block, 4096);
    let code_at = map(child, "mmap code", code, libc::PROT_READ | libc::PROT_EXEC, libc::MAP_ANONYMOUS, None)?;
    child.poke(code_at, code::code())?;
    let comm = (block + 4096, size_of::<Comm>() as u64);
    let comm_at = map(child, "mmap comm", comm, READ_WRITE, 0, Some(memfd_there))?;
    // Not accessible yet: a program that has called mlockall would have all of it populated.
    let reserve = libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let len = STAGING + HUGE;
    let staging_map = (map(child, "mmap staging", (block + HUGE, len), libc::PROT_NONE, reserve, None)?, len);
    for (at, len) in [(code_at, 4096), (comm_at, size_of::<Comm>() as u64), staging_map] {
        child.call("munlock", libc::SYS_munlock, [at, len, 0, 0, 0, 0])?;
        advise(child, at, len, libc::MADV_DONTFORK)?;
    }
    advise(child, staging_map.0, staging_map.1, libc::MADV_NOHUGEPAGE)?;
    child.call("munmap", libc::SYS_munmap, [scratch, 4096, 0, 0, 0, 0])?;

    // Its neighbours stay inaccessible. So staging stays a mapping of its own when it is
    // unregistered for a moment, and needs no new one to be registered again.
    let staging = staging_map.0.next_multiple_of(HUGE);
    child.call("mprotect", libc::SYS_mprotect, [staging, STAGING, READ_WRITE as u64, 0, 0, 0])?;
    let stub = Stub {
        pid,
        pid_there,
        pidfd,
        gate: Gate::new(shared),
        inode: nix::sys::stat::fstat(&memfd).map_or(0, |stat| stat.st_ino),
        fds_there: [memfd_there, uffd_there],
        code_at,
        comm_at,
        staging_map,
        staging,
        used: 0,
        held: 0,
        releasing: false,
        failed_releases: 0,
    };
    Ok(stub)
}

/// A page to write into, with room above it for all that the stub will have. The program may have
/// mapped something where the gap was: then it lies further up.
fn map_scratch(child: &mut Tracee, block: u64) -> Result<u64, TraceError> {
    let mut nth = 0;
    loop {
        let at = block + nth * APART;
        nth += 1;
        match map(child, "mmap scratch", (at, 4096), READ_WRITE, libc::MAP_ANONYMOUS, None) {
            Err(error) if error.errno() == Some(libc::EEXIST) && nth < TRIES => {}
            mapped => return mapped,
        }
    }
}

fn map(
    child: &mut Tracee,
    what: &'static str,
    (at, len): (u64, u64),
    protection: i32,
    flags: i32,
    fd: Option<i32>,
) -> Result<u64, TraceError> {
    let sharing = if fd.is_some() { libc::MAP_SHARED } else { libc::MAP_PRIVATE };
    let fd = fd.unwrap_or(-1) as i64 as u64;
    let flags = (flags | sharing | libc::MAP_FIXED_NOREPLACE) as u64;
    child.call(what, libc::SYS_mmap, [at, len, protection as u64, flags, fd, 0])
}

fn advise(child: &mut Tracee, at: u64, len: u64, advice: i32) -> Result<(), TraceError> {
    child.call("madvise", libc::SYS_madvise, [at, len, advice as u64, 0, 0, 0]).map(drop)
}

/// Puts two descriptors of ours into the stub's table, over a socket pair made there.
fn pass(child: &mut Tracee, pidfd: &OwnedFd, scratch: u64, fds: [BorrowedFd<'_>; 2]) -> Result<[i32; 2], StubError> {
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

    // struct msghdr, one iovec, one byte of data and the control buffer, at known offsets of the
    // scratch page.
    let (iovec, data, control) = (scratch + 64, scratch + 80, scratch + 96);
    let header: [u64; 7] = [0, 0, iovec, 1, control, 64, 0];
    let bytes: Vec<u8> = header.iter().chain(&[0, data, 1]).flat_map(|w| w.to_le_bytes()).collect();
    child.poke(scratch, &bytes)?;
    let flags = libc::MSG_CMSG_CLOEXEC as u64;
    child.call("recvmsg", libc::SYS_recvmsg, [theirs as u64, scratch, flags, 0, 0, 0])?;
    let mut message = [0u8; 24];
    // cmsghdr is 16 bytes: length, level, type; then the descriptors.
    peek(child, control, &mut message).map_err(system("read the stub's memory"))?;
    for fd in [theirs, ours] {
        child.call("close", libc::SYS_close, [fd as u64, 0, 0, 0, 0, 0])?;
    }
    Ok([16, 20].map(|i| i32::from_le_bytes(message[i..i + 4].try_into().expect("four bytes"))))
}
