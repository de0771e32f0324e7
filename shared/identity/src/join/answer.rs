//! The CA's side of joining.

use crate::ca::{Ca, CaError};
use crate::certificate::Facts;
use crate::join::bounded::{Bounded, Timed};
use crate::join::protocol::{Answer, Request, receive, send};
use crate::names::Name;
use crate::stream::HandshakeError;
use crate::tls;
use rustls::time_provider::TimeProvider;
use rustls::{ServerConnection, Stream};
use std::io;
use std::time::Duration;

#[derive(Debug, thiserror::Error)]
pub enum AnswerError {
    #[error("a host that joins was lost: {}", tls::io_reason(.0))]
    Connection(#[from] io::Error),
    #[error("a host that joins was not understood: {}", tls::reason(.0))]
    Tls(#[from] rustls::Error),
    #[error("a host may not join: {0}")]
    Refused(#[source] CaError),
    #[error("a host would renew, and has shown no certificate")]
    NoCertificate,
    #[error("a host that joins has begun no TLS: {0}")]
    Handshake(#[from] HandshakeError),
    #[error("this host's clock can't be read")]
    Clock,
}

/// Serves one host. The configuration of its connection is that of [`tls::join_server`].
pub fn answer<S: Timed>(
    stream: S,
    mut connection: ServerConnection,
    ca: &Ca,
    clock: &dyn TimeProvider,
    limit: Duration,
) -> Result<Name, AnswerError> {
    let mut stream = Bounded::new(stream, limit);
    let request = {
        let mut tls = Stream::new(&mut connection, &mut stream);
        receive(&mut tls)?
    };
    tls::check_protocol(&connection, tls::JOIN)?;
    let now = clock.current_time().ok_or(AnswerError::Clock)?;
    let peer = tls::peer(&connection).ok();
    let signed = decide(ca, peer.as_ref(), request, now);
    let answer = match &signed {
        Ok(signed) => Answer::Signed { certificate: signed.certificate.to_vec(), ca: signed.ca.to_vec() },
        Err(AnswerError::Refused(CaError::Refused(why))) => Answer::Refused(why.to_string()),
        Err(AnswerError::Refused(CaError::Key(why))) => Answer::Refused(why.to_string()),
        Err(AnswerError::NoCertificate) => Answer::Refused("a renewal needs the certificate before".into()),
        // A path or a fault of this host is none of the peer's business.
        Err(_) => Answer::Refused("the CA can't sign now: its log says why".into()),
    };
    let mut tls = Stream::new(&mut connection, &mut stream);
    send(&mut tls, &answer)?;
    connection.send_close_notify();
    // The answer is out. Whether the peer stays for the end is its own matter.
    while connection.wants_write() && connection.write_tls(&mut stream).is_ok_and(|written| written > 0) {}
    signed.map(|signed| signed.name)
}

fn decide(
    ca: &Ca,
    peer: Option<&Facts>,
    request: Request,
    now: rustls::pki_types::UnixTime,
) -> Result<crate::ca::Signed, AnswerError> {
    let signed = match request {
        Request::Join { secret, request } => ca.redeem(&secret, &request, now),
        Request::Renew { request } => ca.renew(peer.ok_or(AnswerError::NoCertificate)?, &request, now),
    };
    signed.map_err(AnswerError::Refused)
}
