use crate::ca::Ca;
use crate::certificate::unix;
use crate::files;
use crate::identity::{Files, Identity};
use crate::join::answer::{AnswerError, answer};
use crate::join::ask::{JoinError, Joined, join, renew};
use crate::join::bounded::Timed;
use crate::key::Key;
use crate::names::{Label, Name, Role};
use crate::testing::{Clock, DAY, Everybody, NOW};
use crate::tls;
use crate::token::{Secret, Token};
use crate::verify::{Nobody, Standings};
use rustls::ServerConnection;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

const GENEROUS: Duration = Duration::from_secs(60);

fn label(text: &str) -> Label {
    text.parse().unwrap()
}

fn files_in(dir: &Path) -> Files {
    Files { ca: dir.join("ca.pem"), certificate: dir.join("cert.pem"), key: dir.join("key.pem"), revocations: None }
}

/// A CA and the agent beside it.
struct Beside {
    dir: tempfile::TempDir,
    ca: Ca,
    identity: Arc<Identity>,
    standings: Arc<dyn Standings>,
    clock: Arc<Clock>,
}

impl Beside {
    fn new() -> Beside {
        Beside::with_role(Role::Donor)
    }

    fn with_role(role: Role) -> Beside {
        let dir = tempfile::tempdir().unwrap();
        let ca = Ca::init(&dir.path().join("ca"), label("c"), unix(NOW)).unwrap();
        let key = Key::generate().unwrap();
        let signed = ca.sign(role, label("beside"), &key.request().unwrap(), unix(NOW)).unwrap();
        let files = files_in(dir.path());
        Joined { name: signed.name, certificate: signed.certificate, ca: signed.ca }.save(&files, &key).unwrap();
        let identity = Arc::new(Identity::open(files).unwrap());
        Beside { dir, ca, identity, standings: Arc::new(Nobody), clock: Arc::new(Clock::at(NOW)) }
    }

    fn token(&self, role: Role, host: &str) -> Token {
        let address = "127.0.0.1:7411".parse().unwrap();
        self.ca.token(role, label(host), Duration::from_secs(3600), vec![address], unix(NOW)).unwrap()
    }

    /// Serves one host while `ask` runs.
    fn serve<T: Send>(&self, ask: impl FnOnce(UnixStream) -> T + Send) -> (T, Result<Name, AnswerError>) {
        self.serve_within(GENEROUS, ask)
    }

    fn serve_within<T: Send>(
        &self,
        limit: Duration,
        ask: impl FnOnce(UnixStream) -> T + Send,
    ) -> (T, Result<Name, AnswerError>) {
        let (near, far) = UnixStream::pair().unwrap();
        let issuer = self.ca.certificate().clone();
        let config = tls::join_server(&self.identity, issuer, self.standings.clone(), self.clock.clone()).unwrap();
        std::thread::scope(|scope| {
            let served = scope.spawn(|| answer(near, ServerConnection::new(config)?, &self.ca, &*self.clock, limit));
            let asked = ask(far);
            (asked, served.join().unwrap())
        })
    }

    fn join(&self, token: &Token, key: &Key) -> (Result<Joined, JoinError>, Result<Name, AnswerError>) {
        self.serve(|stream| join(stream, token, key, self.clock.clone(), GENEROUS))
    }

    /// A host that has joined, with its files.
    fn joined(&self, role: Role, host: &str) -> (tempfile::TempDir, Arc<Identity>) {
        let (dir, key) = (tempfile::tempdir().unwrap(), Key::generate().unwrap());
        let joined = self.join(&self.token(role, host), &key).0.unwrap();
        let files = files_in(dir.path());
        joined.save(&files, &key).unwrap();
        (dir, Arc::new(Identity::open(files).unwrap()))
    }

    fn renew(&self, identity: &Arc<Identity>) -> (Result<Joined, JoinError>, Result<Name, AnswerError>) {
        self.serve(|stream| renew(stream, identity, self.standings.clone(), self.clock.clone(), GENEROUS))
    }
}

#[test]
fn a_host_with_a_token_gets_a_certificate_for_the_key_that_it_keeps() {
    let beside = Beside::new();
    for role in [Role::Donor, Role::Client] {
        let (_dir, identity) = beside.joined(role, "a");
        let own = &identity.current().own;
        assert_eq!(own.name.to_string(), format!("annex://c/{role}/a"));
        assert_eq!(own.validity.not_after, unix(NOW + 90 * DAY));
    }
}

#[test]
fn a_token_that_was_used_lets_no_other_host_in_and_the_joiner_reads_why() {
    let beside = Beside::new();
    let token = beside.token(Role::Client, "a");
    let key = Key::generate().unwrap();
    beside.join(&token, &key).0.unwrap();
    let (asked, served) = beside.join(&token, &Key::generate().unwrap());
    let said = asked.unwrap_err().to_string();
    assert_eq!(said, "the CA refused: the token was used already: make a new one with annex ca token");
    assert!(matches!(served, Err(AnswerError::Refused(_))), "{served:?}");
    // Only the host whose answer was lost may ask once more.
    assert!(beside.join(&token, &key).0.is_ok());
}

#[test]
fn a_token_with_another_secret_is_refused() {
    let beside = Beside::new();
    let token = beside.token(Role::Client, "a");
    let forged = Token::new(*token.ca(), Secret::draw().unwrap(), token.addresses().to_vec()).unwrap();
    let (asked, _) = beside.join(&forged, &Key::generate().unwrap());
    assert!(matches!(asked, Err(JoinError::Refused(_))), "{asked:?}");
}

/// Keeps what was sent.
struct Overheard {
    stream: UnixStream,
    sent: Arc<Mutex<Vec<u8>>>,
}

impl Read for Overheard {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.stream.read(into)
    }
}

impl Write for Overheard {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.stream.write(bytes)?;
        self.sent.lock().unwrap().extend_from_slice(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

impl Timed for Overheard {
    fn set_timeout(&mut self, limit: Duration) -> io::Result<()> {
        self.stream.set_timeout(limit)
    }
}

/// A CA of the same cluster that is not the token's, and one whose agent is a client only: neither
/// may hear the secret, and neither does.
#[test]
fn the_secret_is_told_to_nobody_but_a_donor_under_the_tokens_ca() {
    let real = Beside::new();
    let token = real.token(Role::Client, "a");
    let impostor = Beside::new();
    let (asked, served) = impostor.join(&token, &Key::generate().unwrap());
    let said = asked.unwrap_err().to_string();
    assert!(said.contains("does not have the CA of the token"), "{said}");
    assert!(matches!(served, Err(AnswerError::Connection(_))), "it heard no request: {served:?}");

    // Not one byte of application data goes out before the server is known: everything that was
    // sent is the ClientHello, in clear, and an alert.
    let sent = Arc::new(Mutex::new(Vec::new()));
    let (asked, _) = impostor.serve(|stream| {
        let overheard = Overheard { stream, sent: sent.clone() };
        join(overheard, &token, &Key::generate().unwrap(), real.clock.clone(), GENEROUS).map(drop)
    });
    assert!(asked.is_err());
    let longest_hello = 2048;
    assert!(sent.lock().unwrap().len() < longest_hello);

    let no_donor = Beside::with_role(Role::Client);
    let token = no_donor.token(Role::Client, "a");
    let (asked, served) = no_donor.join(&token, &Key::generate().unwrap());
    assert!(asked.is_err() && matches!(served, Err(AnswerError::Connection(_))), "{asked:?} {served:?}");
}

/// The token's CA is sent along by a server that has no certificate of it.
#[test]
fn to_send_the_tokens_ca_along_is_not_enough() {
    let (real, mut impostor) = (Beside::new(), Beside::new());
    let token = real.token(Role::Client, "a");
    impostor.ca = Ca::open(&real.dir.path().join("ca")).unwrap();
    let (asked, served) = impostor.join(&token, &Key::generate().unwrap());
    let said = asked.unwrap_err().to_string();
    assert!(said.contains("has issued the certificate"), "{said}");
    assert!(matches!(served, Err(AnswerError::Connection(_))), "{served:?}");
}

#[test]
fn a_renewal_keeps_the_key_and_changes_one_file() {
    let beside = Beside::new();
    let (_dir, identity) = beside.joined(Role::Client, "a");
    let before = (identity.current().own.clone(), files::read(&identity.files().key).unwrap());
    beside.clock.set(NOW + 60 * DAY);
    let renewed = beside.renew(&identity).0.unwrap();
    renewed.save_renewed(identity.files()).unwrap();
    identity.reload().unwrap();
    let after = identity.current().own.clone();
    assert_eq!((after.name, after.key), (before.0.name, before.0.key));
    assert_eq!(files::read(&identity.files().key).unwrap(), before.1);
    assert_eq!(after.validity.not_after, unix(NOW + 150 * DAY));
}

#[test]
fn a_renewal_without_a_certificate_is_refused() {
    let beside = Beside::new();
    let key = Key::generate().unwrap();
    let (asked, served) = beside.serve(|stream| {
        // A joiner that asks for a renewal.
        let config = crate::join::ask::tests::joiner(beside.ca.certificate(), beside.clock.clone());
        let request = crate::join::protocol::Request::Renew { request: key.request().unwrap() };
        crate::join::ask::tests::exchange(stream, config, &request)
    });
    assert!(matches!(asked, Err(JoinError::Refused(_))), "{asked:?}");
    assert!(matches!(served, Err(AnswerError::NoCertificate)), "{served:?}");
}

#[test]
fn an_expired_certificate_is_renewed_only_for_a_key_with_a_standing() {
    let beside = Beside::new();
    let (_dir, identity) = beside.joined(Role::Client, "a");
    beside.clock.set(NOW + 91 * DAY);
    assert!(beside.renew(&identity).0.is_err());
    let beside = Beside { standings: Arc::new(Everybody), ..beside };
    assert!(beside.renew(&identity).0.is_ok());
}

#[test]
fn a_revoked_host_gets_no_other_certificate() {
    let beside = Beside::new();
    let (_dir, identity) = beside.joined(Role::Client, "a");
    beside.ca.revoke(&label("a"), None, unix(NOW)).unwrap();
    let (asked, _) = beside.renew(&identity);
    let said = asked.unwrap_err().to_string();
    assert!(said.contains("was revoked"), "{said}");
}

#[test]
fn a_host_that_says_nothing_or_too_much_is_let_go() {
    let beside = Beside::new();
    let (_silent, served) = beside.serve_within(Duration::from_millis(50), |stream| {
        // Until the agent has had enough.
        io::copy(&mut &stream, &mut io::sink()).unwrap();
    });
    assert!(matches!(&served, Err(AnswerError::Connection(e)) if e.kind() == io::ErrorKind::TimedOut), "{served:?}");
    let ((), served) = beside.serve(|mut stream| {
        // The beginning of a TLS record, again and again.
        while stream.write_all(&[22, 3, 1, 0x40, 0]).is_ok() {}
    });
    assert!(served.is_err());
}
