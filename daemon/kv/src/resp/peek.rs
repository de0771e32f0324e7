//! What lies in a read buffer and has not begun: a look ahead that takes nothing, allocates
//! nothing, and decides nothing.

use crate::text::integer;

/// Digits; more would be more than a buffer holds.
const LONGEST_NUMBER: usize = 9;

/// A request that is there whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peeked<'a> {
    pub name: &'a [u8],
    /// Its first argument, which most commands' only key is.
    pub key: Option<&'a [u8]>,
}

/// The requests at the head of a buffer, up to the first that is not whole, or is no array of bulk
/// strings: [`super::Parser`] will see what it is.
pub fn peek(mut buffer: &[u8]) -> impl Iterator<Item = Peeked<'_>> + Clone {
    std::iter::from_fn(move || {
        // One without arguments is passed over, which is not looked into here.
        let arguments = number(&mut buffer, b'*').filter(|count| *count > 0)?;
        let name = bulk(&mut buffer)?;
        let key = if arguments > 1 { Some(bulk(&mut buffer)?) } else { None };
        for _ in 2..arguments {
            bulk(&mut buffer)?;
        }
        Some(Peeked { name, key })
    })
}

fn bulk<'a>(buffer: &mut &'a [u8]) -> Option<&'a [u8]> {
    let length = number(buffer, b'$')?;
    let (bytes, rest) = buffer.split_at_checked(length)?;
    *buffer = rest.get(2..)?;
    Some(bytes)
}

/// A line of a mark and a number that is not negative.
fn number(buffer: &mut &[u8], mark: u8) -> Option<usize> {
    let line = buffer.strip_prefix(&[mark])?;
    let end = line.iter().take(LONGEST_NUMBER + 1).position(|byte| *byte == b'\r')?;
    *buffer = line[end..].strip_prefix(b"\r\n")?;
    usize::try_from(integer::parse(&line[..end])?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(buffer: &[u8]) -> Vec<(&[u8], Option<&[u8]>)> {
        peek(buffer).map(|request| (request.name, request.key)).collect()
    }

    #[test]
    fn whole_requests_are_seen_with_their_first_argument() {
        let buffer = b"*2\r\n$3\r\nGET\r\n$3\r\na\r\n\r\n*1\r\n$4\r\nPING\r\n*3\r\n$3\r\nset\r\n$0\r\n\r\n$1\r\nv\r\n*2\r\n$3\r\nGET\r\n$3\r\nab";
        assert_eq!(seen(buffer), [(&b"GET"[..], Some(&b"a\r\n"[..])), (b"PING", None), (b"set", Some(b""))]);
    }

    #[test]
    fn what_is_no_array_of_bulk_strings_ends_it() {
        for buffer in [
            &b"PING\r\n"[..],
            b"*-1\r\n",
            b"*0\r\n$1\r\na\r\n",
            b"*\r\n",
            b"*1\r\n:5\r\n",
            b"*1\r\n$-1\r\n",
            b"*2\n$3\r\n",
            b"",
        ] {
            assert_eq!(seen(buffer), []);
        }
    }
}
