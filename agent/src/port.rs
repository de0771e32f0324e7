//! What the TCP port is with `[tls]`: where clients have their sessions, and, if this agent signs
//! for a CA, where hosts join and renew their certificates. All of that is bounded as every
//! connection is that has not said who it is: see [`crate::places`].

use crate::lender::Lender;
use annex_identity::ca::Ca;
use annex_identity::identity::Identity;
use annex_identity::join::signer::{Signer, SignerError};
use annex_identity::tls::session_server;
use annex_identity::{renewer, watch};
use rustls::ServerConfig;
use rustls::time_provider::DefaultTimeProvider;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

/// There can be no TLS.
#[derive(Debug, thiserror::Error)]
pub enum PortError {
    #[error("failed to set up TLS: {0}")]
    Tls(#[from] rustls::Error),
    #[error("bad [ca]: {0}")]
    Signer(#[from] SignerError),
    #[error("failed to start a thread: {0}")]
    Thread(#[from] io::Error),
}

#[derive(Debug)]
pub struct Port {
    pub session: Arc<ServerConfig>,
    pub identity: Arc<Identity>,
    /// `None`: nobody joins here.
    pub signer: Option<Signer>,
    /// Connections without TLS are taken as well.
    pub also_plain: bool,
}

impl Port {
    /// Who holds leases is let in also with a certificate that has run out, and may renew it. From
    /// now on this agent's own is looked after, too.
    pub fn open(
        identity: &Arc<Identity>,
        ca: Option<Ca>,
        lender: &Lender,
        address: SocketAddr,
    ) -> Result<Port, PortError> {
        let also_plain = lender.terms().also_plain;
        if also_plain {
            tracing::warn!(
                "{address} takes connections without encryption or authentication beside TLS, as also_plain = true \
                 allows: take that out as soon as all clients have certificates"
            );
        }
        watch::start(identity)?;
        // An agent that signs is a host of its CA as any other.
        let own = || ca.is_some().then(|| address.to_string().parse().ok()).flatten();
        if let Some(from) = lender.terms().renew.clone().or_else(own) {
            renewer::start(identity, from)?;
        }
        let (standings, clock) = (lender.connections().lane_keys().clone(), Arc::new(DefaultTimeProvider));
        let session = session_server(identity, standings.clone(), clock.clone())?;
        let signer = ca.map(|ca| Signer::new(ca, identity, standings, clock)).transpose()?;
        Ok(Port { session, identity: identity.clone(), signer, also_plain })
    }

    /// What is taken here, for people.
    pub fn what(&self) -> &'static str {
        match (self.also_plain, &self.signer) {
            (true, _) => "TLS and plain",
            (false, None) => "TLS only",
            (false, Some(_)) => "TLS only; hosts join here",
        }
    }
}
