//! The keeper: a process of a few lines that outlives annexd, so that the end of annexd is never the silent end of a program's memory.
//!
//! When the last descriptor of a userfaultfd closes, its evicted pages read as zeros. So every userfaultfd is lent to the
//! keeper as well, with a pidfd of every process annexd manages. If annexd ends without having let go of them (it crashed or
//! was killed), the keeper ends the programs that depend on it, says so, and keeps the userfaultfds until their address spaces are
//! gone: whoever touches an evicted page meanwhile waits, and never sees zeros. An orderly stop leaves it nothing to do.
//!
//! annexd talks to it over a `SOCK_SEQPACKET` pair. A message is 17 bytes, little-endian: what (1: keep, 2: drop), kind (8 bytes: 1
//! userfaultfd, 2 process), number (8 bytes); `keep` carries one descriptor.

use anyhow::Context;
use nix::cmsg_space;
use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, ControlMessage, ControlMessageOwned, MsgFlags, SockFlag, SockType, recvmsg, sendmsg, socketpair,
};
use std::collections::{HashMap, HashSet};
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// What annexd starts itself again with to become a keeper.
pub const SUBCOMMAND: &str = "keeper";
/// Exit code of a keeper that had to end programs.
pub const HAD_TO_END_PROGRAMS: u8 = 3;

const KEEP: u8 = 1;
const DROP: u8 = 2;

/// What a kept descriptor is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kept {
    /// A space's userfaultfd, by the space's number.
    Userfaultfd(u64),
    /// A process, by its PID.
    Process(i32),
}

impl Kept {
    fn encode(self, what: u8) -> [u8; 17] {
        let (kind, number) = match self {
            Kept::Userfaultfd(n) => (1u64, n),
            Kept::Process(pid) => (2, pid as u64),
        };
        let mut message = [what; 17];
        message[1..9].copy_from_slice(&kind.to_le_bytes());
        message[9..].copy_from_slice(&number.to_le_bytes());
        message
    }

    fn decode(message: &[u8; 17]) -> Option<(u8, Kept)> {
        let word = |at: usize| u64::from_le_bytes(message[at..at + 8].try_into().expect("eight bytes"));
        let kept = match word(1) {
            1 => Kept::Userfaultfd(word(9)),
            2 => Kept::Process(word(9) as i32),
            _ => return None,
        };
        Some((message[0], kept))
    }
}

/// annexd's end.
pub struct Keeper {
    socket: OwnedFd,
    gone: AtomicBool,
}

impl Keeper {
    /// Starts the keeper process.
    pub fn start() -> io::Result<Keeper> {
        let (ours, theirs) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)
            .map_err(io::Error::from)?;
        // It is never waited for: it ends after annexd.
        Command::new("/proc/self/exe").arg(SUBCOMMAND).stdin(Stdio::from(theirs)).stdout(Stdio::null()).spawn()?;
        Ok(Keeper { socket: ours, gone: AtomicBool::new(false) })
    }

    pub fn keep(&self, kept: Kept, fd: BorrowedFd<'_>) {
        self.send(&kept.encode(KEEP), &[fd.as_raw_fd()]);
    }

    pub fn drop(&self, kept: Kept) {
        self.send(&kept.encode(DROP), &[]);
    }

    fn send(&self, message: &[u8; 17], fds: &[RawFd]) {
        let rights = [ControlMessage::ScmRights(fds)];
        let rights = if fds.is_empty() { &[][..] } else { &rights[..] };
        let sent =
            sendmsg::<()>(self.socket.as_raw_fd(), &[IoSlice::new(message)], rights, MsgFlags::MSG_NOSIGNAL, None);
        if let Err(error) = sent
            && !self.gone.swap(true, Ordering::Relaxed)
        {
            tracing::error!(%error, "the keeper process is gone: if annexd is killed now, programs lose evicted memory in silence; restart annexd");
        }
    }
}

/// The keeper's life, on its standard input. Returns how many programs it had to end.
pub fn run() -> anyhow::Result<usize> {
    nix::unistd::setsid().ok();
    // SAFETY: the name is a C string.
    unsafe { libc::prctl(libc::PR_SET_NAME, c"annexd-keeper".as_ptr()) };
    // Signals to annexd's group or unit are not for the keeper: it ends by itself when there is nothing to keep.
    for signal in [nix::sys::signal::SIGTERM, nix::sys::signal::SIGINT, nix::sys::signal::SIGHUP] {
        // SAFETY: ignoring a signal installs no handler.
        unsafe { nix::sys::signal::signal(signal, nix::sys::signal::SigHandler::SigIgn) }
            .context("failed to ignore signals")?;
    }
    let flags = nix::sys::mman::MlockAllFlags::MCL_CURRENT | nix::sys::mman::MlockAllFlags::MCL_FUTURE;
    nix::sys::mman::mlockall(flags).ok();
    let stdin = io::stdin();
    let mut kept: HashMap<Kept, OwnedFd> = HashMap::new();
    while let Some((what, name, fd)) = receive(stdin.as_fd()).context("failed to hear from annexd")? {
        match (what, fd) {
            (KEEP, Some(fd)) => drop(kept.insert(name, fd)),
            (DROP, _) => drop(kept.remove(&name)),
            _ => {}
        }
    }
    Ok(end_programs(kept))
}

fn receive(socket: BorrowedFd<'_>) -> nix::Result<Option<(u8, Kept, Option<OwnedFd>)>> {
    loop {
        let mut message = [0u8; 17];
        let mut space = cmsg_space!(RawFd);
        let mut parts = [IoSliceMut::new(&mut message)];
        let received = recvmsg::<()>(socket.as_raw_fd(), &mut parts, Some(&mut space), MsgFlags::MSG_CMSG_CLOEXEC);
        let (bytes, fd) = match received {
            Ok(received) => {
                let fds = received.cmsgs()?.find_map(|c| match c {
                    ControlMessageOwned::ScmRights(fds) => fds.first().copied(),
                    _ => None,
                });
                // SAFETY: the kernel has just put the descriptor into our table; nobody else knows it.
                (received.bytes, fds.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }))
            }
            Err(Errno::EINTR) => continue,
            Err(Errno::ECONNRESET) => (0, None),
            Err(e) => return Err(e),
        };
        match bytes {
            0 => return Ok(None),
            17 => {
                if let Some((what, kept)) = Kept::decode(&message) {
                    return Ok(Some((what, kept, fd)));
                }
            }
            _ => {}
        }
    }
}

/// annexd is gone: ends every kept process and its children, and holds the userfaultfds until nobody can read through them.
fn end_programs(kept: HashMap<Kept, OwnedFd>) -> usize {
    let (mut spaces, mut programs) = (Vec::new(), HashMap::new());
    for (name, fd) in kept {
        match name {
            Kept::Process(pid) => drop(programs.insert(pid, fd)),
            Kept::Userfaultfd(_) => spaces.push(fd),
        }
    }
    if programs.is_empty() && spaces.is_empty() {
        return 0;
    }
    let count = programs.len();
    eprintln!(
        "annexd keeper: annexd ended without letting go of {count} processes whose memory is with donors; ending them, since they can't go \
         on without it (start annexd again before you start them anew)"
    );
    // Children first found, then everybody ended; again for those that were being forked meanwhile.
    for _ in 0..3 {
        let mut family: HashSet<i32> = programs.keys().copied().collect();
        let mut children: Vec<OwnedFd> = Vec::new();
        for (pid, parent) in parents() {
            if !family.contains(&pid) && family.contains(&parent) {
                family.insert(pid);
                // SAFETY: takes numbers only.
                let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
                if fd >= 0 {
                    // SAFETY: just made, ours alone.
                    children.push(unsafe { OwnedFd::from_raw_fd(fd as RawFd) });
                }
            }
        }
        for fd in children.iter().chain(programs.values()) {
            let none = std::ptr::null::<libc::siginfo_t>();
            // SAFETY: a null siginfo is allowed; a pidfd can't mean another process than the one it was opened for.
            unsafe { libc::syscall(libc::SYS_pidfd_send_signal, fd.as_raw_fd(), libc::SIGKILL, none, 0) };
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    while !spaces.iter().all(is_over) {
        std::thread::sleep(Duration::from_millis(100));
    }
    count
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

/// True if the address space behind a userfaultfd is gone: a question about an address that nobody maps says so.
fn is_over(uffd: &OwnedFd) -> bool {
    /// `UFFDIO_ZEROPAGE`.
    const ZEROPAGE: libc::c_ulong = 0xC020_AA04;
    let mut arg = [1u64 << 16, 4096, 1, 0];
    // SAFETY: `arg` is the struct this ioctl takes (start, length, mode, result) and outlives the call.
    let result = unsafe { libc::ioctl(uffd.as_raw_fd(), ZEROPAGE, arg.as_mut_ptr()) };
    result < 0 && Errno::last() == Errno::ESRCH
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_back_as_they_were_sent() {
        for kept in [Kept::Userfaultfd(u64::MAX), Kept::Process(4711)] {
            assert_eq!(Kept::decode(&kept.encode(DROP)), Some((DROP, kept)));
        }
        assert_eq!(Kept::decode(&[9; 17]), None);
    }
}
