//! A PKI that is not ours, for tests: what `annex ca` never makes can be made with it too. Other
//! crates' tests have it by the feature `testing`.

use crate::certificate::{KeyId, unix};
use crate::files::{self, Secrecy};
use crate::identity::Files;
use crate::key::Key;
use crate::names::Label;
use crate::verify::{Standings, Trust};
pub use rcgen::CertificateParams as Params;
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyIdMethod, KeyPair, KeyUsagePurpose, RevokedCertParams, SanType, SerialNumber,
};
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::time_provider::TimeProvider;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use time::OffsetDateTime;

/// When tests begin.
pub const NOW: u64 = 1_800_000_000;
pub const DAY: u64 = 24 * 60 * 60;

fn at(seconds: u64) -> OffsetDateTime {
    OffsetDateTime::from_unix_timestamp(seconds as i64).unwrap()
}

/// Every key holds leases.
#[derive(Debug)]
pub struct Everybody;

impl Standings for Everybody {
    fn holds(&self, _: &KeyId) -> bool {
        true
    }
}

/// Time that a test sets.
#[derive(Debug)]
pub struct Clock(AtomicU64);

impl Clock {
    pub fn at(seconds: u64) -> Clock {
        Clock(AtomicU64::new(seconds))
    }

    pub fn set(&self, seconds: u64) {
        self.0.store(seconds, Ordering::Relaxed);
    }
}

impl TimeProvider for Clock {
    fn current_time(&self) -> Option<UnixTime> {
        Some(unix(self.0.load(Ordering::Relaxed)))
    }
}

/// A host's certificate, valid from an hour before [`NOW`] for 90 days.
pub fn leaf(uri: &str) -> CertificateParams {
    leaf_for(&[uri])
}

/// A host's certificate that is valid now, by the clock of the machine that tests: for daemons that
/// go by it. `days` from now it expires, or has expired if they are negative.
pub fn leaf_now(uri: &str, days: i64) -> CertificateParams {
    let now = OffsetDateTime::now_utc();
    let mut params = leaf(uri);
    params.not_before = now - time::Duration::days(100);
    params.not_after = now + time::Duration::days(days);
    params
}

fn leaf_for(uris: &[&str]) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.not_before = at(NOW - 3600);
    params.not_after = at(NOW - 3600 + 90 * DAY);
    params.subject_alt_names = uris.iter().map(|uri| SanType::URI((*uri).try_into().unwrap())).collect();
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    params.is_ca = IsCa::ExplicitNoCa;
    params
}

pub struct Pki {
    cluster: Label,
    certificate: CertificateDer<'static>,
    issuer: Issuer<'static, KeyPair>,
}

fn issuer_params(days: u64) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.not_before = at(NOW - DAY);
    params.not_after = at(NOW + days * DAY);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params.distinguished_name.push(DnType::CommonName, "a PKI");
    params
}

impl Pki {
    pub fn new(cluster: &str) -> Pki {
        let (key, params) = (KeyPair::generate().unwrap(), issuer_params(3650));
        let certificate = params.self_signed(&key).unwrap().der().clone();
        Pki { cluster: cluster.parse().unwrap(), certificate, issuer: Issuer::new(params, key) }
    }

    /// An issuer below this one, valid for so many days.
    pub fn issuer_between(&self, days: u64) -> (CertificateDer<'static>, Pki) {
        let (key, mut params) = (KeyPair::generate().unwrap(), issuer_params(days));
        params.distinguished_name.push(DnType::CommonName, "an issuer between");
        params.use_authority_key_identifier_extension = true;
        let certificate = params.signed_by(&key, &self.issuer).unwrap().der().clone();
        let issuer = Issuer::new(params, key);
        (certificate.clone(), Pki { cluster: self.cluster.clone(), certificate, issuer })
    }

    pub fn certificate(&self) -> CertificateDer<'static> {
        self.certificate.clone()
    }

    pub fn issue(&self, params: &CertificateParams) -> (CertificateDer<'static>, Key) {
        let key = Key::generate().unwrap();
        (self.issue_to(params, &key), key)
    }

    pub fn issue_to(&self, params: &CertificateParams, key: &Key) -> CertificateDer<'static> {
        params.signed_by(key.pair(), &self.issuer).unwrap().der().clone()
    }

    pub fn issue_for(&self, uris: &[&str]) -> (CertificateDer<'static>, Key) {
        self.issue(&leaf_for(uris))
    }

    pub fn trust(&self) -> Trust {
        Trust::new(&[self.certificate()], &[], self.cluster.clone()).unwrap()
    }

    /// A revocation list in PEM, which has run out.
    pub fn list(&self, revoked: &[&CertificateDer<'_>]) -> Vec<u8> {
        let revoked = revoked.iter().map(|certificate| RevokedCertParams {
            serial_number: SerialNumber::from(
                x509_parser::parse_x509_certificate(certificate).unwrap().1.raw_serial().to_vec(),
            ),
            revocation_time: at(NOW),
            reason_code: None,
            invalidity_date: None,
        });
        let list = CertificateRevocationListParams {
            this_update: at(NOW - 2 * DAY),
            next_update: at(NOW - DAY),
            crl_number: SerialNumber::from(1),
            issuing_distribution_point: None,
            revoked_certs: revoked.collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        list.signed_by(&self.issuer).unwrap().pem().unwrap().into_bytes()
    }

    pub fn trust_without(&self, revoked: &[&CertificateDer<'_>]) -> Trust {
        Trust::new(&[self.certificate()], &[self.list(revoked)], self.cluster.clone()).unwrap()
    }

    /// A host's files in a folder, with a certificate of this name.
    pub fn files(&self, dir: &Path, uri: &str) -> Files {
        self.files_of(dir, &leaf(uri))
    }

    pub fn files_of(&self, dir: &Path, params: &CertificateParams) -> Files {
        let (certificate, key) = self.issue(params);
        let files = Files {
            ca: dir.join("ca.pem"),
            certificate: dir.join("cert.pem"),
            key: dir.join("key.pem"),
            revocations: None,
        };
        files::write(&files.ca, crate::ca::to_pem(&self.certificate).as_bytes(), Secrecy::Public).unwrap();
        files::write(&files.certificate, crate::ca::to_pem(&certificate).as_bytes(), Secrecy::Public).unwrap();
        files::write(&files.key, key.to_pem().as_bytes(), Secrecy::Private).unwrap();
        files
    }
}
