//! The side of a host that joins, or renews its certificate.

use crate::ca::to_pem;
use crate::certificate::{Facts, sha256};
use crate::files::{self, Content, FileError, Secrecy};
use crate::identity::{Files, Identity};
use crate::join::bounded::{Bounded, Timed};
use crate::join::protocol::{Answer, Request, receive, send};
use crate::key::{Key, KeyError};
use crate::names::{Name, Role};
use crate::tls;
use crate::token::{Address, Token};
use crate::verify::{Nobody, PeerError, Standings, Trust};
use rustls::client::ResolvesClientCert;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime, pem::PemObject};
use rustls::sign::CertifiedKey;
use rustls::time_provider::TimeProvider;
use rustls::{AlertDescription, ClientConfig, ClientConnection, DigitallySignedStruct, Error, SignatureScheme, Stream};
use std::io;
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    #[error("nothing answers there: {0}")]
    Unreached(#[source] io::Error),
    #[error("the agent there ended the connection: has it [tls]?")]
    Closed,
    #[error("the agent there signs no certificates: name the one beside the CA, with dir in [ca] of its agent.toml")]
    SignsNothing,
    #[error("the agent there can't be spoken to: {}", tls::io_reason(.0))]
    Connection(#[source] io::Error),
    #[error("the agent there can't be spoken to: {}", tls::reason(.0))]
    Tls(#[from] Error),
    #[error("the answer was lost: {}", tls::io_reason(.0))]
    Lost(#[source] io::Error),
    #[error("the CA refused: {0}")]
    Refused(String),
    #[error("the CA's answer can't be used: {0}")]
    Answer(String),
    #[error("this host's clock can't be read")]
    Clock,
    #[error(transparent)]
    Key(#[from] KeyError),
    #[error(transparent)]
    File(#[from] FileError),
}

impl JoinError {
    /// Of the handshake: nothing was asked for yet.
    fn of_handshake(error: io::Error) -> JoinError {
        let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>());
        if let Some(Error::AlertReceived(AlertDescription::NoApplicationProtocol)) = inner {
            return JoinError::SignsNothing;
        }
        match error.kind() {
            io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => {
                JoinError::Closed
            }
            _ => JoinError::Connection(error),
        }
    }

    /// Of what follows: the CA may have signed all the same.
    fn of_answer(error: io::Error) -> JoinError {
        match error.get_ref().and_then(|inner| inner.downcast_ref::<Error>()) {
            Some(alert @ Error::AlertReceived(_)) => JoinError::Tls(alert.clone()),
            _ => JoinError::Lost(error),
        }
    }
}

/// Why a server is not the one of the token.
#[derive(Debug, thiserror::Error)]
enum NotTheCa {
    #[error("it does not have the CA of the token: the token is of another CA, or somebody is in between")]
    Hash,
    #[error("its CA can't be used: {0}")]
    Ca(String),
    #[error(transparent)]
    Peer(PeerError),
}

/// A certificate that was verified: it is of the expected CA, and for this host's key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Joined {
    pub name: Name,
    pub certificate: CertificateDer<'static>,
    pub ca: CertificateDer<'static>,
}

impl Joined {
    /// Writes the files of a host that has joined. The certificate comes last: it makes the others
    /// count.
    pub fn save(&self, files: &Files, key: &Key) -> Result<(), FileError> {
        let (key, ca, certificate) = (key.to_pem(), to_pem(&self.ca), to_pem(&self.certificate));
        files::write_together(&[
            Content { path: &files.key, bytes: key.as_bytes(), secrecy: Secrecy::Private },
            Content { path: &files.ca, bytes: ca.as_bytes(), secrecy: Secrecy::Public },
            Content { path: &files.certificate, bytes: certificate.as_bytes(), secrecy: Secrecy::Public },
        ])
    }

    /// After a renewal the key and the CA are those before: one file changes, at once.
    pub fn save_renewed(&self, files: &Files) -> Result<(), FileError> {
        files::write(&files.certificate, to_pem(&self.certificate).as_bytes(), Secrecy::Public)
    }
}

/// Connects to one of the places that an address stands for.
pub fn dial(address: &Address, limit: Duration) -> Result<TcpStream, JoinError> {
    let mut failure = io::Error::from(io::ErrorKind::NotFound);
    for place in address.as_str().to_socket_addrs().map_err(JoinError::Unreached)? {
        match TcpStream::connect_timeout(&place, limit) {
            Ok(stream) => return Ok(stream),
            Err(error) => failure = error,
        }
    }
    Err(JoinError::Unreached(failure))
}

/// Joins with a token over a connection to one of its addresses.
pub fn join<S: Timed>(
    stream: S,
    token: &Token,
    key: &Key,
    clock: Arc<dyn TimeProvider>,
    limit: Duration,
) -> Result<Joined, JoinError> {
    let now = clock.current_time().ok_or(JoinError::Clock)?;
    let verifier = Arc::new(TokensCa { hash: *token.ca() });
    let config = tls::client(verifier, Arc::new(NoCertificate), clock, tls::JOIN)?;
    let request = Request::Join { secret: token.secret().clone(), request: key.request()? };
    let (certificate, ca) = exchange(stream, config, &request, limit)?;
    if sha256(&ca) != *token.ca() {
        return Err(JoinError::Answer("it names another CA than the token".into()));
    }
    let facts = Facts::of(&certificate).map_err(|e| JoinError::Answer(e.to_string()))?;
    accept(certificate, ca, None, &facts.name, key, now)
}

/// Gets a new certificate for the key and the name that this host has.
pub fn renew<S: Timed>(
    stream: S,
    identity: &Arc<Identity>,
    standings: Arc<dyn Standings>,
    clock: Arc<dyn TimeProvider>,
    limit: Duration,
) -> Result<Joined, JoinError> {
    let now = clock.current_time().ok_or(JoinError::Clock)?;
    let pem = files::read(&identity.files().key)?;
    let key = PrivateKeyDer::from_pem_slice(&pem).map_err(|e| KeyError::Unusable(e.to_string()))?;
    let key = Key::of(&key)?;
    let config = tls::renew_client(identity, standings, clock)?;
    let (certificate, ca) = exchange(stream, config, &Request::Renew { request: key.request()? }, limit)?;
    let loaded = identity.current();
    accept(certificate, ca, Some(&loaded.trust), &loaded.own.name, &key, now)
}

fn exchange<S: Timed>(
    stream: S,
    config: Arc<ClientConfig>,
    request: &Request,
    limit: Duration,
) -> Result<(CertificateDer<'static>, CertificateDer<'static>), JoinError> {
    let mut stream = Bounded::new(stream, limit);
    let mut connection = ClientConnection::new(config, tls::any_server())?;
    // The handshake first, and alone: nothing is said before the server is known.
    while connection.is_handshaking() {
        connection.complete_io(&mut stream).map_err(JoinError::of_handshake)?;
    }
    tls::check_protocol(&connection, tls::JOIN)?;
    let mut tls = Stream::new(&mut connection, &mut stream);
    match send(&mut tls, request).and_then(|()| receive(&mut tls)).map_err(JoinError::of_answer)? {
        Answer::Signed { certificate, ca } => Ok((certificate.into(), ca.into())),
        Answer::Refused(why) => Err(JoinError::Refused(annex_shared::printable::printable(&why).into_owned())),
    }
}

/// Believes no answer: whatever goes into this host's files is verified first.
fn accept(
    certificate: CertificateDer<'static>,
    ca: CertificateDer<'static>,
    trust: Option<&Trust>,
    name: &Name,
    key: &Key,
    now: UnixTime,
) -> Result<Joined, JoinError> {
    let bad = |why: String| JoinError::Answer(why);
    let tokens = match trust {
        Some(_) => None,
        None => Some(Trust::new(std::slice::from_ref(&ca), &[], name.cluster.clone()).map_err(|e| bad(e.to_string()))?),
    };
    let trust = trust.or(tokens.as_ref()).ok_or_else(|| bad("nothing is known of its CA".into()))?;
    let peer = trust.check(&certificate, &[], Some(name.role), &Nobody, now).map_err(|e| bad(e.to_string()))?;
    if peer.facts.key != key.id() {
        return Err(bad("the certificate is for another key".into()));
    }
    if peer.facts.name != *name {
        return Err(bad(format!("the certificate is for {}, not {name}", peer.facts.name)));
    }
    Ok(Joined { name: peer.facts.name, certificate, ca })
}

#[derive(Debug)]
struct NoCertificate;

impl ResolvesClientCert for NoCertificate {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        None
    }

    fn has_certs(&self) -> bool {
        false
    }
}

/// Accepts a donor whose CA has the hash that a token carries.
#[derive(Debug)]
struct TokensCa {
    hash: [u8; 32],
}

impl TokensCa {
    fn check(
        &self,
        certificate: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<(), NotTheCa> {
        let ca = others.iter().find(|other| sha256(other) == self.hash).ok_or(NotTheCa::Hash)?;
        let facts = Facts::of(certificate).map_err(|e| NotTheCa::Peer(e.into()))?;
        let trust = Trust::new(std::slice::from_ref(ca), &[], facts.name.cluster);
        let trust = trust.map_err(|e| NotTheCa::Ca(e.to_string()))?;
        trust.check(certificate, others, Some(Role::Donor), &Nobody, now).map_err(NotTheCa::Peer)?;
        Ok(())
    }
}

impl ServerCertVerifier for TokensCa {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let told = |e| rustls::CertificateError::Other(rustls::OtherError(Arc::new(e)));
        self.check(certificate, others, now).map_err(told)?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(tls::old_tls())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        tls::signed(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        tls::schemes()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// How a host without a certificate speaks to the CA's agent.
    pub fn joiner(ca: &CertificateDer<'_>, clock: Arc<dyn TimeProvider>) -> Arc<ClientConfig> {
        let verifier = Arc::new(TokensCa { hash: sha256(ca) });
        tls::client(verifier, Arc::new(NoCertificate), clock, tls::JOIN).unwrap()
    }

    pub fn exchange(
        stream: std::os::unix::net::UnixStream,
        config: Arc<ClientConfig>,
        request: &Request,
    ) -> Result<(), JoinError> {
        super::exchange(stream, config, request, Duration::from_secs(60)).map(drop)
    }
}
