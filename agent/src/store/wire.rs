//! Messages that carry descriptors: to systemd in its own words, to the keeper in 16 bytes.
//!
//! A message to or from the keeper is what it is about (1 byte: keep, forget, kept, end) and a
//! name, padded with zeros. `keep` and `kept` carry one descriptor.

use annex_host::rights;
use std::env;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixStream};

/// Bytes of a message to or from the keeper.
const LEN: usize = 16;

/// What a message to or from the keeper is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Keep = 1,
    Forget = 2,
    /// From the keeper, for each descriptor it has, when an agent connects.
    Kept = 3,
    /// From the keeper: that was all.
    End = 4,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Message {
    pub(super) kind: Kind,
    pub(super) name: String,
}

impl Message {
    pub(super) fn keep(name: &str) -> Message {
        Message { kind: Kind::Keep, name: name.to_owned() }
    }

    pub(super) fn forget(name: &str) -> Message {
        Message { kind: Kind::Forget, name: name.to_owned() }
    }

    pub(super) fn send(&self, to: &UnixStream, fd: Option<BorrowedFd<'_>>) -> io::Result<()> {
        let mut bytes = [0; LEN];
        bytes[0] = self.kind as u8;
        let name = bytes[1..].get_mut(..self.name.len()).ok_or_else(|| malformed("a name is too long"))?;
        name.copy_from_slice(self.name.as_bytes());
        send(to.as_fd(), &bytes, fd)
    }

    /// `None`: the other side is gone.
    pub(super) fn receive(from: &UnixStream) -> io::Result<Option<(Message, Option<OwnedFd>)>> {
        let mut bytes = [0; LEN];
        let (received, fd) = rights::receive(from.as_fd(), &mut bytes)?;
        if received == 0 {
            return Ok(None);
        }
        let mut stream = from;
        stream.read_exact(&mut bytes[received..])?;
        let kind = match bytes[0] {
            1 => Kind::Keep,
            2 => Kind::Forget,
            3 => Kind::Kept,
            4 => Kind::End,
            _ => return Err(malformed("a message is none that this build knows")),
        };
        let name = String::from_utf8(bytes[1..].iter().copied().take_while(|b| *b != 0).collect());
        Ok(Some((Message { kind, name: name.map_err(|_| malformed("a name is no text"))? }, fd)))
    }
}

/// Sends one message, whole, with or without a descriptor.
pub(super) fn send(to: BorrowedFd<'_>, bytes: &[u8], fd: Option<BorrowedFd<'_>>) -> io::Result<()> {
    let sent = rights::send(to, bytes, fd)?;
    if sent == bytes.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
}

/// A socket to the service manager, if there is one (`$NOTIFY_SOCKET`).
pub(super) fn notify_socket() -> io::Result<Option<UnixDatagram>> {
    let Some(path) = env::var_os("NOTIFY_SOCKET") else { return Ok(None) };
    let address = match path.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(&path)?,
    };
    let socket = UnixDatagram::unbound()?;
    socket.connect_addr(&address)?;
    Ok(Some(socket))
}

fn malformed(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}
