//! A daemon's own certificate and key, and whom it believes: read from files, and again when they
//! change.
//!
//! Any PKI's files in PEM serve: the CAs, the certificate with what stands between it and the CA,
//! the key, and revocation lists if there are any. Files that don't fit together are not taken,
//! and the ones before stay: a certificate and the key of another never meet, however the two files
//! are replaced. An expired certificate is taken: it may be all that there is.

use crate::certificate::{CertificateError, Facts};
use crate::files::{self, FileError};
use crate::names::{Name, Role};
use crate::pem::{self, PemError};
use crate::renewal::Outlook;
use crate::verify::{Peer, PeerError, Standings, Trust, TrustError};
use annex_shared::api::CertificateInfo;
use parking_lot::{Mutex, RwLock};
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::sign::CertifiedKey;
use std::path::{Path, PathBuf};
use std::sync::Arc;

#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error("{}: {source}", .path.display())]
    Pem { path: PathBuf, source: PemError },
    #[error("{}: {source}", .path.display())]
    Certificate { path: PathBuf, source: CertificateError },
    #[error("{}: {source}", .path.display())]
    Trust { path: PathBuf, source: TrustError },
    #[error("the key {} can't be used: {why}", .path.display())]
    Key { path: PathBuf, why: String },
    #[error("{} is not the key of {}: replace both", .key.display(), .certificate.display())]
    Mismatch { key: PathBuf, certificate: PathBuf },
    #[error("no host would believe {}: {source}", .path.display())]
    Chain { path: PathBuf, source: PeerError },
    #[error("{} names {new}, and this daemon runs as {old}: {}", .path.display(), to_rename(.old))]
    Renamed { path: PathBuf, old: Box<Name>, new: Box<Name> },
}

fn to_rename(old: &Name) -> &'static str {
    match old.role {
        Role::Donor => "restart it to change that",
        Role::Client => {
            "donors keep the pages of its programs for that name alone; detach them, and then restart it to change that"
        }
    }
}

/// Where a daemon's files are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Files {
    pub ca: PathBuf,
    pub certificate: PathBuf,
    pub key: PathBuf,
    pub revocations: Option<PathBuf>,
}

/// The bytes of all files, to see whether anything changed.
#[derive(PartialEq, Eq)]
struct Contents {
    ca: Vec<u8>,
    certificate: Vec<u8>,
    key: Vec<u8>,
    revocations: Vec<Vec<u8>>,
}

impl Contents {
    fn read(files: &Files) -> Result<Contents, FileError> {
        Ok(Contents {
            ca: files::read(&files.ca)?,
            certificate: files::read(&files.certificate)?,
            key: files::read(&files.key)?,
            revocations: files.revocations.iter().map(|path| files::read(path)).collect::<Result<_, _>>()?,
        })
    }
}

/// What was read, as one: it never changes.
#[derive(Debug)]
pub struct Loaded {
    pub own: Facts,
    pub trust: Trust,
    pub certified: Arc<CertifiedKey>,
}

impl Loaded {
    fn of(files: &Files, contents: &Contents) -> Result<Loaded, IdentityError> {
        files::check_private(&files.key)?;
        let (own, chain) = shown(&files.certificate, &contents.certificate)?;
        let leaf = &chain[0];
        let in_ca = |source| IdentityError::Trust { path: files.ca.clone(), source };
        let cas = certificates(&files.ca, &contents.ca)?;
        // A revoked certificate is taken, or the list that revokes it would not be.
        let unrevoked = Trust::new(&cas, &[], own.name.cluster.clone()).map_err(in_ca)?;
        let moment = own.validity.not_before;
        unrevoked
            .check(leaf, &chain[1..], Some(own.name.role), &Own, moment)
            .map_err(|source| IdentityError::Chain { path: files.certificate.clone(), source })?;
        let in_lists =
            |source| IdentityError::Trust { path: files.revocations.as_ref().unwrap_or(&files.ca).clone(), source };
        let trust = Trust::new(&cas, &contents.revocations, own.name.cluster.clone()).map_err(in_lists)?;
        let certified = Arc::new(certified((&files.certificate, chain), (&files.key, &contents.key))?);
        Ok(Loaded { own, trust, certified })
    }
}

/// The time does not matter for what this host shows itself.
#[derive(Debug)]
pub(crate) struct Own;

impl Standings for Own {
    fn holds(&self, _: &crate::certificate::KeyId) -> bool {
        true
    }
}

pub(crate) fn certificates(path: &Path, bytes: &[u8]) -> Result<Vec<CertificateDer<'static>>, IdentityError> {
    pem::certificates(bytes).map_err(|source| IdentityError::Pem { path: path.to_owned(), source })
}

/// What this host shows: at least its own certificate.
fn shown(path: &Path, bytes: &[u8]) -> Result<(Facts, Vec<CertificateDer<'static>>), IdentityError> {
    let chain = certificates(path, bytes)?;
    let none = || IdentityError::Pem { path: path.to_owned(), source: PemError::NoCertificate };
    let own = Facts::of(chain.first().ok_or_else(none)?)
        .map_err(|source| IdentityError::Certificate { path: path.to_owned(), source })?;
    Ok((own, chain))
}

/// What the certificate alone says of this host: for whoever may not read the key. Nothing else is
/// checked.
pub fn facts(files: &Files) -> Result<Facts, IdentityError> {
    Ok(shown(&files.certificate, &files::read(&files.certificate)?)?.0)
}

/// A certificate's chain and its key, each with the file that it is from: a pair, or an error.
pub(crate) fn certified(
    (certificate, chain): (&Path, Vec<CertificateDer<'static>>),
    (path, key): (&Path, &[u8]),
) -> Result<CertifiedKey, IdentityError> {
    let unusable = |why: String| IdentityError::Key { path: path.to_owned(), why };
    let key = pem::key(key).map_err(|source| IdentityError::Pem { path: path.to_owned(), source })?;
    let provider = rustls::crypto::aws_lc_rs::default_provider();
    let key = provider.key_provider.load_private_key(key).map_err(|e| unusable(e.to_string()))?;
    let certified = CertifiedKey::new(chain, key);
    // Also if rustls can't tell: a pair is taken only if it is known to be one.
    let mismatch = |_| IdentityError::Mismatch { key: path.to_owned(), certificate: certificate.to_owned() };
    certified.keys_match().map_err(mismatch)?;
    Ok(certified)
}

/// What came of looking at the files once more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reloaded {
    Unchanged,
    Taken,
}

/// A daemon's identity. Every TLS configuration shares it, and asks it at each handshake.
pub struct Identity {
    files: Files,
    current: RwLock<Arc<Loaded>>,
    taken: Mutex<Contents>,
}

impl Identity {
    pub fn open(files: Files) -> Result<Identity, IdentityError> {
        let contents = Contents::read(&files)?;
        let loaded = Loaded::of(&files, &contents)?;
        Ok(Identity { files, current: RwLock::new(Arc::new(loaded)), taken: Mutex::new(contents) })
    }

    pub fn files(&self) -> &Files {
        &self.files
    }

    pub fn current(&self) -> Arc<Loaded> {
        self.current.read().clone()
    }

    /// The certificate, as status and metrics tell of it.
    pub fn certificate(&self, now: UnixTime) -> CertificateInfo {
        let own = self.current().own.clone();
        let outlook = Outlook::of(own.validity, now);
        CertificateInfo {
            name: own.name.to_string(),
            expires: own.validity.not_after.as_secs(),
            summary: own.to_string(),
            warning: outlook.warning().unwrap_or_default(),
            is_invalid: matches!(outlook, Outlook::Expired(_) | Outlook::NotYet(_)),
        }
    }

    /// Looks at the files. A daemon calls it every few seconds. After an error the files before
    /// stay in use; the same error comes back each time until they are put right.
    pub fn reload(&self) -> Result<Reloaded, IdentityError> {
        let mut taken = self.taken.lock();
        let contents = Contents::read(&self.files)?;
        if contents == *taken {
            return Ok(Reloaded::Unchanged);
        }
        let loaded = Loaded::of(&self.files, &contents)?;
        let old = self.current().own.name.clone();
        if loaded.own.name != old {
            let (old, new) = (Box::new(old), Box::new(loaded.own.name));
            return Err(IdentityError::Renamed { path: self.files.certificate.clone(), old, new });
        }
        *self.current.write() = Arc::new(loaded);
        *taken = contents;
        Ok(Reloaded::Taken)
    }

    /// Decides about a peer by what is loaded now.
    pub fn check(
        &self,
        chain: &[CertificateDer<'_>],
        wanted: Option<crate::names::Role>,
        standings: &dyn Standings,
        now: UnixTime,
    ) -> Result<Peer, PeerError> {
        let (leaf, others) = chain
            .split_first()
            .ok_or_else(|| PeerError::Certificate(CertificateError::Unreadable("there is none".into())))?;
        self.current().trust.check(leaf, others, wanted, standings, now)
    }
}

impl std::fmt::Debug for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Identity({})", self.current().own.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::certificate::unix;
    use crate::files::Secrecy;
    use crate::testing::{NOW, Pki, leaf};
    use crate::verify::Nobody;
    use std::os::unix::fs::PermissionsExt;

    const OWN: &str = "annex://c/donor/a";

    struct Host {
        pki: Pki,
        dir: tempfile::TempDir,
        files: Files,
    }

    impl Host {
        fn new() -> Host {
            let (pki, dir) = (Pki::new("c"), tempfile::tempdir().unwrap());
            let files = pki.files(dir.path(), OWN);
            Host { pki, dir, files }
        }

        fn put(&self, path: &Path, text: &str) {
            files::write(path, text.as_bytes(), Secrecy::Private).unwrap();
        }

        fn put_certificates(&self, path: &Path, certificates: &[&CertificateDer<'_>]) {
            self.put(path, &certificates.iter().map(|c| crate::ca::to_pem(c)).collect::<String>());
        }
    }

    #[test]
    fn files_that_did_not_change_are_not_taken_again() {
        let host = Host::new();
        let identity = Identity::open(host.files.clone()).unwrap();
        assert_eq!(identity.current().own.name.to_string(), OWN);
        assert_eq!(identity.reload().unwrap(), Reloaded::Unchanged);
    }

    #[test]
    fn a_certificate_and_a_key_are_taken_as_a_pair_or_not_at_all() {
        let host = Host::new();
        let identity = Identity::open(host.files.clone()).unwrap();
        let before = identity.current().own.clone();
        let (certificate, key) = host.pki.issue(&leaf(OWN));
        // In either order, and however long the other one takes.
        for first_is_key in [true, false] {
            let original = (files::read(&host.files.key).unwrap(), files::read(&host.files.certificate).unwrap());
            match first_is_key {
                true => host.put(&host.files.key, &key.to_pem()),
                false => host.put_certificates(&host.files.certificate, &[&certificate]),
            }
            for _ in 0..2 {
                assert!(matches!(identity.reload(), Err(IdentityError::Mismatch { .. })));
                assert_eq!(identity.current().own, before);
            }
            assert!(matches!(Identity::open(host.files.clone()), Err(IdentityError::Mismatch { .. })));
            host.put(&host.files.key, std::str::from_utf8(&original.0).unwrap());
            host.put(&host.files.certificate, std::str::from_utf8(&original.1).unwrap());
            assert_eq!(identity.reload().unwrap(), Reloaded::Unchanged);
        }
        host.put(&host.files.key, &key.to_pem());
        host.put_certificates(&host.files.certificate, &[&certificate]);
        assert_eq!(identity.reload().unwrap(), Reloaded::Taken);
        assert_eq!(identity.current().own.key, key.id());
    }

    #[test]
    fn damaged_or_missing_files_leave_the_ones_before_in_use() {
        let host = Host::new();
        let identity = Identity::open(host.files.clone()).unwrap();
        for path in [&host.files.ca, &host.files.certificate, &host.files.key] {
            let original = files::read(path).unwrap();
            for text in ["", "nonsense", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"] {
                host.put(path, text);
                assert!(identity.reload().is_err(), "{} with {text:?}", path.display());
            }
            std::fs::remove_file(path).unwrap();
            assert!(matches!(identity.reload(), Err(IdentityError::File(_))));
            host.put(path, std::str::from_utf8(&original).unwrap());
            assert_eq!(identity.reload().unwrap(), Reloaded::Unchanged);
        }
    }

    #[test]
    fn a_certificate_that_no_peer_would_believe_is_told_at_once() {
        let host = Host::new();
        host.put_certificates(&host.files.ca, &[&Pki::new("c").certificate()]);
        let refused = Identity::open(host.files.clone());
        assert!(matches!(refused, Err(IdentityError::Chain { .. })), "{refused:?}");
    }

    /// Operators read `missing section end marker: [67, 69, …]` and `no items found`, and did not
    /// know which file was meant or what was wrong with it.
    #[test]
    fn a_file_that_holds_something_else_is_named_with_what_is_missing_in_it() {
        let host = Host::new();
        let said = || Identity::open(host.files.clone()).unwrap_err().to_string();
        let (certificate, key) = [&host.files.certificate, &host.files.key]
            .map(|path| String::from_utf8(files::read(path).unwrap()).unwrap())
            .into();
        for text in ["", &key, &certificate[..certificate.len() / 2]] {
            host.put(&host.files.certificate, text);
            let wanted = format!("{}: there is no whole certificate in PEM in it", host.files.certificate.display());
            assert_eq!(said(), wanted, "{text:?}");
        }
        host.put(&host.files.certificate, &certificate);
        for text in ["", &certificate] {
            host.put(&host.files.key, text);
            assert_eq!(said(), format!("{}: there is no key in PEM in it", host.files.key.display()), "{text:?}");
        }
    }

    #[test]
    fn without_the_key_the_certificate_tells_of_itself() {
        let host = Host::new();
        std::fs::remove_file(&host.files.key).unwrap();
        assert_eq!(facts(&host.files).unwrap().name.to_string(), OWN);
    }

    #[test]
    fn an_issuer_between_that_is_missing_is_thought_of() {
        let host = Host::new();
        let (certificate, key) = host.pki.issuer_between(30).1.issue(&leaf(OWN));
        host.put(&host.files.key, &key.to_pem());
        host.put_certificates(&host.files.certificate, &[&certificate]);
        let said = Identity::open(host.files.clone()).unwrap_err().to_string();
        assert!(said.ends_with("or those between it and the CA are missing behind it in its cert file"), "{said}");
    }

    #[test]
    fn an_expired_certificate_is_taken() {
        let host = Host::new();
        let mut params = leaf(OWN);
        params.not_before -= time::Duration::days(1000);
        params.not_after -= time::Duration::days(1000);
        let (certificate, key) = host.pki.issue(&params);
        host.put(&host.files.key, &key.to_pem());
        host.put_certificates(&host.files.certificate, &[&certificate]);
        assert!(Identity::open(host.files.clone()).is_ok());
    }

    #[test]
    fn a_daemon_does_not_become_another_one_while_it_runs() {
        let host = Host::new();
        let identity = Identity::open(host.files.clone()).unwrap();
        let (certificate, key) = host.pki.issue(&leaf("annex://c/donor/b"));
        host.put(&host.files.key, &key.to_pem());
        host.put_certificates(&host.files.certificate, &[&certificate]);
        assert!(matches!(identity.reload(), Err(IdentityError::Renamed { .. })));
        assert_eq!(identity.current().own.name.to_string(), OWN);
    }

    #[test]
    fn a_client_is_told_that_its_pages_are_lent_to_its_name() {
        let of = |old: &str| {
            let name = |name: &str| Box::new(name.parse().unwrap());
            IdentityError::Renamed { path: "c".into(), old: name(old), new: name("annex://c/client/z") }.to_string()
        };
        assert!(of("annex://c/client/a").ends_with("detach them, and then restart it to change that"));
        assert!(of("annex://c/donor/a").ends_with("runs as annex://c/donor/a: restart it to change that"));
    }

    #[test]
    fn a_key_that_others_may_read_is_not_taken() {
        let host = Host::new();
        std::fs::set_permissions(&host.files.key, std::fs::Permissions::from_mode(0o644)).unwrap();
        assert!(matches!(Identity::open(host.files.clone()), Err(IdentityError::File(FileError::Open { .. }))));
    }

    #[test]
    fn a_list_that_revokes_this_host_itself_is_taken_too() {
        let host = Host::new();
        let files = Files { revocations: Some(host.dir.path().join("crl.pem")), ..host.files.clone() };
        let list = |revoked: &[&CertificateDer<'_>]| String::from_utf8(host.pki.list(revoked)).unwrap();
        host.put(files.revocations.as_ref().unwrap(), &list(&[]));
        let identity = Identity::open(files.clone()).unwrap();
        let own = identity.current().certified.cert[0].clone();
        let (peer, _) = host.pki.issue(&leaf("annex://c/client/p"));
        let check = || identity.check(std::slice::from_ref(&peer), None, &Nobody, unix(NOW)).map(drop);
        assert_eq!(check(), Ok(()));
        host.put(files.revocations.as_ref().unwrap(), &list(&[&own, &peer]));
        assert_eq!(identity.reload().unwrap(), Reloaded::Taken);
        assert_eq!(check(), Err(PeerError::Revoked("annex://c/client/p".parse().unwrap())));
    }

    #[test]
    fn a_chain_with_an_issuer_between_is_shown_whole() {
        let host = Host::new();
        let (between, issuer) = host.pki.issuer_between(30);
        let (certificate, key) = issuer.issue(&leaf(OWN));
        host.put(&host.files.key, &key.to_pem());
        host.put_certificates(&host.files.certificate, &[&certificate, &between]);
        let identity = Identity::open(host.files.clone()).unwrap();
        assert_eq!(identity.current().certified.cert.len(), 2);
    }
}
