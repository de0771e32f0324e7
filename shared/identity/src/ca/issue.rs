//! The X.509 of a CA: its own certificate, those of hosts, the revocation list.

use crate::ca::registry::Issued;
use crate::key::{Key, KeyError};
use crate::names::{Label, Name, Role};
use aws_lc_rs::rand;
use data_encoding::HEXLOWER;
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyIdMethod, KeyUsagePurpose, RevokedCertParams, SanType, SerialNumber,
    SubjectPublicKeyInfo,
};
use rustls::pki_types::CertificateDer;
use time::OffsetDateTime;

const DAY: u64 = 24 * 60 * 60;
/// Of a host's certificate. A host renews it when two thirds have gone.
pub const LEAF_LIFE: u64 = 90 * DAY;
/// A host whose clock is behind takes a new certificate all the same.
const BACKDATED: u64 = 60 * 60;
/// Nothing of ours looks at when a CA's certificate ends: all hosts would end at once. Others do.
const CA_LIFE: u64 = 20 * 365 * DAY;

fn at(seconds: u64) -> OffsetDateTime {
    let seconds = i64::try_from(seconds).unwrap_or(i64::MAX);
    OffsetDateTime::from_unix_timestamp(seconds).unwrap_or(OffsetDateTime::UNIX_EPOCH)
}

/// 127 random bits: never negative, never met twice.
pub fn draw_serial() -> Result<String, KeyError> {
    let mut bytes = [0; 16];
    rand::fill(&mut bytes).map_err(|_| KeyError::Unusable("failed to draw a random number".into()))?;
    bytes[0] = bytes[0] & 0x7f | 0x40;
    Ok(HEXLOWER.encode(&bytes))
}

fn serial_number(hexadecimal: &str) -> Result<SerialNumber, KeyError> {
    let bytes = HEXLOWER.decode(hexadecimal.as_bytes());
    Ok(SerialNumber::from(bytes.map_err(|e| KeyError::Unusable(format!("serial number {hexadecimal}: {e}")))?))
}

fn named(organization: &str, name: &str) -> DistinguishedName {
    let mut subject = DistinguishedName::new();
    subject.push(DnType::OrganizationName, organization);
    subject.push(DnType::CommonName, name);
    subject
}

/// A CA's own certificate. Its serial number is in its name, so that a CA that is made anew is not
/// taken for the one before.
pub fn root(cluster: &Label, key: &Key, now: u64) -> Result<CertificateDer<'static>, KeyError> {
    let serial = draw_serial()?;
    let mut params = CertificateParams::default();
    params.not_before = at(now.saturating_sub(BACKDATED));
    params.not_after = at(now + CA_LIFE);
    params.serial_number = Some(serial_number(&serial)?);
    params.distinguished_name = named(cluster.as_str(), &format!("annex CA {}", &serial[..8]));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    Ok(params.self_signed(key.pair())?.der().clone())
}

/// The record and the certificate of a host whose public key this is.
pub fn leaf(
    issuer: &Issuer<'_, &rcgen::KeyPair>,
    name: &Name,
    public_key: &[u8],
    now: u64,
) -> Result<(Issued, CertificateDer<'static>), KeyError> {
    let unusable = |e: rcgen::Error| KeyError::Unusable(e.to_string());
    let public = SubjectPublicKeyInfo::from_der(public_key).map_err(unusable)?;
    let uri = name.to_string().try_into().map_err(unusable)?;
    // A donor is a server to its clients, and a client where it renews its certificate.
    let usages = match name.role {
        Role::Donor => vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth],
        Role::Client => vec![ExtendedKeyUsagePurpose::ClientAuth],
    };
    let serial = draw_serial()?;
    let expires = now + LEAF_LIFE;
    let mut params = CertificateParams::default();
    params.not_before = at(now.saturating_sub(BACKDATED));
    params.not_after = at(expires);
    params.serial_number = Some(serial_number(&serial)?);
    params.subject_alt_names = vec![SanType::URI(uri)];
    params.distinguished_name = named(name.cluster.as_str(), name.host.as_str());
    params.is_ca = IsCa::ExplicitNoCa;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = usages;
    params.use_authority_key_identifier_extension = true;
    let certificate = params.signed_by(&public, issuer)?.der().clone();
    let key = crate::certificate::KeyId::of(public_key);
    let (role, host) = (name.role, name.host.clone());
    Ok((Issued { serial, role, host, key, issued: now, expires, revoked: None }, certificate))
}

/// A signed list of what is revoked, in PEM. It never runs out: an old list is better than none.
pub fn revocation_list(
    issuer: &Issuer<'_, &rcgen::KeyPair>,
    issued: &[Issued],
    number: u64,
    now: u64,
) -> Result<String, KeyError> {
    let revoked = issued.iter().filter_map(|certificate| {
        let since = certificate.revoked?;
        Some(serial_number(&certificate.serial).map(|serial_number| RevokedCertParams {
            serial_number,
            revocation_time: at(since),
            reason_code: None,
            invalidity_date: None,
        }))
    });
    let list = CertificateRevocationListParams {
        this_update: at(now),
        next_update: at(now + CA_LIFE),
        crl_number: SerialNumber::from(number),
        issuing_distribution_point: None,
        revoked_certs: revoked.collect::<Result<_, _>>()?,
        key_identifier_method: KeyIdMethod::Sha256,
    };
    Ok(list.signed_by(issuer)?.pem()?)
}
