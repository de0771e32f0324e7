//! TLS for clients that are no hosts of ours, such as those of the KV API: a server's certificate
//! of any PKI, and the CA of the clients if they are to show one as well.
//!
//! All that [`tls`](crate::tls) says holds here too: TLS 1.3, nothing is resumed, and files that
//! don't fit together are not taken.

use crate::files;
use crate::identity::{self, IdentityError, Reloaded};
use crate::pem::PemError;
use crate::tls::provider;
use parking_lot::Mutex;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::sign::SingleCertAndKey;
use rustls::{RootCertStore, ServerConfig, version};
use std::path::PathBuf;
use std::sync::Arc;

#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    #[error(transparent)]
    File(#[from] IdentityError),
    #[error("no client could be believed by {}: {why}", .path.display())]
    Clients { path: PathBuf, why: String },
    #[error("TLS can't be set up: {0}")]
    Tls(#[from] rustls::Error),
}

/// Where a service's files are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceFiles {
    pub certificate: PathBuf,
    pub key: PathBuf,
    /// The CAs by one of which clients have a certificate. `None`: they need none.
    pub clients: Option<PathBuf>,
}

/// The bytes of all files, to see whether anything changed.
#[derive(PartialEq, Eq)]
struct Contents {
    certificate: Vec<u8>,
    key: Vec<u8>,
    clients: Option<Vec<u8>>,
}

impl Contents {
    fn read(files: &ServiceFiles) -> Result<Contents, ServiceError> {
        let read = |path: &PathBuf| files::read(path).map_err(IdentityError::from);
        Ok(Contents {
            certificate: read(&files.certificate)?,
            key: read(&files.key)?,
            clients: files.clients.as_ref().map(read).transpose()?,
        })
    }
}

/// What a service shows, and whom it believes: read again when the files change.
pub struct Service {
    files: ServiceFiles,
    current: Mutex<(Contents, Arc<ServerConfig>)>,
}

impl Service {
    pub fn open(files: ServiceFiles) -> Result<Service, ServiceError> {
        let contents = Contents::read(&files)?;
        let config = config(&files, &contents)?;
        Ok(Service { files, current: Mutex::new((contents, config)) })
    }

    /// For the next handshake.
    pub fn config(&self) -> Arc<ServerConfig> {
        self.current.lock().1.clone()
    }

    /// Looks at the files. After an error the ones before stay in use.
    pub fn reload(&self) -> Result<Reloaded, ServiceError> {
        let mut current = self.current.lock();
        let contents = Contents::read(&self.files)?;
        if contents == current.0 {
            return Ok(Reloaded::Unchanged);
        }
        let config = config(&self.files, &contents)?;
        *current = (contents, config);
        Ok(Reloaded::Taken)
    }
}

fn config(files: &ServiceFiles, contents: &Contents) -> Result<Arc<ServerConfig>, ServiceError> {
    files::check_private(&files.key).map_err(IdentityError::from)?;
    let chain = identity::certificates(&files.certificate, &contents.certificate)?;
    if chain.is_empty() {
        return Err(none_in(&files.certificate));
    }
    let certified = identity::certified((&files.certificate, chain), (&files.key, &contents.key))?;
    let builder = ServerConfig::builder_with_provider(provider()).with_protocol_versions(&[&version::TLS13])?;
    let builder = match files.clients.as_ref().zip(contents.clients.as_ref()) {
        None => builder.with_no_client_auth(),
        Some((path, bytes)) => {
            let mut roots = RootCertStore::empty();
            let refused = |why: String| ServiceError::Clients { path: path.clone(), why };
            let cas = identity::certificates(path, bytes)?;
            if cas.is_empty() {
                return Err(none_in(path));
            }
            for ca in cas {
                roots.add(ca).map_err(|why| refused(why.to_string()))?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider());
            builder.with_client_cert_verifier(verifier.build().map_err(|why| refused(why.to_string()))?)
        }
    };
    let mut config = builder.with_cert_resolver(Arc::new(SingleCertAndKey::from(certified)));
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    config.max_early_data_size = 0;
    Ok(Arc::new(config))
}

fn none_in(path: &std::path::Path) -> ServiceError {
    IdentityError::Pem { path: path.to_owned(), source: PemError::NoCertificate }.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::{Secrecy, write};
    use crate::testing::{Pki, leaf};

    #[test]
    fn changed_files_are_taken_as_a_pair_or_not_at_all() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let files = ServiceFiles { certificate: at("cert"), key: at("key"), clients: None };
        let put = |path: &PathBuf, text: &str| write(path, text.as_bytes(), Secrecy::Private).unwrap();
        let pki = Pki::new("c");
        let pairs = [(); 2].map(|()| pki.issue(&leaf("annex://c/client/a")));
        let pairs = pairs.map(|(certificate, key)| (crate::ca::to_pem(&certificate), key.to_pem()));
        put(&files.certificate, &pairs[0].0);
        put(&files.key, &pairs[0].1);
        let service = Service::open(files.clone()).unwrap();
        assert_eq!(service.reload().unwrap(), Reloaded::Unchanged);
        let first = service.config();
        put(&files.certificate, &pairs[1].0);
        let said = service.reload().unwrap_err().to_string();
        assert!(said.contains("is not the key of"), "{said}");
        assert!(Arc::ptr_eq(&first, &service.config()), "half of a pair is in use");
        put(&files.key, &pairs[1].1);
        assert_eq!(service.reload().unwrap(), Reloaded::Taken);
        assert!(!Arc::ptr_eq(&first, &service.config()));
    }

    #[test]
    fn what_cannot_be_used_is_named_with_its_file() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let (certificate, key) = Pki::new("c").issue(&leaf("annex://c/client/a"));
        write(&at("cert"), crate::ca::to_pem(&certificate).as_bytes(), Secrecy::Public).unwrap();
        write(&at("key"), key.to_pem().as_bytes(), Secrecy::Private).unwrap();
        write(&at("empty"), b"", Secrecy::Public).unwrap();
        let said = |files| Service::open(files).err().map(|error| error.to_string()).unwrap_or_default();
        let good = ServiceFiles { certificate: at("cert"), key: at("key"), clients: None };
        assert_eq!(said(good.clone()), "");
        let missing = said(ServiceFiles { key: at("missing"), ..good.clone() });
        assert!(missing.starts_with("failed to read") && missing.contains("missing"), "{missing}");
        let empty = said(ServiceFiles { certificate: at("empty"), ..good.clone() });
        assert!(empty.contains("empty: there is no whole certificate"), "{empty}");
        let clients = said(ServiceFiles { clients: Some(at("empty")), ..good.clone() });
        assert!(clients.contains("empty: there is no whole certificate"), "{clients}");
        std::fs::set_permissions(at("key"), std::os::unix::fs::PermissionsExt::from_mode(0o644)).unwrap();
        assert!(said(good).contains("chmod 600"), "others may read the key");
    }
}
