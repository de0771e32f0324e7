//! Certificates, keys and revocation lists in PEM, and in words what is wrong with such a file.

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};

/// What a file in PEM should hold, and does not. `Display` follows the name of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PemError {
    #[error("there is no whole certificate in PEM in it")]
    NoCertificate,
    #[error("a certificate in it was cut off or damaged")]
    Damaged,
    #[error("there is no key in PEM in it")]
    NoKey,
    #[error("the key is encrypted: give it without a passphrase")]
    Encrypted,
    #[error("there is no whole revocation list in PEM in it")]
    NoList,
}

/// All certificates, in their order; none if the file has none.
pub fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, PemError> {
    let mut read = Vec::new();
    for certificate in CertificateDer::pem_slice_iter(pem) {
        let why = if read.is_empty() { PemError::NoCertificate } else { PemError::Damaged };
        read.push(certificate.map_err(|_| why)?);
    }
    Ok(read)
}

/// The first key.
pub fn key(pem: &[u8]) -> Result<PrivateKeyDer<'static>, PemError> {
    // Both ways to write an encrypted key have this word, in the first line or in a header.
    const WORD: &[u8] = b"ENCRYPTED";
    PrivateKeyDer::from_pem_slice(pem).map_err(|_| match pem.windows(WORD.len()).any(|part| part == WORD) {
        true => PemError::Encrypted,
        false => PemError::NoKey,
    })
}

/// All revocation lists: at least one.
pub fn lists(pem: &[u8]) -> Result<Vec<CertificateRevocationListDer<'static>>, PemError> {
    let lists: Result<Vec<_>, _> = CertificateRevocationListDer::pem_slice_iter(pem).collect();
    lists.ok().filter(|lists| !lists.is_empty()).ok_or(PemError::NoList)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::Key;
    use crate::testing::{Pki, leaf};

    #[test]
    fn half_a_certificate_is_told_from_a_good_one_before_a_bad_one() {
        let whole = crate::ca::to_pem(&Pki::new("c").certificate());
        let half = &whole[..whole.len() / 2];
        assert_eq!(certificates(whole.as_bytes()).unwrap().len(), 1);
        assert_eq!(certificates(half.as_bytes()), Err(PemError::NoCertificate));
        assert_eq!(certificates(format!("{whole}{half}").as_bytes()), Err(PemError::Damaged));
        let request = "-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n-----END CERTIFICATE REQUEST-----\n";
        assert!(certificates(request.as_bytes()).unwrap().is_empty());
    }

    #[test]
    fn a_key_with_a_passphrase_is_told_from_no_key() {
        let (certificate, of) = Pki::new("c").issue(&leaf("annex://c/donor/a"));
        assert!(key(of.to_pem().as_bytes()).is_ok());
        let pkcs8 = "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n";
        let old = "-----BEGIN EC PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-256-CBC,AA\n\nAAAA\n-----END EC PRIVATE KEY-----\n";
        for text in [pkcs8, old] {
            assert_eq!(key(text.as_bytes()), Err(PemError::Encrypted), "{text}");
        }
        for text in [String::new(), crate::ca::to_pem(&certificate), of.to_pem()[..60].to_owned()] {
            assert_eq!(key(text.as_bytes()), Err(PemError::NoKey), "{text}");
        }
        assert_eq!(key(&Key::generate().unwrap().request().unwrap()), Err(PemError::NoKey));
    }
}
