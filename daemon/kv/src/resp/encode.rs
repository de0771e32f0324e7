//! Replies as bytes.
//!
//! Small replies are gathered in one buffer, so that a pipeline's replies go out with one write. A
//! large value is not copied there: the bytes the store handed out go to the socket themselves,
//! behind what was gathered before them.

use crate::reply::{Protocol, Reply};
use bytes::{Buf, Bytes, BytesMut};
use std::collections::VecDeque;
use std::io::IoSlice;

/// A value this large is sent from where it lies.
const SEND_IN_PLACE: usize = 16 << 10;
/// A gathering buffer that has grown beyond this is given back once it is empty.
const KEEP_BUFFER: usize = 64 << 10;
/// One write takes about so many bytes at most: the kernel copies them, and nobody else has a turn
/// meanwhile.
const WRITE: usize = 256 << 10;
/// How many pieces one write takes at most.
pub const PIECES: usize = 16;

/// What a client is still to be sent.
#[derive(Debug, Default)]
pub struct Output {
    /// Goes out first.
    pieces: VecDeque<Bytes>,
    gathered: BytesMut,
    queued: usize,
    /// Bytes of the first of these that are sent, whose memory is still there.
    sent: usize,
}

impl Reply {
    /// As this protocol has it now, whatever the connection speaks when it is sent.
    pub fn encoded(&self, protocol: Protocol) -> Reply {
        let mut output = Output::default();
        output.push(self, protocol);
        output.set_apart();
        let pieces: Vec<&[u8]> = output.pieces.iter().map(|piece| &piece[..]).collect();
        Reply::Encoded(Bytes::from(pieces.concat()))
    }
}

impl Output {
    /// Bytes not sent yet.
    pub fn len(&self) -> usize {
        self.queued + self.gathered.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of memory for these.
    pub fn memory(&self) -> usize {
        self.len() + self.sent
    }

    /// Large values that wait to be sent, as `CLIENT LIST` counts them.
    pub fn pieces(&self) -> usize {
        self.pieces.len()
    }

    pub fn push(&mut self, reply: &Reply, protocol: Protocol) {
        let v3 = protocol == Protocol::Resp3;
        match reply {
            Reply::Simple(text) => self.text(b'+', text),
            Reply::Error(text) => self.error(text),
            Reply::Integer(value) => self.number(b':', *value),
            Reply::Bulk(bytes) => self.bulk(bytes),
            Reply::Null | Reply::NullArray if v3 => self.raw(b"_\r\n"),
            Reply::Null => self.raw(b"$-1\r\n"),
            Reply::NullArray => self.raw(b"*-1\r\n"),
            Reply::Array(items) => self.aggregate(b'*', items.len(), items, protocol),
            Reply::Set(items) => self.aggregate(if v3 { b'~' } else { b'*' }, items.len(), items, protocol),
            Reply::Map(pairs) => {
                let (kind, length) = if v3 { (b'%', pairs.len()) } else { (b'*', pairs.len() * 2) };
                self.number(kind, length as i64);
                for (key, value) in pairs {
                    self.push(key, protocol);
                    self.push(value, protocol);
                }
            }
            Reply::Double(value) if v3 => self.text(b',', &format_double(*value)),
            Reply::Double(value) => self.bulk(&Bytes::from(format_double(*value))),
            Reply::Boolean(value) if v3 => self.raw(if *value { b"#t\r\n" } else { b"#f\r\n" }),
            Reply::Boolean(value) => self.number(b':', i64::from(*value)),
            Reply::Verbatim(bytes) if v3 => {
                self.number(b'=', bytes.len() as i64 + 4);
                self.raw(b"txt:");
                self.body(bytes);
            }
            Reply::Verbatim(bytes) => self.bulk(bytes),
            Reply::Encoded(bytes) => self.raw(bytes),
            Reply::Silence => {}
        }
    }

    /// The head of a bulk string, whose bytes are to follow as pieces, and then its end.
    pub fn push_head(&mut self, bytes: usize) {
        self.number(b'$', bytes as i64);
    }

    pub fn push_piece(&mut self, piece: Bytes) {
        self.set_apart();
        self.queued += piece.len();
        self.pieces.push_back(piece);
    }

    pub fn push_end(&mut self) {
        self.raw(b"\r\n");
    }

    /// The head of an array: its items are to follow.
    pub fn push_array(&mut self, items: usize) {
        self.number(b'*', items as i64);
    }

    /// What to write next, as one gathered write.
    pub fn slices<'a>(&'a self, into: &mut [IoSlice<'a>; PIECES]) -> usize {
        let gathered = (!self.gathered.is_empty()).then_some(&self.gathered[..]);
        let all = self.pieces.iter().map(|piece| &piece[..]).chain(gathered);
        let mut room = WRITE;
        let mut count = 0;
        for (piece, slot) in all.zip(into.iter_mut()) {
            if room == 0 {
                break;
            }
            let piece = &piece[..piece.len().min(room)];
            room -= piece.len();
            *slot = IoSlice::new(piece);
            count += 1;
        }
        count
    }

    /// So many bytes were written.
    pub fn advance(&mut self, mut written: usize) {
        while let Some(piece) = self.pieces.front_mut() {
            if written < piece.len() {
                piece.advance(written);
                self.queued -= written;
                self.sent += written;
                return;
            }
            written -= piece.len();
            self.queued -= piece.len();
            self.sent = 0;
            self.pieces.pop_front();
        }
        self.gathered.advance(written.min(self.gathered.len()));
        self.sent += written;
        if self.gathered.is_empty() {
            self.sent = 0;
            if self.gathered.capacity() > KEEP_BUFFER {
                self.gathered = BytesMut::new();
            } else {
                self.gathered.clear();
            }
        }
    }

    /// Gives back what is not needed while nothing is sent.
    pub fn shrink(&mut self) {
        if self.is_empty() {
            *self = Output::default();
        }
    }

    /// What goes out before all that is here.
    pub fn put_first(&mut self, mut other: Output) {
        other.set_apart();
        self.queued += other.queued;
        self.sent += other.sent;
        for piece in other.pieces.into_iter().rev() {
            self.pieces.push_front(piece);
        }
    }

    /// Makes a piece of what was gathered.
    fn set_apart(&mut self) {
        if self.gathered.is_empty() {
            return;
        }
        let gathered = self.gathered.split().freeze();
        self.queued += gathered.len();
        self.pieces.push_back(gathered);
    }

    fn aggregate(&mut self, kind: u8, length: usize, items: &[Reply], protocol: Protocol) {
        self.number(kind, length as i64);
        items.iter().for_each(|item| self.push(item, protocol));
    }

    fn bulk(&mut self, bytes: &Bytes) {
        self.number(b'$', bytes.len() as i64);
        self.body(bytes);
    }

    fn body(&mut self, bytes: &Bytes) {
        if bytes.len() >= SEND_IN_PLACE {
            self.push_piece(bytes.clone());
        } else {
            self.raw(bytes);
        }
        self.raw(b"\r\n");
    }

    fn raw(&mut self, bytes: &[u8]) {
        self.reserve(bytes.len());
        self.gathered.extend_from_slice(bytes);
    }

    /// Makes room for bytes that are gathered. What is sent of the buffer already makes room, or
    /// goes with it.
    fn reserve(&mut self, bytes: usize) {
        let room = self.gathered.capacity();
        self.gathered.reserve(bytes);
        if self.gathered.capacity() > room && self.pieces.is_empty() {
            self.sent = 0;
        }
    }

    /// A line must not hold line ends: what a client sent may be in it.
    fn text(&mut self, kind: u8, text: &str) {
        self.reserve(text.len() + 3);
        self.raw(&[kind]);
        if text.bytes().any(|byte| byte == b'\r' || byte == b'\n') {
            self.raw(text.replace(['\r', '\n'], " ").as_bytes());
        } else {
            self.raw(text.as_bytes());
        }
        self.raw(b"\r\n");
    }

    fn error(&mut self, text: &str) {
        let text = text.split('\0').next().unwrap_or_default().trim_matches(['\r', '\n']);
        if text.is_ascii() {
            return self.text(b'-', text);
        }
        self.raw(b"-");
        for character in text.chars() {
            match u8::try_from(character) {
                Ok(b'\r' | b'\n') => self.raw(b" "),
                Ok(byte) => self.raw(&[byte]),
                Err(_) => self.raw(character.encode_utf8(&mut [0; 4]).as_bytes()),
            }
        }
        self.raw(b"\r\n");
    }

    fn number(&mut self, kind: u8, value: i64) {
        // The kind, a sign, 19 digits and the line end.
        let mut line = [0u8; 23];
        let mut at = line.len() - 2;
        line[at..].copy_from_slice(b"\r\n");
        let mut rest = value.unsigned_abs();
        loop {
            at -= 1;
            line[at] = b'0' + (rest % 10) as u8;
            rest /= 10;
            if rest == 0 {
                break;
            }
        }
        if value < 0 {
            at -= 1;
            line[at] = b'-';
        }
        at -= 1;
        line[at] = kind;
        self.raw(&line[at..]);
    }
}

/// C's `%.17g`, which is how Redis 7 writes a double.
pub fn format_double(value: f64) -> String {
    const DIGITS: i32 = 17;
    if value.is_nan() {
        return if value.is_sign_negative() { "-nan".into() } else { "nan".into() };
    }
    if value.is_infinite() {
        return if value > 0.0 { "inf".into() } else { "-inf".into() };
    }
    let scientific = format!("{value:.*e}", DIGITS as usize - 1);
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if !(-4..DIGITS).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{}e{sign}{:02}", without_trailing_zeros(mantissa), exponent.abs());
    }
    let decimals = usize::try_from(DIGITS - 1 - exponent).unwrap_or(0);
    without_trailing_zeros(&format!("{value:.decimals$}")).into()
}

fn without_trailing_zeros(number: &str) -> &str {
    if number.contains('.') { number.trim_end_matches('0').trim_end_matches('.') } else { number }
}
