//! A connection to an agent's port whose first message of TLS (ClientHello) was read: it says
//! whether the peer wants a session, or is a host that joins.

use crate::stream::{HandshakeError, Stream, bid_farewell, left, of_time};
use crate::tls::JOIN;
use rustls::server::{Accepted, AcceptedAlert, Acceptor};
use rustls::{Error, ServerConfig, ServerConnection};
use std::io::ErrorKind;
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub struct Hello {
    socket: TcpStream,
    accepted: Accepted,
    by: Instant,
}

impl Hello {
    /// Reads it until then, which is also when all that follows has to be over.
    pub fn read(socket: TcpStream, by: Instant) -> Result<Hello, HandshakeError> {
        let mut acceptor = Acceptor::default();
        loop {
            socket.set_read_timeout(Some(left(by)?))?;
            match acceptor.read_tls(&mut &socket) {
                Ok(0) => return Err(HandshakeError::Closed),
                Ok(_) => {}
                Err(e) if e.kind() == ErrorKind::Interrupted => continue,
                Err(e) => return Err(of_time(e)),
            }
            match acceptor.accept() {
                Ok(Some(accepted)) => return Ok(Hello { socket, accepted, by }),
                Ok(None) => {}
                Err(refused) => return Err(refuse(&socket, refused)),
            }
        }
    }

    pub fn wants_to_join(&self) -> bool {
        self.accepted.client_hello().alpn().is_some_and(|mut protocols| protocols.any(|name| name == JOIN))
    }

    /// Goes on as a session.
    ///
    /// # Errors
    /// The peer was told why, as far as TLS has words for it.
    pub fn session(self, config: &Arc<ServerConfig>) -> Result<Stream, HandshakeError> {
        let by = self.by;
        let (socket, session) = self.begin(config)?;
        Stream::accept(socket, session, by)
    }

    /// Goes on with what answers a host that joins within the time that is left.
    pub fn answer<T, E: From<HandshakeError>>(
        self,
        config: &Arc<ServerConfig>,
        answer: impl FnOnce(&TcpStream, ServerConnection, Duration) -> Result<T, E>,
    ) -> Result<T, E> {
        let limit = left(self.by)?;
        let (socket, connection) = self.begin(config)?;
        // One whose certificate was refused may have asked already.
        answer(&socket, connection, limit).inspect_err(|_| bid_farewell(&socket))
    }

    fn begin(self, config: &Arc<ServerConfig>) -> Result<(TcpStream, ServerConnection), HandshakeError> {
        match self.accepted.into_connection(config.clone()) {
            Ok(connection) => Ok((self.socket, connection)),
            Err(refused) => Err(refuse(&self.socket, refused)),
        }
    }
}

/// The peer may be gone: then there is nobody to tell.
fn refuse(socket: &TcpStream, (error, mut alert): (Error, AcceptedAlert)) -> HandshakeError {
    let _ = alert.write_all(&mut &*socket);
    bid_farewell(socket);
    error.into()
}
