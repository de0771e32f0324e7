//! What a client has sent and nobody has begun: its read buffer, and the requests in there.
//!
//! Room is made as bytes come, and given back: when the client is quiet, and when most of a large
//! buffer has been worked off.

use crate::blocking;
use crate::resp::{Limits, Parser, Peeked, ProtocolError, peek};
use crate::server::Stream;
use bytes::{Bytes, BytesMut};
use std::io;
use std::task::{Context, Poll, ready};

/// What a read is given room for, at least and, if the client keeps filling it, at most.
const READ: usize = 16 << 10;
const MAX_READ: usize = 64 << 10;
/// What a client is given that has not authenticated.
const READ_STRANGER: usize = 1 << 10;
/// An empty buffer that is larger by this factor than what is going to be read is given back.
const MUCH: usize = 4;
/// A larger buffer is given back as it is worked off.
const LARGE: usize = 1 << 20;

pub struct Inbox {
    parser: Parser,
    buffer: BytesMut,
    /// Bytes of the memory that the buffer is a part of, at most.
    allocated: usize,
    read_size: usize,
}

impl Default for Inbox {
    fn default() -> Inbox {
        Inbox { parser: Parser::default(), buffer: BytesMut::new(), allocated: 0, read_size: READ }
    }
}

impl Inbox {
    /// Takes the next request. `None`: it is not there whole.
    pub fn next(&mut self, limits: &Limits) -> Result<Option<Vec<Bytes>>, ProtocolError> {
        if self.buffer.is_empty() {
            return Ok(None);
        }
        let request = self.parser.next(&mut self.buffer, limits);
        if self.allocated > LARGE && self.buffer.capacity() < self.allocated / 2 {
            self.replace();
        }
        request
    }

    /// Whether a request is to be asked for again before anything more is read.
    pub fn is_paused(&self) -> bool {
        self.parser.is_paused()
    }

    /// The requests behind those that were taken. `None`: one has been taken in part.
    pub fn peek(&self) -> Option<impl Iterator<Item = Peeked<'_>> + Clone> {
        (!self.parser.is_within_request()).then(|| peek(&self.buffer))
    }

    /// Bytes that are not parsed.
    pub fn len(&self) -> usize {
        self.buffer.len()
    }

    /// Bytes of the buffer besides those that are not parsed.
    pub fn spare(&self) -> usize {
        self.allocated - self.buffer.len()
    }

    /// Bytes that can be read without new memory.
    fn room(&self) -> usize {
        self.buffer.capacity() - self.buffer.len()
    }

    /// The memory that the buffer takes. Room that was never written to takes none.
    pub fn memory(&self) -> usize {
        self.allocated - self.room()
    }

    /// The memory of a request's arguments that were taken while the others have not come.
    pub fn arguments(&self) -> usize {
        self.parser.held()
    }

    /// Reads what has come: how many bytes, 0 at the end of the input.
    pub fn poll_read(
        &mut self,
        stream: &Stream,
        is_stranger: bool,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        // Room is made when there is something to put there: most connections are idle most of the
        // time.
        ready!(stream.poll_readable(context))?;
        let wanted = self.parser.wanted(self.buffer.len());
        // A large argument gets room as it comes, twice as much each time, and never because it was
        // announced.
        let (least, room) = match is_stranger {
            true => (READ_STRANGER, READ_STRANGER),
            false => (READ, self.read_size.max(wanted.min(self.buffer.len()))),
        };
        if self.buffer.is_empty() && self.allocated > MUCH * room {
            self.replace();
        }
        if self.room() < self.read_size.min(least) {
            self.buffer.reserve(room);
            self.allocated = self.allocated.max(self.buffer.capacity());
        }
        let count = ready!(stream.poll_read(&mut self.buffer, context))?;
        let is_full = self.room() == 0;
        self.read_size = if is_full { (self.read_size * 2).min(MAX_READ) } else { READ };
        Poll::Ready(Ok(count))
    }

    /// Nothing more is read or taken.
    pub fn let_go(self) {
        blocking::let_go(self.allocated + self.arguments(), self);
    }

    /// Gives back what a quiet client needs no memory for.
    pub fn shrink(&mut self) {
        if self.buffer.is_empty() || self.buffer.len() < self.allocated / 2 {
            self.replace();
        }
    }

    /// Moves what is left to a buffer of its own size.
    fn replace(&mut self) {
        let mut rest = BytesMut::with_capacity(self.buffer.len());
        rest.extend_from_slice(&self.buffer);
        let bytes = std::mem::replace(&mut self.allocated, rest.capacity());
        blocking::let_go(bytes, std::mem::replace(&mut self.buffer, rest));
    }
}
