//! Processes by descriptor: a pidfd can't come to mean another process.

use nix::errno::Errno;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

pub fn pidfd_open(pid: i32) -> io::Result<OwnedFd> {
    // SAFETY: takes numbers only; a non-negative result is a new descriptor that nobody else owns.
    unsafe { owned(libc::syscall(libc::SYS_pidfd_open, pid, 0)) }
}

/// A copy of descriptor `fd` of the process behind `pidfd`.
pub fn pidfd_getfd(pidfd: &OwnedFd, fd: i32) -> io::Result<OwnedFd> {
    // SAFETY: as above.
    unsafe { owned(libc::syscall(libc::SYS_pidfd_getfd, pidfd.as_raw_fd(), fd, 0)) }
}

/// # Safety
/// A non-negative `result` must be a descriptor that nobody owns.
unsafe fn owned(result: i64) -> io::Result<OwnedFd> {
    // SAFETY: the caller's promise.
    Errno::result(result).map(|fd| unsafe { OwnedFd::from_raw_fd(fd as i32) }).map_err(io::Error::from)
}

/// Sends a signal through a pidfd: it can't hit a recycled PID.
pub fn pidfd_kill(pidfd: BorrowedFd<'_>, signal: i32) -> io::Result<()> {
    let none = std::ptr::null::<libc::siginfo_t>();
    // SAFETY: a null siginfo is allowed.
    let result = unsafe { libc::syscall(libc::SYS_pidfd_send_signal, pidfd.as_raw_fd(), signal, none, 0) };
    Errno::result(result).map(drop).map_err(io::Error::from)
}
