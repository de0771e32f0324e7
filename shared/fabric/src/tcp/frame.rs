//! The bytes of a data connection after its preamble. All numbers are little-endian.
//!
//! ```text
//!  request, 48 bytes                       answer, 24 bytes
//!   0  operation (below)          1         0  status (below)              1
//!   1  zeros                      3         1  operation answered          1
//!   4  length                     4         2  zeros                       2
//!   8  rkey                       8         4  length of what follows      4
//!  16  address                    8         8  sequence number             8
//!  24  sequence number            8        16  COMPARE_SWAP: bytes found   8
//!  32  COMPARE_SWAP: expect       8
//!  40  COMPARE_SWAP: swap         8
//! ```
//! A WRITE's request is followed by `length` bytes; a READ's answer of status 0 likewise; nothing
//! else carries a payload. A refused WRITE's payload is read and dropped. Sequence numbers grow by
//! one per operation and come back in order: an answer that is out of order, or to a request that
//! was not wholly sent, means that the stream can't be trusted, and ends it. Fences come before the
//! first operation, one at a time, and are numbered for themselves.
//!
//! All requests have one size, so that the headers of a batch of READs lie side by side in the
//! client's table and go out as one piece; the 16 bytes it costs are noise next to a page.

use crate::{ErrorKind, OpKind};
use annex_shared::ids::{RemoteAddr, Rkey};

/// Bytes of a request's header.
pub const REQUEST_LEN: usize = 48;
/// Bytes of an answer's header.
pub const ANSWER_LEN: usize = 24;

/// A fence's address that stands for all connections of the client that were opened in another
/// session.
pub const ALL_EARLIER: u64 = 0;

/// What a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Verb {
    Read = 1,
    Write = 2,
    CompareSwap = 3,
    /// Closes the connection whose number is the address ([`ALL_EARLIER`]: all that this client
    /// opened in another session) and answers when nothing more will be executed for it.
    Fence = 4,
}

/// A request's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    pub verb: Verb,
    pub len: u32,
    pub rkey: Rkey,
    pub addr: RemoteAddr,
    pub seq: u64,
    pub expect: u64,
    pub swap: u64,
}

/// How an operation went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Status {
    Done = 0,
    RemoteAccess = 1,
    RemoteOperation = 2,
}

/// An answer's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    pub status: Status,
    pub verb: Verb,
    pub len: u32,
    pub seq: u64,
    pub value: u64,
}

/// Bytes that are not a header: the stream is out of step and must be given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the peer sent something that is not a frame")]
pub struct FrameError;

impl Verb {
    fn parse(byte: u8) -> Result<Verb, FrameError> {
        match byte {
            1 => Ok(Verb::Read),
            2 => Ok(Verb::Write),
            3 => Ok(Verb::CompareSwap),
            4 => Ok(Verb::Fence),
            _ => Err(FrameError),
        }
    }
}

impl From<OpKind> for Verb {
    fn from(kind: OpKind) -> Verb {
        match kind {
            OpKind::Read => Verb::Read,
            OpKind::Write => Verb::Write,
            OpKind::CompareSwap { .. } => Verb::CompareSwap,
        }
    }
}

impl Status {
    fn parse(byte: u8) -> Result<Status, FrameError> {
        match byte {
            0 => Ok(Status::Done),
            1 => Ok(Status::RemoteAccess),
            2 => Ok(Status::RemoteOperation),
            _ => Err(FrameError),
        }
    }

    pub fn result(self) -> Result<(), ErrorKind> {
        match self {
            Status::Done => Ok(()),
            Status::RemoteAccess => Err(ErrorKind::RemoteAccess),
            Status::RemoteOperation => Err(ErrorKind::RemoteOperation),
        }
    }
}

impl From<Result<(), ErrorKind>> for Status {
    fn from(result: Result<(), ErrorKind>) -> Status {
        match result {
            Ok(()) => Status::Done,
            Err(ErrorKind::RemoteAccess) => Status::RemoteAccess,
            Err(_) => Status::RemoteOperation,
        }
    }
}

impl Request {
    pub fn encode(&self, to: &mut [u8; REQUEST_LEN]) {
        to[0] = self.verb as u8;
        to[1..4].fill(0);
        to[4..8].copy_from_slice(&self.len.to_le_bytes());
        to[8..16].copy_from_slice(&self.rkey.0.to_le_bytes());
        to[16..24].copy_from_slice(&self.addr.0.to_le_bytes());
        to[24..32].copy_from_slice(&self.seq.to_le_bytes());
        to[32..40].copy_from_slice(&self.expect.to_le_bytes());
        to[40..48].copy_from_slice(&self.swap.to_le_bytes());
    }

    pub fn parse(from: &[u8; REQUEST_LEN]) -> Result<Request, FrameError> {
        if from[1..4] != [0; 3] {
            return Err(FrameError);
        }
        Ok(Request {
            verb: Verb::parse(from[0])?,
            len: u32_at(from, 4),
            rkey: Rkey(u64_at(from, 8)),
            addr: RemoteAddr(u64_at(from, 16)),
            seq: u64_at(from, 24),
            expect: u64_at(from, 32),
            swap: u64_at(from, 40),
        })
    }
}

impl Answer {
    pub fn encode(&self, to: &mut [u8; ANSWER_LEN]) {
        to[0] = self.status as u8;
        to[1] = self.verb as u8;
        to[2..4].fill(0);
        to[4..8].copy_from_slice(&self.len.to_le_bytes());
        to[8..16].copy_from_slice(&self.seq.to_le_bytes());
        to[16..24].copy_from_slice(&self.value.to_le_bytes());
    }

    pub fn parse(from: &[u8; ANSWER_LEN]) -> Result<Answer, FrameError> {
        if from[2..4] != [0; 2] {
            return Err(FrameError);
        }
        Ok(Answer {
            status: Status::parse(from[0])?,
            verb: Verb::parse(from[1])?,
            len: u32_at(from, 4),
            seq: u64_at(from, 8),
            value: u64_at(from, 16),
        })
    }
}

#[inline]
fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut le = [0; 4];
    le.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(le)
}

#[inline]
fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut le = [0; 8];
    le.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(le)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_layout_is_the_documented_one() {
        let request = Request {
            verb: Verb::CompareSwap,
            len: 8,
            rkey: Rkey(0x11),
            addr: RemoteAddr(0x22),
            seq: 0x33,
            expect: 0x44,
            swap: 0x55,
        };
        let mut bytes = [0xff; REQUEST_LEN];
        request.encode(&mut bytes);
        let at = |i: usize| bytes[i];
        assert_eq!([at(0), at(4), at(8), at(16), at(24), at(32), at(40)], [3, 8, 0x11, 0x22, 0x33, 0x44, 0x55]);
        assert_eq!(bytes.iter().filter(|b| **b != 0).count(), 7);
    }

    proptest! {
        #[test]
        fn any_bytes_are_refused_or_read_back_as_themselves(
            request in prop::array::uniform32(any::<u8>()), rest in prop::array::uniform16(any::<u8>()), verb in 0u8..6
        ) {
            let mut bytes = [0; REQUEST_LEN];
            bytes[..32].copy_from_slice(&request);
            bytes[32..].copy_from_slice(&rest);
            bytes[0] = verb;
            bytes[1..4].fill(0);
            let mut again = [0; REQUEST_LEN];
            match Request::parse(&bytes) {
                Ok(parsed) => { parsed.encode(&mut again); prop_assert_eq!(bytes, again) }
                Err(FrameError) => prop_assert!(verb == 0 || verb == 5),
            }
        }

        #[test]
        fn an_answer_reads_back(len: u32, seq: u64, value: u64) {
            let answer = Answer { status: Status::RemoteAccess, verb: Verb::Write, len, seq, value };
            let mut bytes = [0xff; ANSWER_LEN];
            answer.encode(&mut bytes);
            prop_assert_eq!(Answer::parse(&bytes), Ok(answer));
            bytes[0] = 3;
            prop_assert_eq!(Answer::parse(&bytes), Err(FrameError));
        }
    }
}
