//! The messages of joining. Each is its length (u32, little-endian) and postcard.

use crate::token::Secret;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io::{self, Read, Write};

/// A request has a CSR of 4 KiB at most; an answer, two certificates.
const LONGEST: usize = 16 << 10;

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// The first certificate of a host that has a token.
    Join { secret: Secret, request: Vec<u8> },
    /// The next one of a host that has shown its certificate in the handshake.
    Renew { request: Vec<u8> },
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// Both in DER.
    Signed { certificate: Vec<u8>, ca: Vec<u8> },
    /// For the person who joins.
    Refused(String),
}

pub fn send(stream: &mut impl Write, message: &impl Serialize) -> io::Result<()> {
    let body = postcard::to_stdvec(message).map_err(io::Error::other)?;
    let length = u32::try_from(body.len()).ok().filter(|_| body.len() <= LONGEST);
    let length = length.ok_or_else(|| io::Error::other("a message of joining is too long"))?;
    stream.write_all(&length.to_le_bytes())?;
    stream.write_all(&body)?;
    stream.flush()
}

pub fn receive<T: DeserializeOwned>(stream: &mut impl Read) -> io::Result<T> {
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let length = u32::from_le_bytes(length) as usize;
    let bad = |why: &'static str| io::Error::new(io::ErrorKind::InvalidData, why);
    if length > LONGEST {
        return Err(bad("a message of joining is too long"));
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body)?;
    match postcard::take_from_bytes(&body) {
        Ok((message, [])) => Ok(message),
        _ => Err(bad("a message of joining makes no sense")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_arrives_as_it_was_sent() {
        let request = Request::Join { secret: Secret::draw().unwrap(), request: vec![1, 2, 3] };
        let mut wire = Vec::new();
        send(&mut wire, &request).unwrap();
        assert_eq!(receive::<Request>(&mut &wire[..]).unwrap(), request);
        for cut in 0..wire.len() {
            assert!(receive::<Request>(&mut &wire[..cut]).is_err());
        }
    }

    #[test]
    fn what_is_too_long_or_has_more_behind_it_is_refused() {
        let long = Request::Renew { request: vec![0; LONGEST] };
        assert!(send(&mut Vec::new(), &long).is_err());
        let mut promising = &[0xff, 0xff, 0xff, 0xff, 1][..];
        assert!(receive::<Request>(&mut promising).is_err());
        let mut wire = Vec::new();
        send(&mut wire, &Request::Renew { request: vec![7] }).unwrap();
        wire[0] += 1;
        wire.push(0);
        assert!(receive::<Request>(&mut &wire[..]).is_err());
    }
}
