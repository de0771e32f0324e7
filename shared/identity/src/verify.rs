//! Whether a peer may be spoken to: chain, cluster, role, validity, revocation. Never its address.
//!
//! A certificate that is out of its time (expired, or not valid yet as this host's clock has it) is
//! refused, with one exception. A peer whose key holds leases, or lends what this host holds, is
//! let in: or a CA that was away, or a clock that jumped, would cost programs their pages. The
//! agent and annexd say which keys those are ([`Standings`]). All else is checked of such a peer
//! too: the chain as it was while the certificate was valid, and revocation as of now.
//!
//! Revocation lists never run out: an old list is better than none, and a CA that can't be reached
//! must not stop anything. A CA without a list revokes nobody.

use crate::certificate::{CertificateError, Facts, KeyId, Validity};
use crate::names::{Label, Name, Role};
use crate::pem;
use rustls::CertificateError as Tls;
use rustls::pki_types::{CertificateDer, TrustAnchor, UnixTime};
use std::fmt;
use std::sync::Arc;
use webpki::{
    CertRevocationList, EndEntityCert, ExpirationPolicy, KeyUsage, OwnedCertRevocationList, RevocationCheckDepth,
    RevocationOptionsBuilder, UnknownStatusPolicy, anchor_from_trusted_cert,
};

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PeerError {
    #[error(transparent)]
    Certificate(#[from] CertificateError),
    #[error("{0} is of another cluster than {1}")]
    Cluster(Name, Label),
    #[error("{name} has the wrong role: a {wanted} is expected here")]
    Role { name: Name, wanted: Role },
    #[error(
        "no certificate in the ca file has issued the certificate of {0}, \
         or those between it and the CA are missing behind it in its cert file"
    )]
    Issuer(Name),
    #[error("the certificate of {0}, or one between it and the CA, was revoked")]
    Revoked(Name),
    #[error("the certificate of {name} expired {} ago: renew it, or check the clock", span(*.ago))]
    Expired { name: Name, ago: u64 },
    #[error("the certificate of {name} is valid only in {}: check the clocks of both hosts", span(*.left))]
    NotYet { name: Name, left: u64 },
    #[error("the certificate of {name} can't be used: {why}")]
    Unusable { name: Name, why: String },
}

/// What a length of time is to people: `13 days`.
pub fn span(seconds: u64) -> String {
    let (count, unit) = match seconds {
        0..=119 => (seconds, "second"),
        120..=7199 => (seconds / 60, "minute"),
        7200..=172_799 => (seconds / 3600, "hour"),
        _ => (seconds / 86400, "day"),
    };
    format!("{count} {unit}{}", if count == 1 { "" } else { "s" })
}

impl From<PeerError> for rustls::Error {
    fn from(error: PeerError) -> rustls::Error {
        rustls::Error::InvalidCertificate(Tls::Other(rustls::OtherError(Arc::new(error))))
    }
}

/// Which keys must be let in even if their certificate is out of its time.
pub trait Standings: fmt::Debug + Send + Sync {
    /// On a donor: whether leases were given to this key. On a client: whether pages lie with it.
    fn holds(&self, key: &KeyId) -> bool;
}

/// No key has any standing.
#[derive(Debug)]
pub struct Nobody;

impl Standings for Nobody {
    fn holds(&self, _: &KeyId) -> bool {
        false
    }
}

/// A peer that has been verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    pub facts: Facts,
    /// It was let in by its standing alone.
    pub is_out_of_time: bool,
}

#[derive(Debug, thiserror::Error)]
pub enum TrustError {
    #[error("there is no certificate in the ca file")]
    NoCa,
    #[error("a certificate of the ca file can't be used: {0}")]
    Ca(webpki::Error),
    #[error("a revocation list can't be read: {0}")]
    List(String),
}

/// Whom this host believes.
#[derive(Debug)]
pub struct Trust {
    anchors: Vec<TrustAnchor<'static>>,
    lists: Vec<CertRevocationList<'static>>,
    cluster: Label,
}

impl Trust {
    /// `cas`: the certificates of all CAs that are believed. `lists`: files of revocation lists in
    /// PEM.
    pub fn new(cas: &[CertificateDer<'_>], lists: &[Vec<u8>], cluster: Label) -> Result<Trust, TrustError> {
        if cas.is_empty() {
            return Err(TrustError::NoCa);
        }
        let anchors = cas.iter().map(|ca| Ok(anchor_from_trusted_cert(ca).map_err(TrustError::Ca)?.to_owned()));
        let anchors = anchors.collect::<Result<_, _>>()?;
        let bad = |e: &dyn fmt::Display| TrustError::List(e.to_string());
        let mut parsed = Vec::new();
        for file in lists {
            for list in pem::lists(file).map_err(|e| bad(&e))? {
                parsed.push(OwnedCertRevocationList::from_der(&list).map_err(|e| bad(&e))?.into());
            }
        }
        Ok(Trust { anchors, lists: parsed, cluster })
    }

    pub fn cluster(&self) -> &Label {
        &self.cluster
    }

    /// Decides about a peer. `wanted` is the role that it must have, if it must have one.
    pub fn check(
        &self,
        certificate: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        wanted: Option<Role>,
        standings: &dyn Standings,
        now: UnixTime,
    ) -> Result<Peer, PeerError> {
        let facts = Facts::of(certificate)?;
        let name = &facts.name;
        if name.cluster != self.cluster {
            return Err(PeerError::Cluster(name.clone(), self.cluster.clone()));
        }
        if let Some(wanted) = wanted.filter(|wanted| *wanted != name.role) {
            return Err(PeerError::Role { name: name.clone(), wanted });
        }
        let told = |error: webpki::Error| told(error, name, wanted);
        match self.chain(certificate, others, wanted, now) {
            Ok(()) => return Ok(Peer { facts, is_out_of_time: false }),
            Err(error) if !is_of_time(&error) => return Err(told(error)),
            Err(_) => {}
        }
        let within = moment_within(facts.validity, others, now);
        self.chain(certificate, others, wanted, within).map_err(told)?;
        if standings.holds(&facts.key) {
            return Ok(Peer { facts, is_out_of_time: true });
        }
        let (name, now, within) = (facts.name, now.as_secs(), within.as_secs());
        Err(match now > within {
            true => PeerError::Expired { name, ago: now - within },
            false => PeerError::NotYet { name, left: within - now },
        })
    }

    fn chain(
        &self,
        certificate: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        wanted: Option<Role>,
        at: UnixTime,
    ) -> Result<(), webpki::Error> {
        let usage = match wanted {
            Some(Role::Donor) => KeyUsage::server_auth(),
            // Every certificate of ours is a client's somewhere: to the CA's agent.
            Some(Role::Client) | None => KeyUsage::client_auth(),
        };
        let lists: Vec<&CertRevocationList<'_>> = self.lists.iter().collect();
        let revocation = RevocationOptionsBuilder::new(&lists).ok().map(|options| {
            options
                .with_depth(RevocationCheckDepth::Chain)
                .with_status_policy(UnknownStatusPolicy::Allow)
                .with_expiration_policy(ExpirationPolicy::Ignore)
                .build()
        });
        let algorithms = rustls::crypto::aws_lc_rs::default_provider().signature_verification_algorithms;
        EndEntityCert::try_from(certificate)?
            .verify_for_usage(algorithms.all, &self.anchors, others, at, usage, revocation, None)
            .map(drop)
    }
}

fn is_of_time(error: &webpki::Error) -> bool {
    matches!(error, webpki::Error::CertExpired { .. } | webpki::Error::CertNotValidYet { .. })
}

fn told(error: webpki::Error, name: &Name, wanted: Option<Role>) -> PeerError {
    match error {
        webpki::Error::UnknownIssuer
        | webpki::Error::InvalidSignatureForPublicKey
        | webpki::Error::CaUsedAsEndEntity => PeerError::Issuer(name.clone()),
        webpki::Error::CertRevoked => PeerError::Revoked(name.clone()),
        other => PeerError::Unusable { name: name.clone(), why: in_words(&other, wanted) },
    }
}

/// webpki has no words for people. What operators run into gets some here.
fn in_words(error: &webpki::Error, wanted: Option<Role>) -> String {
    match (error, wanted) {
        (webpki::Error::RequiredEkuNotFoundContext(_), Some(Role::Donor)) => {
            "it is not for TLS servers (extendedKeyUsage serverAuth), which a donor needs".into()
        }
        (webpki::Error::RequiredEkuNotFoundContext(_), Some(Role::Client)) => {
            "it is not for TLS clients (extendedKeyUsage clientAuth), which a client needs".into()
        }
        (webpki::Error::RequiredEkuNotFoundContext(_), None) => {
            "it is not for TLS clients (extendedKeyUsage clientAuth), which a host needs at the CA".into()
        }
        (webpki::Error::UnsupportedCriticalExtension, _) => {
            "one between it and the CA has a critical extension that annex does not know".into()
        }
        (other, _) => format!("it breaks a rule of X.509 ({other})"),
    }
}

/// The moment nearest to now in which the certificate and all others of its chain are valid. If
/// they never are at once, some of the others don't belong to the chain: then the certificate's own
/// validity counts.
fn moment_within(own: Validity, others: &[CertificateDer<'_>], now: UnixTime) -> UnixTime {
    let mut common = own;
    for other in others.iter().filter_map(|other| Validity::of(other).ok()) {
        common.not_before = common.not_before.max(other.not_before);
        common.not_after = common.not_after.min(other.not_after);
    }
    let Validity { not_before, not_after } = if common.not_before <= common.not_after { common } else { own };
    now.min(not_after).max(not_before)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::certificate::unix;
    use crate::testing::{DAY, Everybody, NOW, Pki, leaf};

    fn check(pki: &Pki, uri: &str, wanted: Role, standings: &dyn Standings, now: u64) -> Result<Peer, PeerError> {
        let (certificate, _) = pki.issue(&leaf(uri));
        pki.trust().check(&certificate, &[], Some(wanted), standings, unix(now))
    }

    #[test]
    fn a_host_of_the_cluster_with_the_right_role_is_let_in() {
        let pki = Pki::new("c");
        for role in [Role::Donor, Role::Client] {
            let peer = check(&pki, &format!("annex://c/{role}/a"), role, &Nobody, NOW).unwrap();
            assert!(peer.facts.name.host.as_str() == "a" && !peer.is_out_of_time);
        }
    }

    #[test]
    fn another_role_or_cluster_is_refused_even_with_a_standing() {
        let pki = Pki::new("c");
        let client = check(&pki, "annex://c/client/a", Role::Donor, &Everybody, NOW);
        assert!(matches!(client, Err(PeerError::Role { .. })), "{client:?}");
        let donor = check(&pki, "annex://c/donor/a", Role::Client, &Everybody, NOW);
        assert!(matches!(donor, Err(PeerError::Role { .. })), "{donor:?}");
        let foreign = check(&pki, "annex://other/donor/a", Role::Donor, &Everybody, NOW);
        assert!(matches!(foreign, Err(PeerError::Cluster(..))), "{foreign:?}");
    }

    #[test]
    fn another_ca_of_the_same_name_is_refused_even_with_a_standing() {
        let (ours, theirs) = (Pki::new("c"), Pki::new("c"));
        let (certificate, _) = theirs.issue(&leaf("annex://c/donor/a"));
        for now in [NOW, NOW + 100 * DAY] {
            let peer = ours.trust().check(&certificate, &[], Some(Role::Donor), &Everybody, unix(now));
            assert!(matches!(peer, Err(PeerError::Issuer(_))), "{peer:?}");
        }
        // Nor does it help to send the CA along.
        let peer = ours.trust().check(&certificate, &[theirs.certificate()], Some(Role::Donor), &Everybody, unix(NOW));
        assert!(matches!(peer, Err(PeerError::Issuer(_))), "{peer:?}");
    }

    #[test]
    fn a_changed_certificate_is_refused() {
        let pki = Pki::new("c");
        let (certificate, _) = pki.issue(&leaf("annex://c/donor/a"));
        for at in 0..certificate.len() {
            let mut changed = certificate.to_vec();
            changed[at] ^= 1;
            let peer = pki.trust().check(&changed.into(), &[], Some(Role::Donor), &Everybody, unix(NOW));
            assert!(peer.is_err(), "byte {at}: {peer:?}");
        }
    }

    #[test]
    fn out_of_its_time_a_certificate_is_refused_unless_its_key_has_a_standing() {
        let pki = Pki::new("c");
        let (late, early) = (NOW + 103 * DAY, NOW - 2 * DAY);
        let expired = check(&pki, "annex://c/client/a", Role::Client, &Nobody, late).unwrap_err();
        let said = "the certificate of annex://c/client/a expired 13 days ago: renew it, or check the clock";
        assert_eq!(expired.to_string(), said);
        let not_yet = check(&pki, "annex://c/client/a", Role::Client, &Nobody, early);
        assert!(matches!(not_yet, Err(PeerError::NotYet { .. })), "{not_yet:?}");
        for now in [late, early] {
            for role in [Role::Donor, Role::Client] {
                let peer = check(&pki, &format!("annex://c/{role}/a"), role, &Everybody, now).unwrap();
                assert!(peer.is_out_of_time);
            }
        }
    }

    #[test]
    fn a_standing_is_that_of_the_key_and_not_of_the_name() {
        #[derive(Debug)]
        struct Only(KeyId);
        impl Standings for Only {
            fn holds(&self, key: &KeyId) -> bool {
                *key == self.0
            }
        }
        let pki = Pki::new("c");
        let (certificate, key) = pki.issue(&leaf("annex://c/client/a"));
        let (namesake, _) = pki.issue(&leaf("annex://c/client/a"));
        let standings = Only(key.id());
        let check =
            |certificate| pki.trust().check(certificate, &[], Some(Role::Client), &standings, unix(NOW + 100 * DAY));
        assert!(check(&certificate).is_ok());
        assert!(matches!(check(&namesake), Err(PeerError::Expired { .. })));
    }

    #[test]
    fn a_revoked_certificate_is_refused_even_with_a_standing_and_long_after_the_list_has_run_out() {
        let pki = Pki::new("c");
        let (bad, _) = pki.issue(&leaf("annex://c/client/a"));
        let (good, _) = pki.issue(&leaf("annex://c/client/b"));
        let trust = pki.trust_without(&[&bad]);
        for now in [NOW, NOW + 80 * DAY, NOW + 1000 * DAY] {
            let peer = trust.check(&bad, &[], Some(Role::Client), &Everybody, unix(now));
            assert_eq!(peer, Err(PeerError::Revoked("annex://c/client/a".parse().unwrap())), "{now}");
            assert!(trust.check(&good, &[], Some(Role::Client), &Everybody, unix(now)).is_ok());
        }
    }

    #[test]
    fn the_list_of_another_ca_revokes_nobody() {
        let (ours, theirs) = (Pki::new("c"), Pki::new("c"));
        let (certificate, _) = ours.issue(&leaf("annex://c/client/a"));
        let list = theirs.issuer_between(30).1.list(&[&certificate]);
        let trust = Trust::new(&[ours.certificate()], &[list], "c".parse().unwrap()).unwrap();
        assert!(trust.check(&certificate, &[], Some(Role::Client), &Nobody, unix(NOW)).is_ok());
    }

    #[test]
    fn an_issuer_between_is_followed_also_after_its_end_and_can_be_revoked() {
        let pki = Pki::new("c");
        let (between, issuer) = pki.issuer_between(30);
        let (certificate, _) = issuer.issue(&leaf("annex://c/client/a"));
        let others = [between.clone()];
        let check = |trust: &Trust, standings: &dyn Standings, now| {
            trust.check(&certificate, &others, Some(Role::Client), standings, unix(now))
        };
        assert!(check(&pki.trust(), &Nobody, NOW).is_ok());
        assert!(matches!(check(&pki.trust(), &Nobody, NOW + 31 * DAY), Err(PeerError::Expired { .. })));
        assert!(check(&pki.trust(), &Everybody, NOW + 31 * DAY).unwrap().is_out_of_time);
        assert!(check(&pki.trust(), &Everybody, NOW + 100 * DAY).unwrap().is_out_of_time);
        let trust = pki.trust_without(&[&between]);
        assert!(matches!(check(&trust, &Everybody, NOW + 100 * DAY), Err(PeerError::Revoked(_))));
    }

    #[test]
    fn a_certificate_for_another_purpose_is_refused_in_words() {
        use rcgen::ExtendedKeyUsagePurpose::{ClientAuth, ServerAuth};
        let pki = Pki::new("c");
        let said = |role: Role, usage| {
            let mut params = leaf(&format!("annex://c/{role}/a"));
            params.extended_key_usages = vec![usage];
            let (certificate, _) = pki.issue(&params);
            pki.trust().check(&certificate, &[], Some(role), &Everybody, unix(NOW)).unwrap_err().to_string()
        };
        let donor = "it is not for TLS servers (extendedKeyUsage serverAuth), which a donor needs";
        assert_eq!(
            said(Role::Donor, ClientAuth),
            format!("the certificate of annex://c/donor/a can't be used: {donor}")
        );
        let client = said(Role::Client, ServerAuth);
        assert!(client.ends_with("TLS clients (extendedKeyUsage clientAuth), which a client needs"), "{client}");
    }

    #[test]
    fn a_file_without_a_ca_or_a_list_is_told() {
        let pki = Pki::new("c");
        let cluster: Label = "c".parse().unwrap();
        assert!(matches!(Trust::new(&[], &[], cluster.clone()), Err(TrustError::NoCa)));
        assert!(matches!(Trust::new(&[vec![1].into()], &[], cluster.clone()), Err(TrustError::Ca(_))));
        for file in [&b""[..], b"-----BEGIN X509 CRL-----\nAAAA\n-----END X509 CRL-----\n"] {
            let trust = Trust::new(&[pki.certificate()], &[file.to_vec()], cluster.clone());
            assert!(matches!(trust, Err(TrustError::List(_))), "{file:?}");
        }
    }

    #[test]
    fn times_are_told_as_people_do() {
        let told = [1, 119, 120, 7200, 172_799, 172_800, 13 * DAY].map(span);
        let wanted = ["1 second", "119 seconds", "2 minutes", "2 hours", "47 hours", "2 days", "13 days"];
        assert_eq!(told, wanted);
    }
}
