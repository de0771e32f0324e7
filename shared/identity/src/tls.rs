//! The TLS configuration of every socket between hosts: TLS 1.3, both sides with a certificate.
//!
//! | | own certificate | the peer's |
//! | --- | --- | --- |
//! | [`session_server`]: an agent to clients | this donor's | a client's, required |
//! | [`session_client`]: annexd to an agent | this client's | a donor's |
//! | [`join_server`]: the agent beside the CA | this donor's, with the CA's | any host's, if it has one |
//!
//! Nothing is resumed and nothing is sent before the handshake is over (0-RTT): a resumed session
//! would carry on an identity that was revoked meanwhile. Certificates are looked up at each
//! handshake, so a reload needs no new configuration. Sessions that are up go on.
//!
//! The client sends no server name: addresses mean nothing here.

use crate::certificate::{CertificateError, Facts};
use crate::identity::Identity;
use crate::names::Role;
use crate::verify::Standings;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{ResolvesClientCert, Resumption};
use rustls::crypto::{CryptoProvider, aws_lc_rs, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, IpAddr, Ipv4Addr, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ClientHello, NoServerSessionStorage, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::time_provider::TimeProvider;
use rustls::{
    AlertDescription, ClientConfig, CommonState, DigitallySignedStruct, DistinguishedName, Error, PeerMisbehaved,
    ServerConfig, SignatureScheme, version,
};
use std::io;
use std::sync::Arc;

/// What a connection is for (ALPN). A peer that wants something else is refused.
pub const SESSION: &[u8] = b"annex/1";
pub const JOIN: &[u8] = b"annex-join/1";

pub(crate) fn provider() -> Arc<CryptoProvider> {
    Arc::new(aws_lc_rs::default_provider())
}

/// Stands for any server: the name is never sent, and never looked at.
pub fn any_server() -> ServerName<'static> {
    ServerName::IpAddress(IpAddr::V4(Ipv4Addr::from([0, 0, 0, 0])))
}

/// For an agent's port: clients only. `standings` knows the keys that hold leases.
pub fn session_server(
    identity: &Arc<Identity>,
    standings: Arc<dyn Standings>,
    clock: Arc<dyn TimeProvider>,
) -> Result<Arc<ServerConfig>, Error> {
    let verifier = Verifier { identity: identity.clone(), wanted: Some(Role::Client), standings };
    let resolver = Own { identity: identity.clone(), issuer: None };
    server(Arc::new(verifier), resolver, clock, SESSION)
}

/// For annexd's connections to agents: donors only. `standings` knows the keys with which pages
/// lie.
pub fn session_client(
    identity: &Arc<Identity>,
    standings: Arc<dyn Standings>,
    clock: Arc<dyn TimeProvider>,
) -> Result<Arc<ClientConfig>, Error> {
    let verifier = Verifier { identity: identity.clone(), wanted: Some(Role::Donor), standings };
    client(Arc::new(verifier), Arc::new(Own { identity: identity.clone(), issuer: None }), clock, SESSION)
}

/// For the port at which hosts join: a host without a certificate may connect, and shows a token.
/// The CA's certificate is sent along, so that the joiner can compare it with its token.
pub fn join_server(
    identity: &Arc<Identity>,
    issuer: CertificateDer<'static>,
    standings: Arc<dyn Standings>,
    clock: Arc<dyn TimeProvider>,
) -> Result<Arc<ServerConfig>, Error> {
    let verifier = Verifier { identity: identity.clone(), wanted: None, standings };
    let resolver = Own { identity: identity.clone(), issuer: Some(issuer) };
    server(Arc::new(verifier), resolver, clock, JOIN)
}

/// For a host that renews its certificate where it once joined.
pub fn renew_client(
    identity: &Arc<Identity>,
    standings: Arc<dyn Standings>,
    clock: Arc<dyn TimeProvider>,
) -> Result<Arc<ClientConfig>, Error> {
    let verifier = Verifier { identity: identity.clone(), wanted: Some(Role::Donor), standings };
    client(Arc::new(verifier), Arc::new(Own { identity: identity.clone(), issuer: None }), clock, JOIN)
}

fn server(
    verifier: Arc<dyn ClientCertVerifier>,
    resolver: Own,
    clock: Arc<dyn TimeProvider>,
    protocol: &[u8],
) -> Result<Arc<ServerConfig>, Error> {
    let mut config = ServerConfig::builder_with_details(provider(), clock)
        .with_protocol_versions(&[&version::TLS13])?
        .with_client_cert_verifier(verifier)
        .with_cert_resolver(Arc::new(resolver));
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    config.max_early_data_size = 0;
    config.alpn_protocols = vec![protocol.to_vec()];
    Ok(Arc::new(config))
}

pub(crate) fn client(
    verifier: Arc<dyn ServerCertVerifier>,
    resolver: Arc<dyn ResolvesClientCert>,
    clock: Arc<dyn TimeProvider>,
    protocol: &[u8],
) -> Result<Arc<ClientConfig>, Error> {
    let mut config = ClientConfig::builder_with_details(provider(), clock)
        .with_protocol_versions(&[&version::TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_client_cert_resolver(resolver);
    config.resumption = Resumption::disabled();
    config.enable_early_data = false;
    config.enable_sni = false;
    config.alpn_protocols = vec![protocol.to_vec()];
    Ok(Arc::new(config))
}

/// Who is at the other end of a connection whose handshake is over.
pub fn peer(connection: &CommonState) -> Result<Facts, CertificateError> {
    let none = || CertificateError::Unreadable("the peer has shown none".into());
    Facts::of(connection.peer_certificates().and_then(<[_]>::first).ok_or_else(none)?)
}

/// What a person reads of an error of TLS. rustls prints ours in the programmer's form.
pub fn reason(error: &Error) -> String {
    match error {
        Error::InvalidCertificate(rustls::CertificateError::Other(ours)) => ours.to_string(),
        Error::AlertReceived(alert) if is_of_certificates(*alert) => {
            format!("the peer does not accept this host's certificate: its log says why ({alert:?})")
        }
        Error::AlertReceived(AlertDescription::NoApplicationProtocol) | Error::NoApplicationProtocol => {
            "the peer speaks TLS, but not annex's protocol inside".to_owned()
        }
        Error::NoCertificatesPresented => "the peer has shown no certificate".to_owned(),
        Error::InvalidMessage(rustls::InvalidMessage::InvalidContentType) => "what the peer sent is no TLS".to_owned(),
        other => other.to_string(),
    }
}

fn is_of_certificates(alert: AlertDescription) -> bool {
    matches!(
        alert,
        AlertDescription::BadCertificate
            | AlertDescription::UnsupportedCertificate
            | AlertDescription::CertificateRevoked
            | AlertDescription::CertificateExpired
            | AlertDescription::CertificateUnknown
            | AlertDescription::UnknownCA
            | AlertDescription::AccessDenied
            | AlertDescription::CertificateRequired
    )
}

/// The same where TLS's error is inside one of a stream.
pub fn io_reason(error: &io::Error) -> String {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>());
    inner.map_or_else(|| error.to_string(), reason)
}

/// A peer that names no protocol is accepted by rustls: it is not by us.
pub fn check_protocol(connection: &CommonState, wanted: &[u8]) -> Result<(), Error> {
    match connection.alpn_protocol() {
        Some(protocol) if protocol == wanted => Ok(()),
        _ => Err(Error::NoApplicationProtocol),
    }
}

/// Shows this host's certificate.
#[derive(Debug)]
struct Own {
    identity: Arc<Identity>,
    issuer: Option<CertificateDer<'static>>,
}

impl Own {
    fn certified(&self) -> Arc<CertifiedKey> {
        let certified = self.identity.current().certified.clone();
        match &self.issuer {
            None => certified,
            Some(issuer) => {
                let mut with_issuer = (*certified).clone();
                with_issuer.cert.push(issuer.clone());
                Arc::new(with_issuer)
            }
        }
    }
}

impl ResolvesServerCert for Own {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.certified())
    }
}

impl ResolvesClientCert for Own {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        Some(self.certified())
    }

    fn has_certs(&self) -> bool {
        true
    }
}

/// TLS's side of [`crate::verify`].
#[derive(Debug)]
struct Verifier {
    identity: Arc<Identity>,
    /// None: any role, and a client may also show no certificate.
    wanted: Option<Role>,
    standings: Arc<dyn Standings>,
}

impl Verifier {
    fn check(
        &self,
        certificate: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<(), Error> {
        let loaded = self.identity.current();
        loaded.trust.check(certificate, others, self.wanted, &*self.standings, now)?;
        Ok(())
    }
}

/// That the peer has the key of its certificate.
pub(crate) fn signed(
    message: &[u8],
    certificate: &CertificateDer<'_>,
    signature: &DigitallySignedStruct,
) -> Result<HandshakeSignatureValid, Error> {
    verify_tls13_signature(message, certificate, signature, &provider().signature_verification_algorithms)
}

pub(crate) fn schemes() -> Vec<SignatureScheme> {
    provider().signature_verification_algorithms.supported_schemes()
}

/// TLS 1.2 is not even compiled in.
pub(crate) fn old_tls() -> Error {
    PeerMisbehaved::SignedHandshakeWithUnadvertisedSigScheme.into()
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.check(certificate, others, now).map(|()| ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(old_tls())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        signed(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        schemes()
    }
}

impl ClientCertVerifier for Verifier {
    fn client_auth_mandatory(&self) -> bool {
        self.wanted.is_some()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.check(certificate, others, now).map(|()| ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(old_tls())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        signed(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        schemes()
    }
}

#[cfg(test)]
pub(crate) mod tests;
