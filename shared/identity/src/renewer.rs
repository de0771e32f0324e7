//! Renews a daemon's certificate, on a thread of its own: name servers and networks may take their
//! time. When it is due is in [`renewal`].
//!
//! A renewal writes one file, the certificate's; [`crate::watch`] sees that it changed and takes
//! it. One that fails is tried again, and the log says why once for each reason. Nothing else
//! depends on it: until its end the certificate that there is serves.
//!
//! The thread ends when nobody else has the identity.

use crate::certificate::{Facts, Validity};
use crate::identity::Identity;
use crate::join::ask::{JoinError, dial, renew};
use crate::renewal;
use crate::token::Address;
use crate::verify::Nobody;
use aws_lc_rs::rand;
use rustls::pki_types::UnixTime;
use rustls::time_provider::{DefaultTimeProvider, TimeProvider};
use std::io;
use std::sync::Arc;
use std::thread::{self, Builder};
use std::time::Duration;
use tracing::{info, warn};

/// How often it is looked whether the time has come.
const EVERY: Duration = Duration::from_secs(5);
/// Of a connection, and of all that is said on it.
const LIMIT: Duration = Duration::from_secs(10);

/// Starts the thread.
pub fn start(identity: &Arc<Identity>, from: Address) -> io::Result<()> {
    let weak = Arc::downgrade(identity);
    let run = move || {
        let mut renewals = Renewals::default();
        while let Some(identity) = weak.upgrade() {
            renewals.look(&identity, &from, Arc::new(DefaultTimeProvider));
            drop(identity);
            thread::sleep(EVERY);
        }
    };
    Builder::new().name("annex-renewal".into()).stack_size(512 << 10).spawn(run).map(drop)
}

/// When the next one is due, and what was said of the last one.
#[derive(Default)]
struct Renewals {
    /// For the certificate of that validity.
    due: Option<(Validity, UnixTime)>,
    said: Option<String>,
}

impl Renewals {
    fn look(&mut self, identity: &Arc<Identity>, from: &Address, clock: Arc<dyn TimeProvider>) {
        let Some(now) = clock.current_time() else { return };
        let own = identity.current().own.clone();
        if !self.is_due(own.validity, now, random()) {
            return;
        }
        let renewed = renew_at(from, identity, clock);
        let why = renewed.as_ref().err().map(ToString::to_string);
        let is_new = self.note(own.validity, now, random(), why.clone());
        match (renewed, why) {
            (Ok(new), _) => info!("{from} has renewed the certificate of this host: {new}"),
            (Err(_), Some(why)) if is_new => {
                warn!("failed to renew the certificate of {} at {from}; it is tried again: {why}", own.name);
            }
            _ => {}
        }
    }

    fn is_due(&mut self, validity: Validity, now: UnixTime, random: u64) -> bool {
        let due = self.due.filter(|(of, _)| *of == validity);
        let (_, at) = *self.due.insert(due.unwrap_or_else(|| (validity, renewal::due(validity, random))));
        now.as_secs() >= at.as_secs()
    }

    /// Notes what became of one, and says whether that is new. Also after a good one there is a
    /// pause: the new file is taken within it.
    fn note(&mut self, validity: Validity, now: UnixTime, random: u64, why: Option<String>) -> bool {
        self.due = Some((validity, renewal::again(validity, now, random)));
        let is_new = why != self.said;
        self.said = why;
        is_new
    }
}

fn renew_at(from: &Address, identity: &Arc<Identity>, clock: Arc<dyn TimeProvider>) -> Result<Facts, JoinError> {
    let stream = dial(from, LIMIT)?;
    let new = renew(stream, identity, Arc::new(Nobody), clock, LIMIT)?;
    new.save_renewed(identity.files())?;
    Facts::of(&new.certificate).map_err(|e| JoinError::Answer(e.to_string()))
}

fn random() -> u64 {
    let mut bytes = [0; 8];
    // Without a random number hosts renew at once instead of one after the other.
    let _ = rand::fill(&mut bytes);
    u64::from_le_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ca::Ca;
    use crate::certificate::unix;
    use crate::files;
    use crate::hello::Hello;
    use crate::identity::{Files, Reloaded};
    use crate::join::answer::AnswerError;
    use crate::join::ask::Joined;
    use crate::join::signer::{Signer, open_ca};
    use crate::key::Key;
    use crate::names::{Name, Role};
    use crate::testing::{Clock, DAY, NOW};
    use std::net::TcpListener;
    use std::path::Path;
    use std::time::Instant;
    use tempfile::TempDir;

    const PATIENCE: Duration = Duration::from_secs(60);

    /// A CA's folder and that of a host that has joined.
    struct Bench {
        dir: TempDir,
        identity: Arc<Identity>,
        clock: Arc<Clock>,
        renewals: Renewals,
    }

    fn host(ca: &Ca, dir: &Path, role: Role, name: &str) -> Arc<Identity> {
        let (ca_file, certificate) = (dir.join(format!("{name}-ca.pem")), dir.join(format!("{name}.pem")));
        let files = Files { ca: ca_file, certificate, key: dir.join(format!("{name}-key.pem")), revocations: None };
        let key = Key::generate().unwrap();
        let signed = ca.sign(role, name.parse().unwrap(), &key.request().unwrap(), unix(NOW)).unwrap();
        Joined { name: signed.name, certificate: signed.certificate, ca: signed.ca }.save(&files, &key).unwrap();
        Arc::new(Identity::open(files).unwrap())
    }

    impl Bench {
        fn new() -> Bench {
            let dir = tempfile::tempdir().unwrap();
            let ca = Ca::init(&dir.path().join("ca"), "c".parse().unwrap(), unix(NOW)).unwrap();
            let identity = host(&ca, dir.path(), Role::Client, "web");
            Bench { dir, identity, clock: Arc::new(Clock::at(NOW)), renewals: Renewals::default() }
        }

        fn ca(&self) -> Ca {
            Ca::open(&self.dir.path().join("ca")).unwrap()
        }

        /// Looks once while an agent beside the CA serves whoever comes.
        fn look_with_signer(&mut self) -> Option<Result<Name, AnswerError>> {
            let beside = host(&self.ca(), self.dir.path(), Role::Donor, &format!("beside{}", random()));
            let ca = open_ca(&self.dir.path().join("ca"), &beside).unwrap();
            let signer = Signer::new(ca, &beside, Arc::new(Nobody), self.clock.clone()).unwrap();
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let address = listener.local_addr().unwrap();
            let served = thread::spawn(move || {
                let (socket, _) = listener.accept().unwrap();
                let hello = Hello::read(socket, Instant::now() + PATIENCE).ok()?;
                assert!(hello.wants_to_join());
                Some(signer.serve(hello))
            });
            self.look(&address.to_string());
            // If nobody came there is nobody to be served.
            drop(std::net::TcpStream::connect(address));
            served.join().unwrap()
        }

        fn look(&mut self, address: &str) {
            self.renewals.look(&self.identity, &address.parse().unwrap(), self.clock.clone());
        }

        fn expires(&self) -> u64 {
            self.identity.current().own.validity.not_after.as_secs()
        }
    }

    #[test]
    fn a_certificate_is_renewed_at_two_thirds_of_its_life_and_not_before() {
        let mut bench = Bench::new();
        bench.clock.set(NOW + 56 * DAY);
        assert!(bench.look_with_signer().is_none());
        let key = files::read(&bench.identity.files().key).unwrap();
        bench.clock.set(NOW + 64 * DAY);
        let served = bench.look_with_signer().expect("the time has come").unwrap();
        assert_eq!(served.to_string(), "annex://c/client/web");
        assert_eq!(bench.identity.reload().unwrap(), Reloaded::Taken);
        assert_eq!(bench.expires(), NOW + (64 + 90) * DAY);
        assert_eq!(files::read(&bench.identity.files().key).unwrap(), key, "its key stays");
        assert!(bench.look_with_signer().is_none(), "the new one is good for long");
    }

    #[test]
    fn a_renewal_that_fails_is_tried_again_until_it_succeeds() {
        let mut bench = Bench::new();
        bench.clock.set(NOW + 64 * DAY);
        // A port that was free a moment ago.
        let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
        bench.look(&nobody);
        assert!(
            bench.renewals.said.as_ref().unwrap().starts_with("nothing answers there"),
            "{:?}",
            bench.renewals.said
        );
        assert_eq!(bench.identity.reload().unwrap(), Reloaded::Unchanged);
        assert!(bench.look_with_signer().is_none(), "not at once");
        bench.clock.set(NOW + 64 * DAY + 6 * 3600);
        bench.look_with_signer().expect("six hours later it is").unwrap();
        assert_eq!(bench.renewals.said, None);
    }

    #[test]
    fn a_revoked_host_is_refused_and_reads_why() {
        let mut bench = Bench::new();
        bench.ca().revoke(&"web".parse().unwrap(), None, unix(NOW)).unwrap();
        bench.clock.set(NOW + 64 * DAY);
        assert!(matches!(bench.look_with_signer(), Some(Err(AnswerError::Refused(_)))));
        let said = bench.renewals.said.unwrap();
        assert_eq!(said, "the CA refused: the key of client 'web' was revoked: make a new key");
    }

    #[test]
    fn a_reason_is_said_once_until_there_is_another() {
        let mut renewals = Renewals::default();
        let validity = Validity { not_before: unix(NOW), not_after: unix(NOW + 90 * DAY) };
        let mut note = |why: Option<&str>| renewals.note(validity, unix(NOW), 0, why.map(Into::into));
        assert_eq!(["a", "a", "b", "b"].map(|why| note(Some(why))), [true, false, true, false]);
        assert!(note(None) && note(Some("b")));
    }
}
