//! What a client is answered, in RESP2 or RESP3.

use bytes::Bytes;
use std::borrow::Cow;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protocol {
    #[default]
    Resp2,
    Resp3,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    /// `+…`
    Simple(Cow<'static, str>),
    /// `-…`, code first. A character up to U+00FF is the byte of that number: a client's words may
    /// be in it. A zero byte ends the text.
    Error(Cow<'static, str>),
    Integer(i64),
    Bulk(Bytes),
    /// RESP2: null bulk string.
    Null,
    /// RESP2: null array.
    NullArray,
    Array(Vec<Reply>),
    /// RESP2: a flat array.
    Map(Vec<(Reply, Reply)>),
    /// RESP2: an array.
    Set(Vec<Reply>),
    /// RESP2: a bulk string.
    Double(f64),
    /// RESP2: 0 or 1.
    Boolean(bool),
    /// Text for people (INFO, LATENCY DOCTOR). RESP2: a bulk string.
    Verbatim(Bytes),
    /// A reply that was made already, in the protocol of its time (EXEC with a HELLO in it).
    Encoded(Bytes),
    /// Nothing is sent at all (CLIENT REPLY OFF).
    Silence,
}

impl Reply {
    pub const OK: Reply = Reply::Simple(Cow::Borrowed("OK"));

    pub fn bulk(text: impl Into<Vec<u8>>) -> Reply {
        Reply::Bulk(Bytes::from(text.into()))
    }

    /// A bulk string that is known when compiling.
    pub const fn word(text: &'static str) -> Reply {
        Reply::Bulk(Bytes::from_static(text.as_bytes()))
    }

    /// The memory it takes.
    pub fn weight(&self) -> usize {
        let of = |replies: &[Reply]| replies.iter().map(Reply::weight).sum();
        size_of::<Reply>()
            + match self {
                Reply::Bulk(bytes) | Reply::Verbatim(bytes) => bytes.len(),
                Reply::Error(text) => text.len(),
                Reply::Array(replies) | Reply::Set(replies) => of(replies),
                Reply::Map(pairs) => pairs.iter().map(|(key, value)| key.weight() + value.weight()).sum(),
                _ => 0,
            }
    }

    pub fn verbatim(text: impl Into<String>) -> Reply {
        Reply::Verbatim(Bytes::from(text.into()))
    }
}
