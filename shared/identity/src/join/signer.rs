//! The agent beside the CA: what it answers hosts with that join or renew.

use crate::ca::{Ca, CaError};
use crate::hello::Hello;
use crate::identity::{Identity, Own};
use crate::join::answer::{AnswerError, answer};
use crate::names::{Name, Role};
use crate::tls::join_server;
use crate::verify::{PeerError, Standings, Trust, TrustError};
use rustls::ServerConfig;
use rustls::time_provider::TimeProvider;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// An agent can't sign. `Display` follows `bad [ca]: `.
#[derive(Debug, thiserror::Error)]
pub enum SignerError {
    #[error(transparent)]
    Ca(#[from] CaError),
    #[error("{}: {source}", .dir.display())]
    Trust { dir: PathBuf, source: TrustError },
    #[error(
        "this host's own certificate is not of the CA in {}, so that no host would believe it: {source}",
        .dir.display()
    )]
    OtherCa { dir: PathBuf, source: PeerError },
    #[error("failed to set up TLS: {0}")]
    Tls(#[from] rustls::Error),
}

#[derive(Debug)]
pub struct Signer {
    ca: Ca,
    config: Arc<ServerConfig>,
    clock: Arc<dyn TimeProvider>,
}

/// Opens the CA of a folder, which has to be that of this host's own certificate.
pub fn open_ca(dir: &Path, identity: &Identity) -> Result<Ca, SignerError> {
    let ca = Ca::open(dir)?;
    let own = identity.current();
    let trust = Trust::new(std::slice::from_ref(ca.certificate()), &[], own.own.name.cluster.clone())
        .map_err(|source| SignerError::Trust { dir: dir.to_owned(), source })?;
    let (leaf, others) = own.certified.cert.split_first().ok_or(rustls::Error::NoCertificatesPresented)?;
    trust
        .check(leaf, others, Some(Role::Donor), &Own, own.own.validity.not_before)
        .map_err(|source| SignerError::OtherCa { dir: dir.to_owned(), source })?;
    Ok(ca)
}

impl Signer {
    /// `standings` knows the keys that may renew a certificate that has expired.
    pub fn new(
        ca: Ca,
        identity: &Arc<Identity>,
        standings: Arc<dyn Standings>,
        clock: Arc<dyn TimeProvider>,
    ) -> Result<Signer, SignerError> {
        let config = join_server(identity, ca.certificate().clone(), standings, clock.clone())?;
        Ok(Signer { ca, config, clock })
    }

    /// Serves one host, until the moment that its hello was given. Returns whom a certificate was
    /// signed for.
    pub fn serve(&self, hello: Hello) -> Result<Name, AnswerError> {
        hello
            .answer(&self.config, |stream, connection, limit| answer(stream, connection, &self.ca, &*self.clock, limit))
    }
}
