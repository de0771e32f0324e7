//! Opens a connection to an agent and has it admitted: what [`tcp`](crate::tcp) and
//! [`verbs`](crate::verbs) have in common.
//!
//! Without TLS the preamble shows the session key. With TLS nothing secret is sent: each side shows
//! the other that it knows the key of the control session's TLS (`annex_identity::exporter`).

use crate::ConnectError;
use annex_identity::exporter::{Lane, LaneKey, Side};
use annex_identity::stream::Stream;
use annex_shared::preamble::{AnswerError, LaneProof, MAC_LEN, Preamble, Proof, read_answer};
use rustls::ClientConfig;
use std::fmt;
use std::io::{self, Read};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// The TLS of all connections that belong to one control session.
pub struct SessionTls {
    config: Arc<ClientConfig>,
    key: LaneKey,
    lanes: AtomicU32,
}

impl SessionTls {
    /// `key` is the control session's.
    pub fn new(config: Arc<ClientConfig>, key: LaneKey) -> SessionTls {
        SessionTls { config, key, lanes: AtomicU32::new(0) }
    }
}

impl fmt::Debug for SessionTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SessionTls(..)")
    }
}

/// What the connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    Data,
    Verbs,
}

/// The connection, blocking and with `timeout` for each read and write, and the number that the
/// agent gave it.
pub(crate) fn open(
    addr: SocketAddr,
    purpose: Purpose,
    proof: &Proof,
    tls: Option<&SessionTls>,
    timeout: Duration,
) -> Result<(Stream, u64), ConnectError> {
    let unreachable = |source| ConnectError::Unreachable { peer: addr.to_string(), source };
    let refused =
        |reason: &dyn fmt::Display| ConnectError::Refused { peer: addr.to_string(), reason: reason.to_string() };
    let broken = |source: Box<dyn std::error::Error + Send + Sync>| unreachable(io::Error::other(source));

    let socket = TcpStream::connect_timeout(&addr, timeout).map_err(unreachable)?;
    socket.set_nodelay(true).map_err(unreachable)?;
    let (mut stream, lane) = match tls {
        None => (Stream::plain(socket), None),
        Some(tls) => {
            let failed = |source| ConnectError::Tls { peer: addr.to_string(), source };
            let stream = Stream::connect(socket, &tls.config, Instant::now() + timeout).map_err(failed)?;
            let connection = stream.binding().map_err(|e| broken(e.into()))?;
            let connection = connection.ok_or_else(|| broken("TLS without a session".into()))?;
            let lane = tls.lanes.fetch_add(1, Ordering::Relaxed);
            (stream, Some((tls, Lane { incarnation: proof.incarnation, lane, connection })))
        }
    };
    let preamble = preamble(purpose, proof, lane.as_ref());
    stream
        .socket()
        .set_write_timeout(Some(timeout))
        .and_then(|()| preamble.write_to(&mut stream))
        .map_err(unreachable)?;
    let by = Instant::now() + timeout;
    let number = read_answer(&mut stream.until(by)).map_err(|e| match e {
        AnswerError::Refused(reason) => refused(&reason),
        AnswerError::Io(e) => unreachable(e),
        e @ AnswerError::Malformed { .. } => broken(e.into()),
    })?;
    if let Some((tls, lane)) = lane {
        let mut mac = [0; MAC_LEN];
        stream.until(by).read_exact(&mut mac).map_err(unreachable)?;
        let stranger = |_| refused(&"it does not know the control session's key: somebody else answers there");
        tls.key.verify(Side::Donor, &lane, &mac).map_err(stranger)?;
    }
    stream.socket().set_read_timeout(Some(timeout)).map_err(unreachable)?;
    Ok((stream, number))
}

fn preamble(purpose: Purpose, proof: &Proof, lane: Option<&(&SessionTls, Lane)>) -> Preamble {
    let Some((tls, lane)) = lane else {
        return match purpose {
            Purpose::Data => Preamble::Data(*proof),
            Purpose::Verbs => Preamble::Verbs(*proof),
        };
    };
    let mac = tls.key.proof(Side::Client, lane);
    let proof = LaneProof { client: proof.client, incarnation: proof.incarnation, lane: lane.lane, mac };
    match purpose {
        Purpose::Data => Preamble::SecureData(proof),
        Purpose::Verbs => Preamble::SecureVerbs(proof),
    }
}
