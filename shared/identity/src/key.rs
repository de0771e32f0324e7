//! A host's own key, and the request for a certificate (CSR) that it signs.
//!
//! Keys are ECDSA over P-256, as every PKI takes them.

use crate::certificate::KeyId;
use rcgen::{CertificateParams, DistinguishedName, KeyPair, PKCS_ECDSA_P256_SHA256, PublicKeyData};
use rustls::pki_types::PrivateKeyDer;
use std::fmt;
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::prelude::FromDer;

/// A request of ours takes 200 bytes; one with an RSA key of 8192 bits, 2.2 KiB.
pub const LONGEST_REQUEST: usize = 4096;

#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    #[error("failed to make a key or a certificate: {0}")]
    Make(#[from] rcgen::Error),
    #[error("the key can't be used: {0}")]
    Unusable(String),
    #[error("the request for a certificate can't be used: {0}")]
    Request(String),
}

pub struct Key(KeyPair);

impl Key {
    pub fn generate() -> Result<Key, KeyError> {
        Ok(Key(KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?))
    }

    /// Takes any key that can sign requests: those of other PKIs too.
    pub fn of(private: &PrivateKeyDer<'_>) -> Result<Key, KeyError> {
        KeyPair::try_from(private).map(Key).map_err(|e| KeyError::Unusable(e.to_string()))
    }

    pub fn from_pem(pem: &str) -> Result<Key, KeyError> {
        KeyPair::from_pem(pem).map(Key).map_err(|e| KeyError::Unusable(e.to_string()))
    }

    pub fn to_pem(&self) -> String {
        self.0.serialize_pem()
    }

    pub fn id(&self) -> KeyId {
        KeyId::of(&self.0.subject_public_key_info())
    }

    /// The request says nothing but which key it is for: what the certificate names is the CA's
    /// decision.
    pub fn request(&self) -> Result<Vec<u8>, KeyError> {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        Ok(params.serialize_request(&self.0)?.der().to_vec())
    }

    pub(crate) fn pair(&self) -> &KeyPair {
        &self.0
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({})", self.id())
    }
}

/// The public key that a request is for (SubjectPublicKeyInfo). The request is signed with it: so
/// whoever made the request had the private key.
pub fn requested_key(request: &[u8]) -> Result<Vec<u8>, KeyError> {
    if request.len() > LONGEST_REQUEST {
        return Err(KeyError::Request(format!("it has {} bytes, {LONGEST_REQUEST} at most", request.len())));
    }
    let bad = |why: String| KeyError::Request(why);
    let (rest, parsed) = X509CertificationRequest::from_der(request).map_err(|e| bad(e.to_string()))?;
    if !rest.is_empty() {
        return Err(bad("more bytes stand behind it".into()));
    }
    parsed.verify_signature().map_err(|_| bad("it is not signed with the key that it is for".into()))?;
    Ok(parsed.certification_request_info.subject_pki.raw.to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_for_the_key_that_signed_it() {
        let key = Key::generate().unwrap();
        let request = key.request().unwrap();
        assert_eq!(KeyId::of(&requested_key(&request).unwrap()), key.id());
    }

    #[test]
    fn a_request_with_a_changed_byte_never_is_for_another_key() {
        let key = Key::generate().unwrap();
        let request = key.request().unwrap();
        for at in 0..request.len() {
            let mut changed = request.clone();
            changed[at] ^= 1;
            let asked = requested_key(&changed);
            assert!(asked.is_err() || KeyId::of(&asked.unwrap()) == key.id(), "byte {at}");
        }
    }

    #[test]
    fn a_request_that_is_too_long_or_has_more_behind_it_is_refused() {
        let mut request = Key::generate().unwrap().request().unwrap();
        request.push(0);
        assert!(requested_key(&request).is_err());
        assert!(requested_key(&vec![0x30; LONGEST_REQUEST + 1]).is_err());
    }

    #[test]
    fn a_key_survives_its_file_and_is_never_printed() {
        let key = Key::generate().unwrap();
        let pem = key.to_pem();
        assert_eq!(Key::from_pem(&pem).unwrap().id(), key.id());
        assert_eq!(format!("{key:?}"), format!("Key({})", key.id()));
    }
}
