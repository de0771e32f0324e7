//! How `[tls]` stands: whether a daemon can use its files, and how long its certificate lasts.

use crate::report::Check;
use annex_identity::config::{TlsConfig, TlsConfigError, open};
use annex_identity::files::FileError;
use annex_identity::identity::{Files, IdentityError, facts};
use annex_identity::names::Role;
use annex_identity::renewal::Outlook;
use annex_identity::token::Address;
use annex_identity::verify::{Nobody, PeerError};
use rustls::pki_types::UnixTime;
use std::io::ErrorKind;
use std::path::Path;

const NAME: &str = "network";

/// `None`: there is no `[tls]`. The role is that of the daemon on this host.
pub fn certificate(tls: &TlsConfig, role: Role, now: UnixTime) -> Option<Check> {
    let check = match tls.files() {
        Ok(files) => judge(files?, role, now),
        Err(error) => bad(&error, role),
    };
    Some(match &tls.renew {
        Some(address) => with_renewal(check, address),
        None => check,
    })
}

/// What has to be signed anew renews by itself, if it is not too late for that.
fn with_renewal(check: Check, address: &Address) -> Check {
    match &check.remedy {
        Some(remedy) if remedy.starts_with(SIGN) => {
            let remedy = format!("the daemon's log says why it is not renewed at {address}; or {remedy}");
            Check { remedy: Some(remedy), ..check }
        }
        Some(_) => check,
        None => Check { message: format!("{}, renewed at {address}", check.message), ..check },
    }
}

fn judge(files: Files, role: Role, now: UnixTime) -> Check {
    let identity = match open(files.clone(), role) {
        Ok(identity) => identity,
        Err(TlsConfigError::Identity(error)) if is_denied(&error) => return unknown(&files, &error, role, now),
        Err(error) => return bad(&error, role),
    };
    let own = identity.current().own.clone();
    let others = match role {
        Role::Donor => "clients",
        Role::Client => "donors",
    };
    // As a peer without leases sees this host.
    if let Err(error) = identity.check(&identity.current().certified.cert, Some(role), &Nobody, now) {
        return Check::fail(NAME, error.to_string(), peer_remedy(&error, role));
    }
    match Outlook::of(own.validity, now).warning() {
        Some(warning) => Check::warn(NAME, format!("this host is {own}; {warning}"), sign(role)),
        None => Check::ok(NAME, format!("{others} show certificates, over TLS; this host is {own}")),
    }
}

/// Something may not be read by this user. The certificate alone often may be.
fn unknown(files: &Files, error: &IdentityError, role: Role, now: UnixTime) -> Check {
    let command = match role {
        Role::Donor => "annex-agent doctor",
        Role::Client => "annex doctor",
    };
    let remedy = format!("run it as root: sudo {command}");
    let own = match facts(files) {
        Ok(own) if own.name.role == role => own,
        Ok(own) => return bad(&TlsConfigError::Role { name: own.name, wanted: role }, role),
        Err(denied) if is_denied(&denied) => return Check::warn(NAME, format!("unknown: {error}"), remedy),
        Err(other) => return bad(&other.into(), role),
    };
    let outlook = Outlook::of(own.validity, now);
    match outlook.warning() {
        Some(warning) if matches!(outlook, Outlook::Expires(_)) => {
            Check::warn(NAME, format!("this host is {own}; {warning}; the rest is unknown: {error}"), sign(role))
        }
        Some(warning) => Check::fail(NAME, format!("this host is {own}; {warning}"), sign(role)),
        None => Check::warn(NAME, format!("this host is {own}; the rest is unknown: {error}"), remedy),
    }
}

fn is_denied(error: &IdentityError) -> bool {
    matches!(error, IdentityError::File(FileError::Read { source, .. }) if source.kind() == ErrorKind::PermissionDenied)
}

fn bad(error: &TlsConfigError, role: Role) -> Check {
    let remedy = match error {
        TlsConfigError::Missing(key) => format!("set {key} in [tls]"),
        TlsConfigError::Role { .. } => sign(role),
        TlsConfigError::Identity(error) => remedy(error, role),
    };
    Check::fail(NAME, error.to_string(), remedy)
}

fn remedy(error: &IdentityError, role: Role) -> String {
    let copy = |path: &Path| format!("copy {} again from where it was made, in PEM", path.display());
    match error {
        IdentityError::File(FileError::Open { path, wanted }) => {
            format!("chmod {wanted:o} {}; if others may have read it, make a new key", path.display())
        }
        IdentityError::File(FileError::Read { path, .. } | FileError::Write { path, .. }) => {
            format!("put {} in place, or set its path right in [tls]", path.display())
        }
        IdentityError::Certificate { .. } => sign(role),
        IdentityError::Pem { path, .. } | IdentityError::Trust { path, .. } | IdentityError::Key { path, .. } => {
            copy(path)
        }
        IdentityError::Mismatch { key, certificate } => {
            format!("put a pair in place: {} and {}", key.display(), certificate.display())
        }
        IdentityError::Chain { source, .. } => peer_remedy(source, role),
        IdentityError::Renamed { .. } => {
            "if the new name is meant, detach what has pages out, and restart the daemon".into()
        }
    }
}

/// Of this host's own certificate.
fn peer_remedy(error: &PeerError, role: Role) -> String {
    match error {
        PeerError::Issuer(_) => {
            "put the CA's certificate into the ca file, and those between behind this host's in the cert file".into()
        }
        PeerError::Revoked(_) => format!("make a new key; {}", sign(role)),
        PeerError::NotYet { .. } => "set this host's clock".into(),
        PeerError::Certificate(_)
        | PeerError::Cluster(..)
        | PeerError::Role { .. }
        | PeerError::Expired { .. }
        | PeerError::Unusable { .. } => sign(role),
    }
}

const SIGN: &str = "sign a new certificate for this host";

fn sign(role: Role) -> String {
    format!("{SIGN}: annex ca sign CSR --role {role} --name NAME, or your PKI")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Outcome;
    use annex_identity::certificate::unix;
    use annex_identity::testing::{DAY, NOW, Pki, leaf};
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;
    use tempfile::TempDir;

    struct Host {
        pki: Pki,
        dir: TempDir,
        files: Files,
    }

    impl Host {
        fn new() -> Host {
            let (pki, dir) = (Pki::new("corp"), tempfile::tempdir().unwrap());
            let files = pki.files(dir.path(), "annex://corp/client/web");
            Host { pki, dir, files }
        }

        fn config(&self) -> TlsConfig {
            TlsConfig {
                ca: Some(self.files.ca.clone()),
                cert: Some(self.files.certificate.clone()),
                key: Some(self.files.key.clone()),
                crl: self.files.revocations.clone(),
                renew: None,
            }
        }

        fn check(&self, now: u64) -> Check {
            certificate(&self.config(), Role::Client, unix(now)).unwrap()
        }

        #[track_caller]
        fn fails(&self, said: &str, remedy: &str) {
            let check = self.check(NOW);
            let is_told = check.message.contains(said) && check.remedy.as_ref().unwrap().contains(remedy);
            assert!(check.outcome == Outcome::Fail && is_told, "{check:?}");
        }
    }

    #[test]
    fn a_good_certificate_is_told_with_its_name_and_its_end() {
        let said = "donors show certificates, over TLS; this host is annex://corp/client/web until 2027-04-15";
        assert_eq!(Host::new().check(NOW), Check::ok(NAME, said));
        assert_eq!(certificate(&TlsConfig::default(), Role::Client, unix(NOW)), None);
    }

    /// Doctor said `ok` of all these, and the daemon did not start.
    #[test]
    fn files_that_the_daemon_refuses_fail() {
        let host = Host::new();
        fs::set_permissions(&host.files.key, Permissions::from_mode(0o644)).unwrap();
        host.fails("others than its owner may read", "chmod 600 ");
        fs::set_permissions(&host.files.key, Permissions::from_mode(0o600)).unwrap();
        let whole = fs::read(&host.files.certificate).unwrap();
        fs::write(&host.files.certificate, &whole[..whole.len() / 2]).unwrap();
        host.fails("there is no whole certificate in PEM in it", "copy ");
        fs::remove_file(&host.files.certificate).unwrap();
        host.fails("failed to read", "put ");
        let (other, _) = host.pki.issue(&leaf("annex://corp/client/web"));
        fs::write(&host.files.certificate, annex_identity::ca::to_pem(&other)).unwrap();
        host.fails("is not the key of", "put a pair in place");
        let half = TlsConfig { key: None, ..host.config() };
        assert_eq!(certificate(&half, Role::Client, unix(NOW)).unwrap().outcome, Outcome::Fail);
    }

    #[test]
    fn a_certificate_of_another_role_or_ca_fails() {
        let host = Host::new();
        let donor = certificate(&host.config(), Role::Donor, unix(NOW)).unwrap();
        assert!(donor.outcome == Outcome::Fail && donor.message.contains("and a donor is to run here"), "{donor:?}");
        fs::write(&host.files.ca, annex_identity::ca::to_pem(&Pki::new("corp").certificate())).unwrap();
        host.fails("no certificate in the ca file has issued", "put the CA's certificate into the ca file");
    }

    #[test]
    fn the_end_of_a_certificate_is_told_before_and_after() {
        let host = Host::new();
        let soon = host.check(NOW + 70 * DAY);
        assert!(soon.outcome == Outcome::Warn && soon.message.contains("expires in 19 days"), "{soon:?}");
        let over = host.check(NOW + 93 * DAY);
        assert!(over.outcome == Outcome::Fail && over.message.contains("expired 3 days ago"), "{over:?}");
        assert!(over.remedy.unwrap().starts_with("sign a new certificate"));
        assert_eq!(host.check(NOW - 2 * DAY).outcome, Outcome::Fail);
    }

    #[test]
    fn where_it_is_renewed_is_told_and_that_its_log_says_why_it_was_not() {
        let host = Host::new();
        let config = TlsConfig { renew: "ca.example:7411".parse().ok(), ..host.config() };
        let check = |now| certificate(&config, Role::Client, unix(now)).unwrap();
        assert!(check(NOW).message.ends_with("until 2027-04-15, renewed at ca.example:7411"), "{:?}", check(NOW));
        let remedy = check(NOW + 70 * DAY).remedy.unwrap();
        assert!(
            remedy.starts_with("the daemon's log says why it is not renewed at ca.example:7411; or sign"),
            "{remedy}"
        );
    }

    #[test]
    fn a_revoked_certificate_fails() {
        let mut host = Host::new();
        let own = open(host.files.clone(), Role::Client).unwrap().current().certified.cert[0].clone();
        let list = host.dir.path().join("crl.pem");
        fs::write(&list, host.pki.list(&[&own])).unwrap();
        host.files.revocations = Some(list);
        host.fails("was revoked", "make a new key");
    }

    #[test]
    fn what_this_user_may_not_read_is_unknown_and_the_certificate_is_judged_all_the_same() {
        let host = Host::new();
        let source = ErrorKind::PermissionDenied.into();
        let denied = IdentityError::File(FileError::Read { path: "/key.pem".into(), source });
        assert!(is_denied(&denied));
        let check = |now| unknown(&host.files, &denied, Role::Client, unix(now));
        let now = check(NOW);
        let said =
            "this host is annex://corp/client/web until 2027-04-15; the rest is unknown: failed to read /key.pem";
        assert!(now.outcome == Outcome::Warn && now.message.starts_with(said), "{now:?}");
        assert_eq!(now.remedy.unwrap(), "run it as root: sudo annex doctor");
        assert_eq!(check(NOW + 70 * DAY).outcome, Outcome::Warn);
        assert_eq!(check(NOW + 93 * DAY).outcome, Outcome::Fail);
        fs::write(&host.files.certificate, "").unwrap();
        assert_eq!(check(NOW).outcome, Outcome::Fail);
    }
}
