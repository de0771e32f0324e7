//! What this host shows donors over TLS, and which donors it believes.
//!
//! A donor whose certificate has run out is spoken to only if pages may lie with it: if it was
//! spoken to since this annexd started, or if the annexd before has left pages with that key.

use crate::metadata::extents::KeyMark;
use annex_fabric::SessionTls;
use annex_identity::certificate::KeyId;
use annex_identity::config::{TlsConfigError, open};
use annex_identity::identity::{Files, Identity};
use annex_identity::names::Role;
use annex_identity::renewer;
use annex_identity::stream::{HandshakeError, Stream};
use annex_identity::tls::session_client;
use annex_identity::token::Address;
use annex_identity::verify::Standings;
use annex_identity::watch;
use parking_lot::Mutex;
use rustls::ClientConfig;
use rustls::time_provider::DefaultTimeProvider;
use std::collections::HashSet;
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// This host can't speak TLS.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error(transparent)]
    Config(#[from] TlsConfigError),
    #[error("failed to set up TLS: {0}")]
    Setup(#[from] rustls::Error),
    #[error("failed to start a thread that looks after the files of [tls]: {0}")]
    Thread(#[from] std::io::Error),
}

/// For all connections to donors.
pub(crate) struct DonorTls {
    identity: Arc<Identity>,
    config: Arc<ClientConfig>,
    known: Arc<Known>,
}

/// The keys of donors with which pages may lie.
#[derive(Debug, Default)]
struct Known(Mutex<HashSet<KeyMark>>);

impl Standings for Known {
    fn holds(&self, key: &KeyId) -> bool {
        KeyMark::of(key).is_some_and(|mark| self.0.lock().contains(&mark))
    }
}

impl DonorTls {
    /// `renew` is where the certificate is renewed, if anywhere.
    pub fn open(files: Files, renew: Option<Address>) -> Result<DonorTls, TlsError> {
        let identity = open(files, Role::Client)?;
        watch::start(&identity)?;
        renew.map(|from| renewer::start(&identity, from)).transpose()?;
        let known = Arc::new(Known::default());
        let config = session_client(&identity, known.clone(), Arc::new(DefaultTimeProvider))?;
        Ok(DonorTls { identity, config, known })
    }

    pub fn identity(&self) -> Arc<Identity> {
        self.identity.clone()
    }

    /// Makes a control connection of a socket.
    pub fn connect(&self, socket: TcpStream, timeout: Duration) -> Result<Stream, HandshakeError> {
        Stream::connect(socket, &self.config, Instant::now() + timeout)
    }

    /// Pages may lie with donors that have these keys.
    pub fn know(&self, keys: impl IntoIterator<Item = KeyMark>) {
        self.known.0.lock().extend(keys);
    }

    /// What the data connections of a control session need, and the donor's key. The donor has said
    /// welcome on it.
    pub fn of_session(&self, control: &Stream) -> Result<Option<(SessionTls, Option<KeyMark>)>, HandshakeError> {
        let Some(session) = control.session()? else { return Ok(None) };
        let key = KeyMark::of(&session.peer.key);
        self.know(key);
        Ok(Some((SessionTls::new(self.config.clone(), session.key), key)))
    }
}
