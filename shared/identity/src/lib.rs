//! Who is who between donors and clients.
//!
//! A host proves who it is by a certificate that a certification authority (CA) issued. The
//! certificate names it as `annex://CLUSTER/ROLE/NAME`. Host names and addresses mean nothing.
//!
//! - [`names`]: the name in a certificate.
//! - [`certificate`]: what we read from a certificate, and the id of its key.
//! - [`key`]: a host's own key, which never leaves the host.
//! - [`ca`]: issues and revokes certificates, hands out tokens.
//! - [`token`]: what a host joins with.
//! - [`pem`]: certificates and keys in PEM, and what is wrong with such a file.
//! - [`verify`]: whether a peer may be spoken to.
//! - [`identity`]: a daemon's own certificate and key, read again when the files change.
//! - [`renewal`]: when a certificate is renewed, and what is said before it expires.
//! - [`renewer`]: the thread that does it.
//! - [`tls`]: the TLS configuration of every socket.
//! - [`service`]: TLS for clients that are no hosts of ours: a server's certificate of any PKI.
//! - [`stream`]: a connection, plain or TLS.
//! - [`hello`]: what a peer wants from an agent's port.
//! - [`config`]: `[tls]` in a daemon's configuration.
//! - [`watch`]: looks at the files, and says in the log how they stand.
//! - [`exporter`]: how a data connection shows that it belongs to a control session.
//! - [`join`]: how a host gets its first certificate, and each later one.
//! - [`files`]: files that are written whole or not at all.
//!
//! Two things hold everywhere. The time is a parameter or a rustls `TimeProvider`, so tests use
//! virtual time. And an expired certificate never costs a program its pages: see [`verify`].

#![forbid(unsafe_code)]

pub mod ca;
pub mod certificate;
pub mod config;
pub mod exporter;
pub mod files;
pub mod hello;
pub mod identity;
pub mod join;
pub mod key;
pub mod names;
pub mod pem;
pub mod renewal;
pub mod renewer;
pub mod service;
pub mod stream;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod tls;
pub mod token;
pub mod verify;
pub mod watch;
