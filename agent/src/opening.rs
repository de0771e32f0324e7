//! A TCP connection from its first byte until it is known what it is for.
//!
//! With `[tls]` nothing is served without it, and the first byte tells: a peer that speaks plain is
//! told so in its own words and dropped. With `also_plain` it is served; but whoever has shown a
//! certificate once comes to its leases, and to its session, with TLS alone.
//!
//! A peer has until one moment for the handshake, its preamble and what follows, however slowly the
//! bytes come. How many may be at it at once is in [`crate::places`].

use crate::port::Port;
use crate::targets::{Caller, LaneKeys};
use annex_identity::hello::Hello;
use annex_identity::join::answer::AnswerError;
use annex_identity::names::Name;
use annex_identity::stream::{HandshakeError, Stream};
use annex_shared::preamble::{AdmitError, LaneProof, Preamble, PreambleError, TLS_HANDSHAKE, write_answer};
use annex_shared::wire::{Event, Frames, Refusal, Request, write_frame};
use std::io;
use std::net::TcpStream;
use std::time::Instant;

/// Bytes of the hello of a peer that is refused.
const HELLO_LIMIT: u32 = 4096;

/// A connection did not come so far. `Display` follows "a connection from PEER was dropped: ".
#[derive(Debug, thiserror::Error)]
pub enum OpeningError {
    #[error("it came and went")]
    Nothing,
    #[error(transparent)]
    Preamble(PreambleError),
    #[error("it is not encrypted, and this port takes TLS only: give the annexd there ca, cert and key in [tls]")]
    Plain,
    #[error("the TLS handshake failed: {0}")]
    Handshake(#[from] HandshakeError),
    #[error("it shows the proof of another kind of connection (TLS or plain)")]
    OtherProof,
    #[error("it was refused: {0}")]
    Refused(AdmitError),
    #[error("it asked for shm, which needs the agent's Unix socket")]
    Shm,
    #[error("it wants a certificate, and this agent signs none: set dir in [ca], or name another agent there")]
    SignsNothing,
    #[error(transparent)]
    Answer(#[from] AnswerError),
}

impl OpeningError {
    /// Set if one side has TLS and the other one not, or not with a certificate that is accepted:
    /// somebody has to do something about it. Few words, by which such lines are counted.
    pub fn about_tls(&self) -> Option<&'static str> {
        match self {
            OpeningError::Plain => Some("without TLS"),
            OpeningError::Preamble(PreambleError::Tls) => Some("with TLS"),
            OpeningError::Handshake(_) => Some("in its TLS handshake"),
            OpeningError::OtherProof => Some("with another kind's proof"),
            OpeningError::SignsNothing => Some("of a host that wants to join"),
            OpeningError::Answer(AnswerError::Refused(_)) => Some("of a host that may not join"),
            OpeningError::Answer(_) => Some("of a host that joins"),
            _ => None,
        }
    }
}

impl From<PreambleError> for OpeningError {
    fn from(error: PreambleError) -> OpeningError {
        match error {
            PreambleError::Io(e) if e.kind() == io::ErrorKind::UnexpectedEof => OpeningError::Nothing,
            error => OpeningError::Preamble(error),
        }
    }
}

/// What a connection is for.
pub enum Purpose {
    Control,
    Data(Caller),
    Verbs(Caller),
}

/// What became of a connection.
pub enum Opened {
    For(Purpose, Stream),
    /// A host has joined or renewed its certificate, and that was all.
    Signed(Name),
}

/// Reads the preamble, inside TLS if there is a configuration for it. What a caller has shown is
/// then to be held against the leases. A host that joins is answered here: it gets no further.
pub fn open(socket: TcpStream, tls: Option<&Port>, keys: &LaneKeys, by: Instant) -> Result<Opened, OpeningError> {
    let stream = match tls {
        None => Stream::plain(socket),
        Some(port) => match (first(&socket, by)?, &port.signer) {
            (TLS_HANDSHAKE, signer) => {
                let hello = Hello::read(socket, by)?;
                match signer {
                    Some(signer) if hello.wants_to_join() => return Ok(Opened::Signed(signer.serve(hello)?)),
                    None if hello.wants_to_join() => {
                        // Which refuses it in words of TLS.
                        let _ = hello.session(&port.session);
                        return Err(OpeningError::SignsNothing);
                    }
                    _ => hello.session(&port.session)?,
                }
            }
            _ if port.also_plain => Stream::plain(socket),
            _ => {
                tell_plain(&Stream::plain(socket), by);
                return Err(OpeningError::Plain);
            }
        },
    };
    let preamble = Preamble::read_from(&mut stream.until(by))?;
    let purpose = match (preamble, stream.is_tls()) {
        (Preamble::Control, _) => Ok(Purpose::Control),
        (Preamble::Data(proof) | Preamble::Verbs(proof), false) if keys.is_secure(proof.client) => {
            Err((AdmitError::WrongProof, OpeningError::OtherProof))
        }
        (Preamble::Data(proof), false) => Ok(Purpose::Data(proof.into())),
        (Preamble::Verbs(proof), false) => Ok(Purpose::Verbs(proof.into())),
        (Preamble::SecureData(shown), true) => verify(&stream, keys, &shown).map(Purpose::Data),
        (Preamble::SecureVerbs(shown), true) => verify(&stream, keys, &shown).map(Purpose::Verbs),
        (Preamble::Shm(_), _) => Err((AdmitError::NotOffered, OpeningError::Shm)),
        (Preamble::Data(_) | Preamble::Verbs(_) | Preamble::SecureData(_) | Preamble::SecureVerbs(_), _) => {
            Err((AdmitError::NotOffered, OpeningError::OtherProof))
        }
    };
    match purpose {
        Ok(purpose) => Ok(Opened::For(purpose, stream)),
        Err((answer, error)) => {
            // A peer that is gone already needs none.
            let _ = write_answer(&mut &stream, Err(answer));
            Err(error)
        }
    }
}

fn verify(stream: &Stream, keys: &LaneKeys, shown: &LaneProof) -> Result<Caller, (AdmitError, OpeningError)> {
    let failed = |error: rustls::Error| (AdmitError::WrongProof, OpeningError::Handshake(error.into()));
    let binding = stream.binding().map_err(failed)?;
    let caller = binding.ok_or(AdmitError::NotOffered).and_then(|binding| keys.verify(shown, binding));
    caller.map_err(|reason| (reason, OpeningError::Refused(reason)))
}

/// The connection's first byte, which stays unread.
fn first(socket: &TcpStream, by: Instant) -> Result<u8, OpeningError> {
    let mut first = [0];
    let left = by.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(HandshakeError::TimedOut.into());
    }
    let peeked = socket.set_read_timeout(Some(left)).and_then(|()| socket.peek(&mut first));
    match peeked.map_err(PreambleError::Io)? {
        0 => Err(OpeningError::Nothing),
        _ => Ok(first[0]),
    }
}

/// Tells a client that speaks plain why it is not served. Nothing that it sends is used.
fn tell_plain(stream: &Stream, by: Instant) {
    let mut input = stream.until(by);
    // It may be gone already: then there is nobody to tell.
    let _ = match Preamble::read_from(&mut input) {
        Ok(Preamble::Control) => {
            // Its hello, or the connection would be reset before it reads the answer.
            let _ = Frames::new(input).at_most(HELLO_LIMIT).read::<Request>();
            let why = "this port takes TLS only: give annexd ca, cert and key in [tls]";
            write_frame(&mut &*stream, &Event::Refused(Refusal::Malformed(why.to_owned()))).map_err(io::Error::other)
        }
        Ok(_) => write_answer(&mut &*stream, Err(AdmitError::NotOffered)),
        Err(_) => Ok(()),
    };
}
