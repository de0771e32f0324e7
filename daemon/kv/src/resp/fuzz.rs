//! What must hold for any bytes whatever; the door for a fuzz driver.

use super::parser::MAX_LINE;
use super::{Limits, Parser, ProtocolError, peek};
use bytes::{Bytes, BytesMut};

/// Requests up to the first error, and that error.
type Parsed = (Vec<Vec<Bytes>>, Option<ProtocolError>);

/// Feeds the bytes whole and in pieces (their sizes taken from the bytes themselves) and asserts
/// that the two give the same requests, that no request is larger than what was sent for it, and
/// that a look ahead sees what comes.
///
/// # Panics
/// If one of these does not hold.
pub fn fuzz(data: &[u8]) {
    // A longer line is refused only if its end has not arrived yet.
    let data = &data[..data.len().min(MAX_LINE)];
    let authenticated = data.first().is_none_or(|byte| byte % 2 == 0);
    let limits = Limits { bulk: 512 << 20, authenticated };
    let whole = parse([data], &limits);
    let mut rest = data;
    let mut step = 1;
    let pieces = std::iter::from_fn(|| {
        let length = rest.len().min(step);
        let (piece, behind) = rest.split_at(length);
        step = behind.first().map_or(1, |byte| usize::from(*byte % 32) + 1);
        rest = behind;
        (!piece.is_empty()).then_some(piece)
    });
    let pieces = parse(pieces, &limits);
    assert_eq!(whole.0, pieces.0, "the requests depend on how they were cut up");
    assert_eq!(whole.1.is_some(), pieces.1.is_some(), "the error depends on how the requests were cut up");
    let bytes: usize = whole.0.iter().flatten().map(Bytes::len).sum();
    assert!(bytes <= data.len(), "more came out than went in");
    let seen: Vec<_> = peek(data).collect();
    assert!(seen.len() <= whole.0.len() || whole.1.is_some(), "more was seen ahead than came");
    for (peeked, came) in seen.iter().zip(&whole.0) {
        assert_eq!((Some(peeked.name), peeked.key), (came.first().map(|b| &b[..]), came.get(1).map(|b| &b[..])));
    }
}

pub(super) fn parse<'a>(pieces: impl IntoIterator<Item = &'a [u8]>, limits: &Limits) -> Parsed {
    let (mut parser, mut buffer, mut requests) = (Parser::default(), BytesMut::new(), Vec::new());
    for piece in pieces {
        buffer.extend_from_slice(piece);
        loop {
            match parser.next(&mut buffer, limits) {
                Ok(Some(request)) => requests.push(request),
                Ok(None) => break,
                Err(error) => return (requests, Some(error)),
            }
        }
    }
    (requests, None)
}
