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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::Identity;
    use crate::testing::{Clock, NOW, Pki};
    use crate::tls::{any_server, join_server, renew_client, session_client};
    use crate::verify::Nobody;
    use rustls::{ClientConfig, ClientConnection};
    use std::net::TcpListener;

    struct Bench {
        pki: Pki,
        dir: tempfile::TempDir,
        clock: Arc<Clock>,
    }

    impl Bench {
        fn new() -> Bench {
            let (pki, dir) = (Pki::new("c"), tempfile::tempdir().unwrap());
            Bench { pki, dir, clock: Arc::new(Clock::at(NOW)) }
        }

        fn identity(&self, uri: &str) -> Arc<Identity> {
            Arc::new(Identity::open(self.pki.files(self.dir.path(), uri)).unwrap())
        }

        /// What a peer with this configuration says first, and the peer's socket.
        fn hello(&self, config: Arc<ClientConfig>, by: Instant) -> (Result<Hello, HandshakeError>, TcpStream) {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            ClientConnection::new(config, any_server()).unwrap().write_tls(&mut &client).unwrap();
            (Hello::read(listener.accept().unwrap().0, by), client)
        }
    }

    #[test]
    fn a_hello_tells_a_host_that_joins_from_one_that_wants_a_session() {
        let bench = Bench::new();
        let client = bench.identity("annex://c/client/a");
        let by = Instant::now() + Duration::from_secs(60);
        let session = session_client(&client, Arc::new(Nobody), bench.clock.clone()).unwrap();
        assert!(!bench.hello(session, by).0.unwrap().wants_to_join());
        let join = renew_client(&client, Arc::new(Nobody), bench.clock.clone()).unwrap();
        assert!(bench.hello(join, by).0.unwrap().wants_to_join());
    }

    /// One that joins has no more time than one that wants a session.
    #[test]
    fn what_answers_it_gets_the_time_that_is_left() {
        let bench = Bench::new();
        let config =
            || renew_client(&bench.identity("annex://c/client/a"), Arc::new(Nobody), bench.clock.clone()).unwrap();
        let late = bench.hello(config(), Instant::now()).0;
        assert!(matches!(late, Err(HandshakeError::TimedOut)));
        let limit = Duration::from_secs(60);
        let (hello, _client) = bench.hello(config(), Instant::now() + limit);
        let donor = bench.identity("annex://c/donor/b");
        let server = join_server(&donor, bench.pki.certificate(), Arc::new(Nobody), bench.clock.clone());
        let given = hello.unwrap().answer(&server.unwrap(), |_, _, left| Ok::<_, HandshakeError>(left));
        assert!(given.unwrap() <= limit);
    }
}
