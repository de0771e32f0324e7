//! The keeper process: a child of annexd that shares its descriptor table and nothing else.
//!
//! It is cloned with `CLONE_FILES` and without an exec (which would end the sharing), sleeps while
//! annexd lives, and costs a few pages. It listens on a socket of its own: a connection sends
//! [`TAKE`] and is answered [`BUSY`], or, once annexd has ended, [`MINE`] with the index's
//! descriptor and then its PID (4 bytes, little-endian). [`DONE`] ends it; a connection that breaks
//! before leaves all as it was.
//!
//! If no successor has come in time (`takeover_wait`) it ends the programs, and holds the
//! userfaultfds until their address spaces are gone: whoever touches an evicted page meanwhile
//! waits, and never sees zeros.

use super::Kept;
use super::index::Index;
use crate::pidfd::{pidfd_kill, pidfd_open};
use crate::rights;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigHandler, SigSet, Signal, signal};
use nix::sys::socket::{MsgFlags, getsockopt, sockopt};
use std::collections::HashSet;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::{Duration, Instant};

/// Exit code of a keeper that had to end programs.
pub const HAD_TO_END_PROGRAMS: u8 = 3;

/// A successor asks for what is kept.
pub const TAKE: u8 = b'T';
/// It has all of it.
pub const DONE: u8 = b'D';
/// The keeper's annexd lives.
pub const BUSY: u8 = b'B';
/// Here it is.
pub const MINE: u8 = b'M';

/// A successor that says nothing for this long is none.
const SILENCE: Duration = Duration::from_secs(30);

/// Starts the process; its pidfd. The caller must have one thread.
pub fn start(index: &Index, listener: &UnixListener, path: &Path, patience: Duration) -> io::Result<OwnedFd> {
    let annexd = pidfd_open(std::process::id() as i32)?;
    // SAFETY: a fork without a new stack. The child has a copy of this one thread and of all
    // memory; it runs on from here as its own process.
    let child = unsafe { libc::syscall(libc::SYS_clone, libc::CLONE_FILES | libc::SIGCHLD, 0, 0, 0, 0) };
    match Errno::result(child)? {
        0 => {
            let code = live(index, listener, &annexd, path, patience);
            let _ = std::fs::remove_file(path);
            // SAFETY: ends this process at once: what it has in memory is a copy of annexd's, not
            // to be taken down a second time.
            unsafe { libc::_exit(code) }
        }
        pid => {
            let keeper = pidfd_open(pid as i32)?;
            // The descriptor of ourselves stays open in the table: the keeper waits on it.
            std::mem::forget(annexd);
            Ok(keeper)
        }
    }
}

/// The keeper's PID, from its answer.
pub fn read_pid(stream: &mut UnixStream) -> io::Result<i32> {
    let mut pid = [0; 4];
    stream.read_exact(&mut pid)?;
    Ok(i32::from_le_bytes(pid))
}

fn live(index: &Index, listener: &UnixListener, annexd: &OwnedFd, path: &Path, patience: Duration) -> i32 {
    settle_in();
    wait_for_end(listener, annexd);
    let kept = index.entries();
    close_others(&[index.fd().as_raw_fd(), listener.as_raw_fd()], &kept);
    let holds_keys = kept.iter().any(|(kept, _)| matches!(kept, Kept::LogPages));
    let has = |is_it: fn(&Kept) -> bool| kept.iter().any(|(kept, _)| is_it(kept));
    let depends = holds_keys || has(|kept| matches!(kept, Kept::Userfaultfd(_) | Kept::Member(_)));
    // An index that was not completed is that of an annexd which had not taken over yet: who kept
    // for it before does so still.
    if !index.is_complete() || !depends {
        return 0;
    }
    let programs = kept.iter().filter(|(kept, _)| matches!(kept, Kept::Process(_))).count();
    let keys = if holds_keys { "and a key-value store " } else { "" };
    if programs > 0 || holds_keys {
        eprintln!(
            "annexd keeper: annexd ended and left {programs} processes {keys}whose memory is with donors; they wait up to {patience:?} for \
             the next annexd, then they are ended (start annexd, or see why it does not start)"
        );
    }
    if await_successor(index, listener, &kept, holds_keys, patience) {
        return 0;
    }
    let _ = std::fs::remove_file(path);
    if programs == 0 && contexts(&kept).all(has_ended) {
        // Only keys, which go with their table, and processes that have all their memory.
        return 0;
    }
    end_programs(&kept);
    i32::from(HAD_TO_END_PROGRAMS)
}

fn settle_in() {
    nix::unistd::setsid().ok();
    // SAFETY: the name is a C string.
    unsafe { libc::prctl(libc::PR_SET_NAME, c"annexd-fdkeeper".as_ptr()) };
    // Signals to annexd's group or unit are not for the keeper: it ends by itself when there is
    // nothing to keep.
    for kind in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGQUIT, Signal::SIGPIPE] {
        // SAFETY: ignoring a signal installs no handler.
        let _ = unsafe { signal(kind, SigHandler::SigIgn) };
    }
    let _ = SigSet::empty().thread_set_mask();
}

/// Until annexd has ended; who asks meanwhile is told that it lives.
fn wait_for_end(listener: &UnixListener, annexd: &OwnedFd) {
    loop {
        let mut fds =
            [PollFd::new(annexd.as_fd(), PollFlags::POLLIN), PollFd::new(listener.as_fd(), PollFlags::POLLIN)];
        let _ = poll(&mut fds, PollTimeout::NONE);
        if fds[0].any().unwrap_or(false) {
            return;
        }
        if fds[1].any().unwrap_or(false)
            && let Ok((stream, _)) = listener.accept()
        {
            let _ = nix::sys::socket::send(stream.as_raw_fd(), &[BUSY], MsgFlags::MSG_NOSIGNAL);
        }
    }
}

/// Closes what annexd had open (its connections and sockets end now, as if the table had been
/// annexd's alone), but for what is kept, for the standard streams, and for every userfaultfd: one
/// may have come with a message that was not applied yet.
fn close_others(own: &[RawFd], kept: &[(Kept, RawFd)]) {
    let keep: HashSet<RawFd> = own.iter().copied().chain([0, 1, 2]).chain(kept.iter().map(|(_, fd)| *fd)).collect();
    let open: Vec<RawFd> = std::fs::read_dir("/proc/self/fd")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|e| e.file_name().to_str()?.parse().ok())
        .collect();
    for fd in open.into_iter().filter(|fd| !keep.contains(fd)) {
        let what = std::fs::read_link(format!("/proc/self/fd/{fd}"));
        if what.is_ok_and(|what| what.as_os_str() != "anon_inode:[userfaultfd]") {
            // SAFETY: annexd, whose descriptor it was, is no more; nothing in this process refers
            // to it.
            unsafe { libc::close(fd) };
        }
    }
}

/// True: a successor has everything, or nobody is left to need it.
fn await_successor(
    index: &Index,
    listener: &UnixListener,
    kept: &[(Kept, RawFd)],
    holds_keys: bool,
    patience: Duration,
) -> bool {
    let mut since = Instant::now();
    while since.elapsed() < patience {
        let mut fds = [PollFd::new(listener.as_fd(), PollFlags::POLLIN)];
        let _ = poll(&mut fds, 200u16);
        if fds[0].any().unwrap_or(false)
            && let Ok((stream, _)) = listener.accept()
        {
            if hand_over(index, stream) {
                return true;
            }
            since = Instant::now();
        }
        if !any_lives(kept) {
            // A stub alone keeps nothing alive but memory that nobody needs. One whose program
            // lives on after all gets a successor.
            end_stubs(kept);
        }
        if !holds_keys && !any_lives(kept) && contexts(kept).all(has_ended) {
            return true;
        }
    }
    false
}

fn contexts(kept: &[(Kept, RawFd)]) -> impl Iterator<Item = RawFd> {
    kept.iter().filter(|(kept, _)| matches!(kept, Kept::Userfaultfd(_))).map(|(_, fd)| *fd)
}

/// Whether a process that is known has not ended.
fn any_lives(kept: &[(Kept, RawFd)]) -> bool {
    let processes = kept.iter().filter(|(kept, _)| matches!(kept, Kept::Process(_) | Kept::Member(_)));
    processes.into_iter().any(|(_, fd)| {
        // SAFETY: a kept descriptor stays open for this process's life.
        let mut fds = [PollFd::new(unsafe { BorrowedFd::borrow_raw(*fd) }, PollFlags::POLLIN)];
        poll(&mut fds, PollTimeout::ZERO) == Ok(0)
    })
}

fn end_stubs(kept: &[(Kept, RawFd)]) {
    for (_, fd) in kept.iter().filter(|(kept, _)| matches!(kept, Kept::Stub(_))) {
        // SAFETY: as above. One that has ended needs no signal.
        let _ = pidfd_kill(unsafe { BorrowedFd::borrow_raw(*fd) }, libc::SIGKILL);
    }
}

/// Shows a successor the index and waits until it has settled. False: it ended before.
fn hand_over(index: &Index, mut stream: UnixStream) -> bool {
    // SAFETY: takes no arguments.
    let me = unsafe { libc::geteuid() };
    let allowed = getsockopt(&stream, sockopt::PeerCredentials).is_ok_and(|peer| peer.uid() == me);
    let _ = stream.set_read_timeout(Some(SILENCE));
    let mut word = [0u8; 1];
    if !allowed || stream.read_exact(&mut word).is_err() || word[0] != TAKE {
        return word[0] == DONE && allowed;
    }
    let pid = std::process::id() as i32;
    let sent = rights::send(stream.as_fd(), &[MINE], Some(index.fd()))
        .and_then(|_| Ok(nix::sys::socket::send(stream.as_raw_fd(), &pid.to_le_bytes(), MsgFlags::MSG_NOSIGNAL)?));
    sent.is_ok() && stream.read_exact(&mut word).is_ok() && word[0] == DONE
}

/// No successor came: ends every kept process and its children, and holds the userfaultfds until
/// nobody can read through them.
fn end_programs(kept: &[(Kept, RawFd)]) {
    eprintln!(
        "annexd keeper: annexd ended without letting go of its programs and no annexd came to take them over; ending them, since they can't \
         go on without the memory that is with donors"
    );
    let programs: Vec<(i32, BorrowedFd<'_>)> = kept
        .iter()
        .filter_map(|(kept, fd)| match kept {
            // SAFETY: a kept descriptor stays open for this process's life.
            Kept::Process(pid) => Some((*pid, unsafe { BorrowedFd::borrow_raw(*fd) })),
            _ => None,
        })
        .collect();
    // Children first found, then everybody ended; again for those that were being forked meanwhile.
    for _ in 0..3 {
        let mut family: HashSet<i32> = programs.iter().map(|(pid, _)| *pid).collect();
        let mut children: Vec<OwnedFd> = Vec::new();
        for (pid, parent) in parents() {
            if !family.contains(&pid) && family.contains(&parent) {
                family.insert(pid);
                children.extend(pidfd_open(pid));
            }
        }
        for fd in children.iter().map(OwnedFd::as_fd).chain(programs.iter().map(|(_, fd)| *fd)) {
            let _ = pidfd_kill(fd, libc::SIGKILL);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    end_stubs(kept);
    while !contexts(kept).all(has_ended) {
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Every process and its parent, parents first where PIDs tell.
fn parents() -> Vec<(i32, i32)> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut found: Vec<(i32, i32)> = entries
        .filter_map(|e| {
            let pid: i32 = e.file_name().to_str()?.parse().ok()?;
            let stat = std::fs::read_to_string(e.path().join("stat")).ok()?;
            Some((pid, stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(1)?.parse().ok()?))
        })
        .collect();
    found.sort_unstable();
    found
}

/// True if the address space behind a userfaultfd is gone: a question about an address that nobody
/// maps says so. Also if the number is no userfaultfd's (any more): then annexd had closed it.
fn has_ended(uffd: RawFd) -> bool {
    /// `UFFDIO_ZEROPAGE`.
    const ZEROPAGE: libc::c_ulong = 0xC020_AA04;
    let mut arg = [1u64 << 16, 4096, 1, 0];
    // SAFETY: `arg` is the struct this ioctl takes (start, length, mode, result) and outlives the
    // call.
    let result = unsafe { libc::ioctl(uffd, ZEROPAGE, arg.as_mut_ptr()) };
    result < 0 && matches!(Errno::last(), Errno::ESRCH | Errno::EBADF | Errno::ENOTTY)
}
