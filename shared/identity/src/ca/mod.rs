//! A certification authority for clusters that have none: a folder, and what is done with it.
//!
//! | file | holds | who may read it |
//! | --- | --- | --- |
//! | `ca.pem` | the CA's certificate; every host has a copy | all |
//! | `ca-key.pem` | the CA's key | its owner |
//! | `registry.json` | what was issued and revoked, and the tokens: [`registry`] | its owner |
//! | `crl.pem` | the signed list of what is revoked | all |
//! | `lock` | nothing; held while anything changes | its owner |
//!
//! The folder itself is for its owner alone. Each file is written whole or not at all. A change
//! stands in the registry before anything of it leaves this module: so a token that was used stays
//! used, and every certificate that anybody has can be revoked, whenever a kill comes.
//!
//! - [`registry`]: the pure part, which decides.
//! - [`issue`]: the certificates themselves.

pub mod issue;
pub mod registry;

use crate::certificate::{CertificateError, Facts, KeyId, sha256};
use crate::files::{self, FileError, Lock, Secrecy};
use crate::key::{Key, KeyError, requested_key};
use crate::names::{Label, Name, Role};
use crate::token::{Address, Secret, Token, TokenError};
use rcgen::{Issuer, KeyPair};
use registry::{Issued, Refusal, Registry, TokenRecord};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, UnixTime};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

const CERTIFICATE: &str = "ca.pem";
const KEY: &str = "ca-key.pem";
const REGISTRY: &str = "registry.json";
const REVOCATIONS: &str = "crl.pem";
const LOCK: &str = "lock";

/// A token that is valid for longer than this would be a password.
pub const LONGEST_TOKEN: Duration = Duration::from_secs(30 * 24 * 60 * 60);

#[derive(Debug, thiserror::Error)]
pub enum CaError {
    #[error("there is a CA in {} already", .0.display())]
    Exists(PathBuf),
    #[error("there is no CA in {}: make one with annex ca init", .0.display())]
    Missing(PathBuf),
    #[error("{}: {why}", .path.display())]
    Damaged { path: PathBuf, why: String },
    #[error("a token is valid for a second to 30 days")]
    TokenLife,
    #[error(transparent)]
    File(#[from] FileError),
    #[error(transparent)]
    Refused(#[from] Refusal),
    #[error(transparent)]
    Key(#[from] KeyError),
    #[error(transparent)]
    Token(#[from] TokenError),
}

/// A certificate for a host, with the CA's own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signed {
    pub name: Name,
    pub certificate: CertificateDer<'static>,
    pub ca: CertificateDer<'static>,
}

#[derive(Debug)]
pub struct Ca {
    dir: PathBuf,
    cluster: Label,
    certificate: CertificateDer<'static>,
    key: Key,
}

impl Ca {
    /// Makes a CA in a folder that has none.
    pub fn init(dir: &Path, cluster: Label, now: UnixTime) -> Result<Ca, CaError> {
        files::private_dir(dir)?;
        let _lock = Lock::take(&dir.join(LOCK))?;
        if dir.join(CERTIFICATE).exists() || !is_untouched(&dir.join(REGISTRY))? {
            return Err(CaError::Exists(dir.to_owned()));
        }
        let key = Key::generate()?;
        let certificate = issue::root(&cluster, &key, now.as_secs())?;
        let ca = Ca { dir: dir.to_owned(), cluster, certificate, key };
        files::write(&ca.file(KEY), ca.key.to_pem().as_bytes(), Secrecy::Private)?;
        ca.save(&mut Registry::default(), now)?;
        files::write(&ca.file(CERTIFICATE), ca.certificate_pem().as_bytes(), Secrecy::Public)?;
        Ok(ca)
    }

    pub fn open(dir: &Path) -> Result<Ca, CaError> {
        let path = dir.join(CERTIFICATE);
        let pem = match files::read(&path) {
            Err(FileError::Read { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                return Err(CaError::Missing(dir.to_owned()));
            }
            other => other?,
        };
        let damaged = |path: &Path, why: String| CaError::Damaged { path: path.to_owned(), why };
        let certificate = CertificateDer::from_pem_slice(&pem).map_err(|e| damaged(&path, e.to_string()))?;
        let (cluster, public_key) = cluster_and_key(&certificate).map_err(|why| damaged(&path, why))?;
        let key_path = dir.join(KEY);
        files::check_private(&key_path)?;
        let pem = String::from_utf8(files::read(&key_path)?);
        let pem = pem.map_err(|_| damaged(&key_path, "it is no text".into()))?;
        let key = Key::from_pem(&pem).map_err(|e| damaged(&key_path, e.to_string()))?;
        if key.id() != public_key {
            return Err(damaged(&key_path, format!("this key is not that of {CERTIFICATE}")));
        }
        Ok(Ca { dir: dir.to_owned(), cluster, certificate, key })
    }

    pub fn cluster(&self) -> &Label {
        &self.cluster
    }

    pub fn certificate(&self) -> &CertificateDer<'static> {
        &self.certificate
    }

    pub fn certificate_pem(&self) -> String {
        to_pem(&self.certificate)
    }

    /// Where the signed list of what is revoked stands.
    pub fn revocation_list(&self) -> PathBuf {
        self.file(REVOCATIONS)
    }

    /// What was issued and handed out.
    pub fn registry(&self) -> Result<Registry, CaError> {
        let path = self.file(REGISTRY);
        Registry::parse(&files::read(&path)?).map_err(|why| CaError::Damaged { path, why })
    }

    /// Hands out a token that lets one host join under this name.
    pub fn token(
        &self,
        role: Role,
        host: Label,
        valid: Duration,
        addresses: Vec<Address>,
        now: UnixTime,
    ) -> Result<Token, CaError> {
        if valid < Duration::from_secs(1) || valid > LONGEST_TOKEN {
            return Err(CaError::TokenLife);
        }
        let token = Token::new(sha256(&self.certificate), Secret::draw()?, addresses)?;
        let expires = now.as_secs() + valid.as_secs();
        let record = TokenRecord { digest: token.secret().digest(), role, host, expires, used: None };
        self.change(|registry| Ok(registry.add_token(record, now.as_secs())?))?;
        Ok(token)
    }

    /// Signs a request that somebody brought here. Who asks is known to the one who brought it.
    pub fn sign(&self, role: Role, host: Label, request: &[u8], now: UnixTime) -> Result<Signed, CaError> {
        let public_key = requested_key(request)?;
        self.change(|registry| self.issue(registry, role, host, &public_key, now))
    }

    /// Signs the request of a host that shows a token, which names it. The token is used up.
    pub fn redeem(&self, secret: &Secret, request: &[u8], now: UnixTime) -> Result<Signed, CaError> {
        let public_key = requested_key(request)?;
        self.change(|registry| {
            let (role, host) = registry.redeem(&secret.digest(), &KeyId::of(&public_key), now.as_secs())?;
            self.issue(registry, role, host, &public_key, now)
        })
    }

    /// Signs the request of a host that has proven its certificate. Its key stays.
    pub fn renew(&self, peer: &Facts, request: &[u8], now: UnixTime) -> Result<Signed, CaError> {
        let public_key = requested_key(request)?;
        if KeyId::of(&public_key) != peer.key {
            return Err(KeyError::Request("a renewal must be for the key of the certificate before".into()).into());
        }
        if peer.name.cluster != self.cluster {
            return Err(KeyError::Request(format!("{} is not of cluster {}", peer.name, self.cluster)).into());
        }
        let (role, host) = (peer.name.role, peer.name.host.clone());
        self.change(|registry| {
            registry.check_known(role, &host, &peer.key)?;
            self.issue(registry, role, host, &public_key, now)
        })
    }

    /// Revokes all certificates of a host and signs the new list. Returns how many there were.
    pub fn revoke(&self, host: &Label, role: Option<Role>, now: UnixTime) -> Result<usize, CaError> {
        let _lock = Lock::take(&self.file(LOCK))?;
        let mut registry = self.registry()?;
        let revoked = registry.revoke(host, role, now.as_secs())?;
        // Also if there was nothing to revoke: a kill may have come before the list was written.
        self.save(&mut registry, now)?;
        Ok(revoked)
    }

    fn issue(
        &self,
        registry: &mut Registry,
        role: Role,
        host: Label,
        public_key: &[u8],
        now: UnixTime,
    ) -> Result<Signed, CaError> {
        registry.admit(role, &host, &KeyId::of(public_key))?;
        let name = Name { cluster: self.cluster.clone(), role, host };
        let (record, certificate) = issue::leaf(&self.issuer()?, &name, public_key, now.as_secs())?;
        check_issued(&certificate, &name, &record).map_err(|why| KeyError::Request(why.to_string()))?;
        registry.issued.push(record);
        Ok(Signed { name, certificate, ca: self.certificate.clone() })
    }

    /// One change of the registry, written before its result is seen.
    fn change<T>(&self, decide: impl FnOnce(&mut Registry) -> Result<T, CaError>) -> Result<T, CaError> {
        let _lock = Lock::take(&self.file(LOCK))?;
        let mut registry = self.registry()?;
        let result = decide(&mut registry)?;
        files::write(&self.file(REGISTRY), &registry.to_bytes(), Secrecy::Private)?;
        Ok(result)
    }

    /// Writes the registry, then the list that follows from it.
    fn save(&self, registry: &mut Registry, now: UnixTime) -> Result<(), CaError> {
        registry.list_number += 1;
        files::write(&self.file(REGISTRY), &registry.to_bytes(), Secrecy::Private)?;
        let list = issue::revocation_list(&self.issuer()?, &registry.issued, registry.list_number, now.as_secs())?;
        Ok(files::write(&self.file(REVOCATIONS), list.as_bytes(), Secrecy::Public)?)
    }

    fn issuer(&self) -> Result<Issuer<'static, &KeyPair>, KeyError> {
        Ok(Issuer::from_ca_cert_der(&self.certificate, self.key.pair())?)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }
}

/// An interrupted `init` may have left a registry, but none in which anything stands.
fn is_untouched(registry: &Path) -> Result<bool, FileError> {
    match files::read(registry) {
        Ok(bytes) => Ok(Registry::parse(&bytes).is_ok_and(|r| r.issued.is_empty() && r.tokens.is_empty())),
        Err(FileError::Read { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(true),
        Err(other) => Err(other),
    }
}

/// PEM, as `ca.pem` and every host's certificate are kept.
pub fn to_pem(certificate: &CertificateDer<'_>) -> String {
    let body = data_encoding::BASE64.encode(certificate);
    let mut pem = String::from("-----BEGIN CERTIFICATE-----\n");
    for line in body.as_bytes().chunks(64) {
        pem.extend(line.iter().map(|b| char::from(*b)));
        pem.push('\n');
    }
    pem.push_str("-----END CERTIFICATE-----\n");
    pem
}

/// The cluster of a CA is the organization in its certificate.
fn cluster_and_key(certificate: &CertificateDer<'_>) -> Result<(Label, KeyId), String> {
    let (_, parsed) = x509_parser::parse_x509_certificate(certificate).map_err(|e| e.to_string())?;
    let organization = parsed.subject().iter_organization().next().and_then(|name| name.as_str().ok());
    let cluster = organization.ok_or("it names no cluster: it is not of annex ca init")?;
    let cluster = cluster.parse().map_err(|e: crate::names::NameError| e.to_string())?;
    Ok((cluster, KeyId::of(parsed.public_key().raw)))
}

/// What leaves here is read back first.
fn check_issued(certificate: &CertificateDer<'_>, name: &Name, record: &Issued) -> Result<(), CertificateError> {
    let facts = Facts::of(certificate)?;
    if facts.name != *name || facts.key != record.key {
        return Err(CertificateError::Unreadable("it came out for another name or key".into()));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
