//! What we read from a certificate: whom it names, when it is valid, and which key it is for.
//!
//! Reading proves nothing. Whether a certificate is to be believed is the matter of
//! [`verify`](crate::verify). The name and the key are read by webpki, which also verifies the
//! chain: so both speak of the same bytes.

use crate::names::{Name, NameError};
use aws_lc_rs::digest;
use data_encoding::HEXLOWER;
use rustls::pki_types::{CertificateDer, UnixTime};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::Duration;
use webpki::EndEntityCert;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CertificateError {
    #[error("the certificate can't be read: {0}")]
    Unreadable(String),
    #[error("the certificate has a critical extension that annex does not know")]
    CriticalExtension,
    #[error("the certificate names no annex host: it has no URI annex://CLUSTER/ROLE/NAME")]
    NoName,
    #[error("the certificate names several annex hosts: {0} and {1}")]
    SeveralNames(String, String),
    #[error(transparent)]
    BadName(#[from] NameError),
}

/// SHA-256 of a public key with its algorithm (SubjectPublicKeyInfo). It stays when a certificate
/// is renewed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct KeyId([u8; 32]);

impl KeyId {
    pub fn of(public_key_info: &[u8]) -> KeyId {
        KeyId(sha256(public_key_info))
    }
}

impl From<[u8; 32]> for KeyId {
    fn from(hash: [u8; 32]) -> KeyId {
        KeyId(hash)
    }
}

impl AsRef<[u8]> for KeyId {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&HEXLOWER.encode(&self.0))
    }
}

impl fmt::Debug for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl From<KeyId> for String {
    fn from(id: KeyId) -> String {
        id.to_string()
    }
}

impl TryFrom<String> for KeyId {
    type Error = &'static str;

    fn try_from(text: String) -> Result<KeyId, &'static str> {
        let bytes = HEXLOWER.decode(text.as_bytes()).ok().and_then(|bytes| bytes.try_into().ok());
        bytes.map(KeyId).ok_or("a key's id is 64 hexadecimal digits")
    }
}

pub fn sha256(bytes: &[u8]) -> [u8; 32] {
    let mut hash = [0; 32];
    hash.copy_from_slice(digest::digest(&digest::SHA256, bytes).as_ref());
    hash
}

/// The first and the last second in which a certificate is valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Validity {
    pub not_before: UnixTime,
    pub not_after: UnixTime,
}

impl Validity {
    pub fn holds(&self, now: UnixTime) -> bool {
        self.not_before <= now && now <= self.not_after
    }

    /// In seconds.
    pub fn life(&self) -> u64 {
        self.not_after.as_secs().saturating_sub(self.not_before.as_secs())
    }

    pub fn of(certificate: &CertificateDer<'_>) -> Result<Validity, CertificateError> {
        let unreadable = |why: String| CertificateError::Unreadable(why);
        let (_, parsed) = x509_parser::parse_x509_certificate(certificate).map_err(|e| unreadable(e.to_string()))?;
        let second = |at: x509_parser::time::ASN1Time| u64::try_from(at.timestamp()).unwrap_or(0);
        Ok(Validity {
            not_before: unix(second(parsed.validity().not_before)),
            not_after: unix(second(parsed.validity().not_after)),
        })
    }
}

pub fn unix(seconds: u64) -> UnixTime {
    UnixTime::since_unix_epoch(Duration::from_secs(seconds))
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    pub name: Name,
    pub key: KeyId,
    pub validity: Validity,
}

impl fmt::Display for Facts {
    /// `annex://corp/client/web until 2027-02-26`, as of UTC.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let last = i64::try_from(self.validity.not_after.as_secs()).ok();
        match last.and_then(|last| time::OffsetDateTime::from_unix_timestamp(last).ok()) {
            Some(last) => write!(f, "{} until {}", self.name, last.date()),
            None => write!(f, "{}", self.name),
        }
    }
}

impl Facts {
    pub fn of(certificate: &CertificateDer<'_>) -> Result<Facts, CertificateError> {
        let parsed = EndEntityCert::try_from(certificate).map_err(|error| match error {
            webpki::Error::UnsupportedCriticalExtension => CertificateError::CriticalExtension,
            other => CertificateError::Unreadable(other.to_string()),
        })?;
        let mut ours = parsed.valid_uri_names().filter(|uri| Name::is_ours(uri));
        let name = ours.next().ok_or(CertificateError::NoName)?;
        if let Some(second) = ours.next() {
            return Err(CertificateError::SeveralNames(name.into(), second.into()));
        }
        Ok(Facts {
            name: name.parse()?,
            key: KeyId::of(&parsed.subject_public_key_info()),
            validity: Validity::of(certificate)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{DAY, NOW, Pki, leaf};

    #[test]
    fn a_certificate_tells_its_name_its_key_and_when_it_is_valid() {
        let pki = Pki::new("c");
        let (certificate, key) = pki.issue(&leaf("annex://c/donor/a"));
        let facts = Facts::of(&certificate).unwrap();
        assert_eq!(facts.name.to_string(), "annex://c/donor/a");
        assert_eq!(facts.to_string(), "annex://c/donor/a until 2027-04-15");
        assert_eq!(facts.key, key.id());
        assert_eq!(facts.validity.life(), 90 * DAY);
        assert!(facts.validity.holds(unix(NOW)) && !facts.validity.holds(unix(NOW + 91 * DAY)));
    }

    #[test]
    fn a_certificate_names_one_host_of_annex_and_may_name_other_things() {
        let pki = Pki::new("c");
        let facts = |uris: &[&str]| Facts::of(&pki.issue_for(uris).0).map(|facts| facts.name.to_string());
        assert_eq!(facts(&["spiffe://x/y", "annex://c/client/b"]).unwrap(), "annex://c/client/b");
        assert_eq!(facts(&["spiffe://x/y"]), Err(CertificateError::NoName));
        assert!(matches!(facts(&["annex://c/client/b", "annex://c/donor/b"]), Err(CertificateError::SeveralNames(..))));
        assert!(matches!(facts(&["ANNEX://c/client/b"]), Err(CertificateError::BadName(_))));
        assert!(matches!(facts(&["annex://c/client/b", "annex:b"]), Err(CertificateError::SeveralNames(..))));
    }

    #[test]
    fn a_critical_extension_that_nobody_knows_is_told_in_words() {
        let mut params = leaf("annex://c/donor/a");
        let mut odd = rcgen::CustomExtension::from_oid_content(&[1, 3, 6, 1, 4, 1, 99999, 1], vec![5, 0]);
        odd.set_criticality(true);
        params.custom_extensions.push(odd);
        let (certificate, _) = Pki::new("c").issue(&params);
        assert_eq!(Facts::of(&certificate), Err(CertificateError::CriticalExtension));
    }

    #[test]
    fn what_is_no_certificate_is_refused() {
        assert!(matches!(Facts::of(&CertificateDer::from(vec![1, 2, 3])), Err(CertificateError::Unreadable(_))));
    }

    #[test]
    fn a_keys_id_is_written_as_it_is_read() {
        let id = KeyId::of(b"key");
        assert_eq!(KeyId::try_from(id.to_string()), Ok(id));
        assert!(KeyId::try_from("abc".to_owned()).is_err());
        assert!(KeyId::try_from(id.to_string().to_uppercase()).is_err());
    }
}
