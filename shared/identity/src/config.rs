//! `[tls]` in the configuration of a daemon: which files say who it is, and whom it believes.

use crate::certificate::Facts;
use crate::identity::{Files, Identity, IdentityError};
use crate::names::{Name, Role};
use crate::renewal::Outlook;
use crate::token::Address;
use rustls::pki_types::UnixTime;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::sync::Arc;

/// `[tls]`. Without any of its keys there is no TLS.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TlsConfig {
    /// The certificates of all CAs that are believed, in PEM.
    pub ca: Option<PathBuf>,
    /// This host's certificate, and behind it what stands between it and the CA.
    pub cert: Option<PathBuf>,
    /// The certificate's key. Nobody but its owner may read the file.
    pub key: Option<PathBuf>,
    /// Revocation lists.
    pub crl: Option<PathBuf>,
    /// The agent beside the CA, at which the certificate is renewed. Absent: it is not.
    pub renew: Option<Address>,
}

/// A daemon can't have the identity that it is configured for.
#[derive(Debug, thiserror::Error)]
pub enum TlsConfigError {
    #[error("{0} is missing in [tls]: give ca, cert and key, or none of them")]
    Missing(&'static str),
    #[error("bad [tls]: {0}")]
    Identity(#[from] IdentityError),
    #[error("bad [tls]: the certificate is that of {name}, and a {wanted} is to run here: give it one of its own")]
    Role { name: Name, wanted: Role },
}

impl TlsConfig {
    /// `None`: there is no TLS.
    pub fn files(&self) -> Result<Option<Files>, TlsConfigError> {
        let TlsConfig { ca, cert, key, crl, .. } = self.clone();
        if *self == TlsConfig::default() {
            return Ok(None);
        }
        Ok(Some(Files {
            ca: ca.ok_or(TlsConfigError::Missing("ca"))?,
            certificate: cert.ok_or(TlsConfigError::Missing("cert"))?,
            key: key.ok_or(TlsConfigError::Missing("key"))?,
            revocations: crl,
        }))
    }
}

/// Reads the files for a daemon of this role.
pub fn open(files: Files, wanted: Role) -> Result<Arc<Identity>, TlsConfigError> {
    let identity = Identity::open(files)?;
    let name = identity.current().own.name.clone();
    if name.role != wanted {
        return Err(TlsConfigError::Role { name, wanted });
    }
    Ok(Arc::new(identity))
}

/// How this host's certificate stands, in a line: what `check-config` says of a good `[tls]`.
fn summary(own: &Facts, now: UnixTime) -> String {
    let warning = Outlook::of(own.validity, now).warning();
    format!("this host is {own}{}", warning.map(|warning| format!("; {warning}")).unwrap_or_default())
}

/// The same of the certificate that is in use, now.
pub fn summary_now(identity: &Identity) -> String {
    summary(&identity.current().own, UnixTime::now())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::certificate::unix;
    use crate::testing::{DAY, NOW, Pki};

    #[test]
    fn all_files_are_given_or_none() {
        assert!(TlsConfig::default().files().unwrap().is_none());
        let whole =
            TlsConfig { ca: Some("a".into()), cert: Some("b".into()), key: Some("c".into()), ..TlsConfig::default() };
        assert_eq!(whole.files().unwrap().unwrap().certificate, PathBuf::from("b"));
        let said = |config: TlsConfig| config.files().unwrap_err().to_string();
        assert!(said(TlsConfig { ca: None, ..whole.clone() }).starts_with("ca is missing in [tls]"));
        assert!(said(TlsConfig { key: None, ..whole.clone() }).starts_with("key is missing"));
        assert!(said(TlsConfig { crl: Some("d".into()), ..TlsConfig::default() }).starts_with("ca is missing"));
        let renew = "ca.example:7411".parse().ok();
        assert!(said(TlsConfig { renew, ..TlsConfig::default() }).starts_with("ca is missing"));
    }

    #[test]
    fn a_good_certificate_is_told_with_its_name_and_its_end() {
        let dir = tempfile::tempdir().unwrap();
        let files = Pki::new("c").files(dir.path(), "annex://c/client/a");
        let own = open(files, Role::Client).unwrap().current().own.clone();
        assert_eq!(summary(&own, unix(NOW)), "this host is annex://c/client/a until 2027-04-15");
        let late = summary(&own, unix(NOW + 80 * DAY));
        assert!(late.ends_with("until 2027-04-15; the certificate expires in 9 days"), "{late}");
    }

    #[test]
    fn a_daemon_runs_with_a_certificate_of_its_role() {
        let dir = tempfile::tempdir().unwrap();
        let files = Pki::new("c").files(dir.path(), "annex://c/client/a");
        assert!(open(files.clone(), Role::Client).is_ok());
        let said = open(files, Role::Donor).unwrap_err().to_string();
        assert!(said.contains("that of annex://c/client/a, and a donor is to run here"), "{said}");
    }
}
