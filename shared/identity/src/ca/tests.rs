use super::*;
use crate::certificate::unix;
use crate::testing::{DAY, NOW};
use crate::verify::{Nobody, PeerError, Trust};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

struct Bench {
    dir: tempfile::TempDir,
    ca: Ca,
}

impl Bench {
    fn new() -> Bench {
        let dir = tempfile::tempdir().unwrap();
        let ca = Ca::init(&dir.path().join("ca"), label("c"), unix(NOW)).unwrap();
        Bench { dir, ca }
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("ca")
    }

    /// As after a restart.
    fn reopened(&self) -> Ca {
        Ca::open(&self.path()).unwrap()
    }

    fn token(&self, host: &str) -> Token {
        let address = "10.0.0.1:7411".parse().unwrap();
        self.ca.token(Role::Donor, label(host), Duration::from_secs(3600), vec![address], unix(NOW)).unwrap()
    }

    fn check(&self, signed: &Signed, now: u64) -> Result<(), PeerError> {
        let lists = vec![files::read(&self.ca.revocation_list()).unwrap()];
        let trust = Trust::new(std::slice::from_ref(&signed.ca), &lists, label("c")).unwrap();
        trust.check(&signed.certificate, &[], Some(signed.name.role), &Nobody, unix(now)).map(drop)
    }
}

fn label(text: &str) -> Label {
    text.parse().unwrap()
}

fn request() -> Vec<u8> {
    Key::generate().unwrap().request().unwrap()
}

#[test]
fn what_a_ca_signs_is_believed_for_ninety_days() {
    let bench = Bench::new();
    for role in [Role::Donor, Role::Client] {
        let signed = bench.ca.sign(role, label("a"), &request(), unix(NOW)).unwrap();
        assert_eq!(signed.name.to_string(), format!("annex://c/{role}/a"));
        assert_eq!(bench.check(&signed, NOW), Ok(()));
        assert_eq!(bench.check(&signed, NOW - 3600), Ok(()), "the host's clock may be an hour behind");
        assert_eq!(bench.check(&signed, NOW + 90 * DAY), Ok(()));
        assert!(matches!(bench.check(&signed, NOW - 3601), Err(PeerError::NotYet { .. })));
        assert!(matches!(bench.check(&signed, NOW + 90 * DAY + 1), Err(PeerError::Expired { .. })));
    }
}

#[test]
fn secrets_are_for_their_owner_alone() {
    let bench = Bench::new();
    let mode = |name: &str| fs::metadata(bench.path().join(name)).unwrap().mode() & 0o777;
    assert_eq!(mode(""), 0o700);
    assert_eq!([KEY, REGISTRY, LOCK, CERTIFICATE, REVOCATIONS].map(mode), [0o600, 0o600, 0o600, 0o644, 0o644]);
    fs::set_permissions(bench.path().join(KEY), fs::Permissions::from_mode(0o640)).unwrap();
    let said = Ca::open(&bench.path()).unwrap_err().to_string();
    assert!(said.contains("chmod 600"), "{said}");
}

#[test]
fn a_ca_is_never_made_over_another() {
    let bench = Bench::new();
    assert!(matches!(Ca::init(&bench.path(), label("c"), unix(NOW)), Err(CaError::Exists(_))));
    assert!(bench.reopened().certificate() == bench.ca.certificate());
    // Without its certificate it is still somebody's CA: it has issued.
    bench.ca.sign(Role::Donor, label("a"), &request(), unix(NOW)).unwrap();
    fs::remove_file(bench.path().join(CERTIFICATE)).unwrap();
    assert!(matches!(Ca::init(&bench.path(), label("c"), unix(NOW)), Err(CaError::Exists(_))));
}

#[test]
fn an_interrupted_init_can_be_repeated() {
    let bench = Bench::new();
    fs::remove_file(bench.path().join(CERTIFICATE)).unwrap();
    Ca::init(&bench.path(), label("c"), unix(NOW)).unwrap();
    bench.reopened();
}

#[test]
fn a_folder_without_a_ca_or_with_a_strange_key_is_told() {
    let bench = Bench::new();
    assert!(matches!(Ca::open(bench.dir.path()), Err(CaError::Missing(_))));
    files::write(&bench.path().join(KEY), Key::generate().unwrap().to_pem().as_bytes(), Secrecy::Private).unwrap();
    let said = Ca::open(&bench.path()).unwrap_err().to_string();
    assert!(said.ends_with("this key is not that of ca.pem"), "{said}");
    fs::write(bench.path().join(REGISTRY), "{").unwrap();
    assert!(matches!(bench.ca.registry(), Err(CaError::Damaged { .. })));
    assert!(matches!(bench.ca.sign(Role::Donor, label("a"), &request(), unix(NOW)), Err(CaError::Damaged { .. })));
}

#[test]
fn a_token_lets_one_host_in_and_stays_used_over_a_restart() {
    let bench = Bench::new();
    let token = bench.token("a");
    let signed = bench.reopened().redeem(token.secret(), &request(), unix(NOW)).unwrap();
    assert_eq!(signed.name.to_string(), "annex://c/donor/a");
    let again = bench.reopened().redeem(token.secret(), &request(), unix(NOW));
    assert!(matches!(again, Err(CaError::Refused(Refusal::TokenUsed))), "{again:?}");
}

#[test]
fn a_token_that_ran_out_or_is_unknown_lets_nobody_in() {
    let bench = Bench::new();
    let token = bench.token("a");
    let late = bench.ca.redeem(token.secret(), &request(), unix(NOW + 3601));
    assert!(matches!(late, Err(CaError::Refused(Refusal::TokenExpired))), "{late:?}");
    let unknown = bench.ca.redeem(&Secret::draw().unwrap(), &request(), unix(NOW));
    assert!(matches!(unknown, Err(CaError::Refused(Refusal::TokenUnknown))), "{unknown:?}");
    assert!(bench.ca.redeem(token.secret(), &request(), unix(NOW)).is_ok(), "it was not used");
}

#[test]
fn a_request_that_is_no_good_does_not_use_a_token_up() {
    let bench = Bench::new();
    let token = bench.token("a");
    assert!(bench.ca.redeem(token.secret(), b"no request", unix(NOW)).is_err());
    assert!(bench.ca.redeem(token.secret(), &request(), unix(NOW)).is_ok());
}

#[test]
fn the_ca_keeps_no_secret_of_a_token() {
    let bench = Bench::new();
    let token = bench.token("a");
    let kept = fs::read_to_string(bench.path().join(REGISTRY)).unwrap();
    let secret = serde_json::to_vec(token.secret()).unwrap();
    let secret: Vec<u8> = serde_json::from_slice(&secret).unwrap();
    assert!(kept.contains(&token.secret().digest()));
    assert!(!kept.contains(&data_encoding::HEXLOWER.encode(&secret)));
    assert!(!kept.contains(&data_encoding::BASE64URL_NOPAD.encode(&secret)));
}

#[test]
fn a_token_is_valid_for_a_month_at_most() {
    let bench = Bench::new();
    for valid in [Duration::ZERO, LONGEST_TOKEN + Duration::from_secs(1)] {
        let address = "10.0.0.1:7411".parse().unwrap();
        let token = bench.ca.token(Role::Donor, label("a"), valid, vec![address], unix(NOW));
        assert!(matches!(token, Err(CaError::TokenLife)));
    }
}

#[test]
fn a_renewal_keeps_name_and_key() {
    let bench = Bench::new();
    let key = Key::generate().unwrap();
    let first = bench.ca.sign(Role::Client, label("a"), &key.request().unwrap(), unix(NOW)).unwrap();
    let facts = Facts::of(&first.certificate).unwrap();
    let later = NOW + 60 * DAY;
    let second = bench.ca.renew(&facts, &key.request().unwrap(), unix(later)).unwrap();
    let renewed = Facts::of(&second.certificate).unwrap();
    assert_eq!((renewed.name, renewed.key), (facts.name.clone(), facts.key));
    assert_eq!(renewed.validity.not_after, unix(later + 90 * DAY));
    assert!(bench.ca.renew(&facts, &request(), unix(later)).is_err(), "another key");
    let mut foreign = facts;
    foreign.name.cluster = label("other");
    assert!(bench.ca.renew(&foreign, &key.request().unwrap(), unix(later)).is_err());
}

/// The agent beside the CA may believe other CAs too. What they issued is not renewed here.
#[test]
fn only_what_this_ca_has_issued_is_renewed() {
    let bench = Bench::new();
    let key = Key::generate().unwrap();
    let other = Bench::new();
    let signed = other.ca.sign(Role::Client, label("a"), &key.request().unwrap(), unix(NOW)).unwrap();
    let facts = Facts::of(&signed.certificate).unwrap();
    let renewed = bench.ca.renew(&facts, &key.request().unwrap(), unix(NOW));
    assert!(matches!(renewed, Err(CaError::Refused(Refusal::NameUnknown(_)))), "{renewed:?}");
}

#[test]
fn a_revoked_host_is_refused_with_each_of_its_certificates_and_gets_no_other() {
    let bench = Bench::new();
    let key = Key::generate().unwrap();
    let first = bench.ca.sign(Role::Donor, label("a"), &key.request().unwrap(), unix(NOW)).unwrap();
    let second = bench.ca.sign(Role::Donor, label("a"), &key.request().unwrap(), unix(NOW)).unwrap();
    let other = bench.ca.sign(Role::Donor, label("b"), &request(), unix(NOW)).unwrap();
    assert_eq!(bench.ca.revoke(&label("a"), None, unix(NOW)).unwrap(), 2);
    assert!(matches!(bench.check(&first, NOW), Err(PeerError::Revoked(_))));
    assert!(matches!(bench.check(&second, NOW), Err(PeerError::Revoked(_))));
    assert_eq!(bench.check(&other, NOW), Ok(()));
    let facts = Facts::of(&first.certificate).unwrap();
    let renewed = bench.ca.renew(&facts, &key.request().unwrap(), unix(NOW));
    assert!(matches!(renewed, Err(CaError::Refused(Refusal::KeyRevoked { .. }))), "{renewed:?}");
}

#[test]
fn a_list_that_was_not_written_is_written_when_revoking_again() {
    let bench = Bench::new();
    let before = fs::read(bench.ca.revocation_list()).unwrap();
    let signed = bench.ca.sign(Role::Donor, label("a"), &request(), unix(NOW)).unwrap();
    bench.ca.revoke(&label("a"), None, unix(NOW)).unwrap();
    // As if the kill had come between the two files.
    fs::write(bench.ca.revocation_list(), before).unwrap();
    assert_eq!(bench.check(&signed, NOW), Ok(()));
    assert_eq!(bench.ca.revoke(&label("a"), None, unix(NOW)).unwrap(), 0);
    assert!(matches!(bench.check(&signed, NOW), Err(PeerError::Revoked(_))));
}

#[test]
fn many_at_once_lose_none_of_each_others_changes() {
    let bench = Bench::new();
    std::thread::scope(|scope| {
        for host in 0..8 {
            let path = bench.path();
            scope.spawn(move || {
                let ca = Ca::open(&path).unwrap();
                ca.sign(Role::Donor, label(&format!("host{host}")), &request(), unix(NOW)).unwrap();
            });
        }
    });
    assert_eq!(bench.ca.registry().unwrap().issued.len(), 8);
}

#[test]
fn a_token_of_which_two_hosts_make_use_at_once_lets_one_in() {
    let bench = Bench::new();
    let token = bench.token("a");
    let admitted = std::thread::scope(|scope| {
        let tries: Vec<_> = (0..8)
            .map(|_| scope.spawn(|| bench.reopened().redeem(token.secret(), &request(), unix(NOW)).is_ok()))
            .collect();
        tries.into_iter().map(|t| t.join().unwrap()).filter(|admitted| *admitted).count()
    });
    assert_eq!(admitted, 1);
}
