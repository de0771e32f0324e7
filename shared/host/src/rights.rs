//! Bytes with a descriptor, over a Unix socket.

use nix::cmsg_space;
use nix::errno::Errno;
use nix::sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, recvmsg, sendmsg};
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// Sends bytes, with or without a descriptor; how many went. The descriptor goes with the first of
/// them.
pub fn send(to: BorrowedFd<'_>, bytes: &[u8], fd: Option<BorrowedFd<'_>>) -> io::Result<usize> {
    let fds = fd.map(|fd| [fd.as_raw_fd()]);
    let rights = fds.as_ref().map(|fds| [ControlMessage::ScmRights(fds)]);
    let control = rights.as_ref().map_or(&[][..], |rights| &rights[..]);
    Ok(sendmsg::<()>(to.as_raw_fd(), &[IoSlice::new(bytes)], control, MsgFlags::MSG_NOSIGNAL, None)?)
}

/// Receives bytes, and the descriptor that came with them: how many came (0: the other side is
/// gone), and it.
pub fn receive(from: BorrowedFd<'_>, bytes: &mut [u8]) -> io::Result<(usize, Option<OwnedFd>)> {
    let mut space = cmsg_space!([RawFd; 1]);
    loop {
        let mut pieces = [IoSliceMut::new(bytes)];
        let message = match recvmsg::<()>(from.as_raw_fd(), &mut pieces, Some(&mut space), MsgFlags::MSG_CMSG_CLOEXEC) {
            Err(Errno::EINTR) => continue,
            message => message?,
        };
        let mut fd = None;
        for control in message.cmsgs()? {
            if let ControlMessageOwned::ScmRights(fds) = control {
                for raw in fds {
                    // SAFETY: the kernel has just put this descriptor into our table for us to own.
                    fd = Some(unsafe { OwnedFd::from_raw_fd(raw) });
                }
            }
        }
        return Ok((message.bytes, fd));
    }
}
