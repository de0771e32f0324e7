//! Requests from bytes, however they were cut up on the way.
//!
//! A request is an array of bulk strings (`*2\r\n$3\r\nGET\r\n$1\r\nk\r\n`) or, if it does not
//! begin with `*`, one line of text. The parser keeps what it knows of an unfinished request and
//! never looks at a byte twice, so that a client that sends one byte at a time costs no more than
//! one that does not.
//!
//! Nothing is allocated because a client *says* that much will come: only what has arrived takes
//! memory.

use super::inline;
use crate::arguments::weight;
use crate::text::integer;
use bytes::{Buf, Bytes, BytesMut};

/// The longest line: an inline request, a count or a length. Redis' `PROTO_INLINE_MAX_SIZE`.
pub(super) const MAX_LINE: usize = 64 << 10;
/// An argument this large stays where it was read; a smaller one is copied, so that it does not
/// keep a read buffer alive.
const KEEP_IN_PLACE: usize = 16 << 10;
/// The most arguments a request may have: `INT_MAX`, as in Redis.
const MAX_ARGS: i64 = i32::MAX as i64;
/// What a client that has not authenticated yet may ask for at most.
const UNAUTHENTICATED_ARGS: i64 = 10;
const UNAUTHENTICATED_BULK: i64 = 16384;
/// Arguments that are parsed before others have their turn.
const ARGS_AT_ONCE: usize = 4096;
/// Room for arguments that is made before any of them has arrived.
const FIRST_ARGS: usize = 8;

/// What is allowed at the moment.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// `proto-max-bulk-len`, in bytes.
    pub bulk: u64,
    pub authenticated: bool,
}

/// The client does not speak RESP, or asks for too much. The connection can't go on after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    #[error("Protocol error: invalid multibulk length")]
    MultibulkLength,
    #[error("Protocol error: too big mbulk count string")]
    MultibulkLine,
    #[error("Protocol error: too big bulk count string")]
    BulkLine,
    #[error("Protocol error: expected '$', got '{}'", printable(*.0))]
    NoBulk(u8),
    #[error("Protocol error: invalid bulk length")]
    BulkLength,
    #[error("Protocol error: unauthenticated multibulk length")]
    UnauthenticatedMultibulk,
    #[error("Protocol error: unauthenticated bulk length")]
    UnauthenticatedBulk,
    #[error("Protocol error: unbalanced quotes in request")]
    Quotes,
    #[error("Protocol error: too big inline request")]
    InlineLine,
}

/// An error is one line.
fn printable(byte: u8) -> char {
    if byte == b'\r' || byte == b'\n' { ' ' } else { char::from(byte) }
}

/// What is known of the request that is being read.
#[derive(Debug, Default)]
pub struct Parser {
    /// Arguments still to come; 0 between requests.
    missing: usize,
    /// Length of the argument being read, once its line has been.
    bulk: Option<usize>,
    args: Vec<Bytes>,
    /// The memory that these take.
    held: usize,
    /// There is more to be parsed, which the others' turn comes before.
    is_paused: bool,
    /// So much of the line at the head of the buffer is known not to end it.
    searched: usize,
}

enum Line {
    /// Its length without the line end.
    Whole(usize),
    Partial,
}

impl Parser {
    /// Takes the next request off the buffer. `None`: more must be read first, unless
    /// [`Parser::is_paused`]. A request without arguments (an empty line, `*0`) is passed over.
    pub fn next(&mut self, buffer: &mut BytesMut, limits: &Limits) -> Result<Option<Vec<Bytes>>, ProtocolError> {
        loop {
            if self.missing == 0 {
                match buffer.first() {
                    None => return Ok(None),
                    Some(b'*') => match self.multibulk_count(buffer, limits)? {
                        None => return Ok(None),
                        Some(0) => continue,
                        Some(count) => {
                            self.missing = count;
                            self.args = Vec::with_capacity(count.min(FIRST_ARGS));
                        }
                    },
                    Some(_) => match self.inline(buffer)? {
                        None => return Ok(None),
                        Some(args) if args.is_empty() => continue,
                        Some(args) => return Ok(Some(args)),
                    },
                }
            }
            return Ok(self.arguments(buffer, limits)?.then(|| {
                self.held = 0;
                std::mem::take(&mut self.args)
            }));
        }
    }

    /// Whether a request has begun and is not complete.
    pub fn is_within_request(&self) -> bool {
        self.missing > 0
    }

    /// Whether the last call left off within a request of very many arguments, though there is more
    /// to be parsed.
    pub fn is_paused(&self) -> bool {
        self.is_paused
    }

    /// Bytes that the argument at the head of the buffer still needs, its line end included; 0 if
    /// that is not known.
    pub fn wanted(&self, buffered: usize) -> usize {
        self.bulk.map_or(0, |length| (length + 2).saturating_sub(buffered))
    }

    /// The memory of the arguments that are complete while their request is not.
    pub fn held(&self) -> usize {
        self.held
    }

    fn multibulk_count(&mut self, buffer: &mut BytesMut, limits: &Limits) -> Result<Option<usize>, ProtocolError> {
        let Line::Whole(end) = self.line(buffer, b'\r', ProtocolError::MultibulkLine)? else { return Ok(None) };
        let count = integer::parse(&buffer[1..end]).filter(|count| *count <= MAX_ARGS);
        let count = count.ok_or(ProtocolError::MultibulkLength)?;
        if count > UNAUTHENTICATED_ARGS && !limits.authenticated {
            return Err(ProtocolError::UnauthenticatedMultibulk);
        }
        buffer.advance(end + 2);
        Ok(Some(usize::try_from(count).unwrap_or(0)))
    }

    /// Reads arguments; true once all are there.
    fn arguments(&mut self, buffer: &mut BytesMut, limits: &Limits) -> Result<bool, ProtocolError> {
        let mut parsed = 0;
        self.is_paused = false;
        while self.missing > 0 {
            if parsed == ARGS_AT_ONCE && !buffer.is_empty() {
                self.is_paused = true;
                return Ok(false);
            }
            parsed += 1;
            let length = match self.bulk {
                Some(length) => length,
                None => match self.bulk_length(buffer, limits)? {
                    None => return Ok(false),
                    Some(length) => length,
                },
            };
            if buffer.len() < length + 2 {
                self.bulk = Some(length);
                return Ok(false);
            }
            let argument = if length >= KEEP_IN_PLACE {
                buffer.split_to(length).freeze()
            } else {
                let argument = Bytes::copy_from_slice(&buffer[..length]);
                buffer.advance(length);
                argument
            };
            self.held += weight(&argument);
            self.args.push(argument);
            // Redis does not look at the two bytes behind an argument either.
            buffer.advance(2);
            self.bulk = None;
            self.missing -= 1;
        }
        Ok(true)
    }

    fn bulk_length(&mut self, buffer: &mut BytesMut, limits: &Limits) -> Result<Option<usize>, ProtocolError> {
        let Line::Whole(end) = self.line(buffer, b'\r', ProtocolError::BulkLine)? else { return Ok(None) };
        if buffer[0] != b'$' {
            return Err(ProtocolError::NoBulk(buffer[0]));
        }
        let length = integer::parse(&buffer[1..end]).filter(|length| *length >= 0 && *length as u64 <= limits.bulk);
        let length = length.ok_or(ProtocolError::BulkLength)?;
        if length > UNAUTHENTICATED_BULK && !limits.authenticated {
            return Err(ProtocolError::UnauthenticatedBulk);
        }
        buffer.advance(end + 2);
        Ok(Some(length as usize))
    }

    /// The line at the head of the buffer, up to `\r` and whatever byte follows that, as in Redis.
    /// There, too, a zero byte hides everything behind it, and the line becomes too long in the
    /// end.
    fn line(&mut self, buffer: &BytesMut, end: u8, too_long: ProtocolError) -> Result<Line, ProtocolError> {
        match self.find(buffer, end) {
            None if buffer.len() > MAX_LINE => Err(too_long),
            None => Ok(Line::Partial),
            Some(at) if at + 1 >= buffer.len() => {
                self.searched = at;
                Ok(Line::Partial)
            }
            Some(at) => {
                self.searched = 0;
                Ok(Line::Whole(at))
            }
        }
    }

    fn inline(&mut self, buffer: &mut BytesMut) -> Result<Option<Vec<Bytes>>, ProtocolError> {
        let Some(newline) = self.find(buffer, b'\n') else {
            return if buffer.len() > MAX_LINE { Err(ProtocolError::InlineLine) } else { Ok(None) };
        };
        self.searched = 0;
        let line = &buffer[..newline];
        let args = inline::split(line.strip_suffix(b"\r").unwrap_or(line)).ok_or(ProtocolError::Quotes)?;
        buffer.advance(newline + 1);
        Ok(Some(args))
    }

    fn find(&mut self, buffer: &BytesMut, end: u8) -> Option<usize> {
        let from = self.searched.min(buffer.len());
        match buffer[from..].iter().position(|byte| *byte == end || *byte == 0) {
            Some(at) if buffer[from + at] == end => Some(from + at),
            // The zero byte is found again next time, at once.
            Some(at) => {
                self.searched = from + at;
                None
            }
            None => {
                self.searched = buffer.len();
                None
            }
        }
    }
}
