//! The bytes of a shm connection after its preamble and answer, over the agent's Unix socket.
//! Little-endian.
//!
//! ```text
//!  request, 16 bytes                       answer, 24 bytes
//!   0  1 = lease board, 2 = slab  1         0  0 = done, 1 = remote access error,
//!   1  zeros                      7            2 = remote operation error         1
//!   8  rkey (slab)                8         1  zeros                              3
//!                                           4  board slot (slab)                  4
//!                                           8  offset in the memfd (slab)         8
//!                                          16  length                             8
//! ```
//! An answer of status 0 carries exactly one descriptor (`SCM_RIGHTS`). One request is outstanding
//! at a time. The connection stays open while the client uses the memory: its end tells each side
//! that the other is gone.

use crate::ErrorKind;
use annex_host::rights;
use annex_shared::ids::Rkey;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

/// Bytes of a request.
pub const REQUEST_LEN: usize = 16;
/// Bytes of an answer.
pub const ANSWER_LEN: usize = 24;

/// What a client asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    Board,
    Slab(Rkey),
}

/// Where the memory lies in the descriptor that comes with this.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    pub board_slot: u32,
    pub offset: u64,
    pub len: u64,
}

impl Request {
    pub fn write_to(self, to: &mut impl Write) -> io::Result<()> {
        let (kind, rkey) = match self {
            Request::Board => (1, 0),
            Request::Slab(rkey) => (2, rkey.0),
        };
        let mut bytes = [0; REQUEST_LEN];
        bytes[0] = kind;
        bytes[8..].copy_from_slice(&rkey.to_le_bytes());
        to.write_all(&bytes)
    }

    /// Reads one request; `None` if the client closed the connection instead.
    pub fn read_from(from: &mut impl Read) -> io::Result<Option<Request>> {
        let mut bytes = [0; REQUEST_LEN];
        if from.read(&mut bytes[..1])? == 0 {
            return Ok(None);
        }
        from.read_exact(&mut bytes[1..])?;
        let rkey = u64_at(&bytes, 8);
        match bytes[0] {
            1 if rkey == 0 && bytes[1..8] == [0; 7] => Ok(Some(Request::Board)),
            2 if bytes[1..8] == [0; 7] => Ok(Some(Request::Slab(Rkey(rkey)))),
            _ => Err(malformed("the client's request is none that this build knows")),
        }
    }
}

/// Answers a request.
pub fn send_answer(to: &UnixStream, answer: Result<(Region, BorrowedFd<'_>), ErrorKind>) -> io::Result<()> {
    let mut bytes = [0; ANSWER_LEN];
    let mut with = None;
    match answer {
        Ok((region, fd)) => {
            bytes[4..8].copy_from_slice(&region.board_slot.to_le_bytes());
            bytes[8..16].copy_from_slice(&region.offset.to_le_bytes());
            bytes[16..24].copy_from_slice(&region.len.to_le_bytes());
            with = Some(fd);
        }
        Err(ErrorKind::RemoteAccess) => bytes[0] = 1,
        Err(_) => bytes[0] = 2,
    }
    let sent = rights::send(to.as_fd(), &bytes, with)?;
    let mut stream = to;
    stream.write_all(&bytes[sent..])
}

/// Receives an answer. The outer error is the connection's, the inner one the agent's verdict.
pub fn receive_answer(from: &UnixStream) -> io::Result<Result<(Region, OwnedFd), ErrorKind>> {
    let mut bytes = [0; ANSWER_LEN];
    let (received, fd) = rights::receive(from.as_fd(), &mut bytes)?;
    if received == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let mut stream = from;
    stream.read_exact(&mut bytes[received..])?;
    match (bytes[0], fd) {
        (0, Some(fd)) => {
            let mut slot = [0; 4];
            slot.copy_from_slice(&bytes[4..8]);
            let board_slot = u32::from_le_bytes(slot);
            Ok(Ok((Region { board_slot, offset: u64_at(&bytes, 8), len: u64_at(&bytes, 16) }, fd)))
        }
        (1, None) => Ok(Err(ErrorKind::RemoteAccess)),
        (2, None) => Ok(Err(ErrorKind::RemoteOperation)),
        _ => Err(malformed("the agent's answer makes no sense")),
    }
}

fn malformed(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut le = [0; 8];
    le.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(le)
}
