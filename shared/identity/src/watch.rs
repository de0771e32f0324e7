//! Looks at the files of a daemon's identity every few seconds, on a thread of its own, and says in
//! the log what comes of it: new files, files that don't fit together, and a certificate that
//! expires soon or has expired.
//!
//! The thread ends when nobody else has the identity.

use crate::identity::{Identity, Reloaded};
use crate::renewal::Outlook;
use rustls::pki_types::UnixTime;
use std::mem::discriminant;
use std::sync::{Arc, Weak};
use std::thread::{self, Builder};
use std::time::{Duration, Instant};
use tracing::{info, warn};

/// How often the files are read.
pub const EVERY: Duration = Duration::from_secs(5);
/// How often the same is said again.
const AGAIN: Duration = Duration::from_secs(24 * 60 * 60);

/// Starts the thread, and says how the certificate stands.
pub fn start(identity: &Arc<Identity>) -> std::io::Result<()> {
    let own = identity.current().own.clone();
    info!("this host is {}, as {} says", own.name, identity.files().certificate.display());
    let mut said = Said::default();
    said.look(identity);
    let weak = Arc::downgrade(identity);
    Builder::new().name("annex-identity".into()).stack_size(128 << 10).spawn(move || watch(&weak, said)).map(drop)
}

fn watch(identity: &Weak<Identity>, mut said: Said) {
    loop {
        thread::sleep(EVERY);
        match identity.upgrade() {
            Some(identity) => said.look(&identity),
            None => return,
        }
    }
}

/// What was said last, and when.
#[derive(Default)]
struct Said {
    files: Option<(String, Instant)>,
    outlook: Option<(Outlook, Instant)>,
}

/// What is to be said.
#[derive(Debug, PartialEq, Eq)]
enum Line {
    Good(String),
    Bad(String),
}

impl Said {
    fn look(&mut self, identity: &Identity) {
        for line in self.next(identity, UnixTime::now(), Instant::now()) {
            match line {
                Line::Good(text) => info!("{text}"),
                Line::Bad(text) => warn!("{text}"),
            }
        }
    }

    fn next(&mut self, identity: &Identity, now: UnixTime, at: Instant) -> Vec<Line> {
        let is_due = |last: Instant| at.duration_since(last) >= AGAIN;
        let mut lines = Vec::new();
        match (identity.reload(), self.files.take()) {
            (Ok(Reloaded::Taken), _) => {
                self.outlook = None;
                let name = &identity.current().own.name;
                lines.push(Line::Good(format!("the changed files of {name} are in use from now on")));
            }
            (Ok(Reloaded::Unchanged), Some(_)) => {
                lines.push(Line::Good("the files of [tls] are again as they were, and good".into()));
            }
            (Ok(Reloaded::Unchanged), None) => {}
            (Err(error), last) => {
                let text = error.to_string();
                let last = last.filter(|(said, last)| *said == text && !is_due(*last));
                if last.is_none() {
                    lines.push(Line::Bad(format!(
                        "the files of [tls] can't be used, and the ones before stay in use: {text}"
                    )));
                }
                self.files = last.or(Some((text, at)));
            }
        }
        let own = identity.current().own.clone();
        let outlook = Outlook::of(own.validity, now);
        // That a certificate has expired is another thing than that it soon will.
        let is_said =
            |(last, since): (Outlook, Instant)| discriminant(&last) == discriminant(&outlook) && !is_due(since);
        if let Some(warning) = outlook.warning().filter(|_| !self.outlook.is_some_and(is_said)) {
            lines.push(Line::Bad(format!("{}: {warning}", own.name)));
            self.outlook = Some((outlook, at));
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::certificate::unix;
    use crate::files::{self, Secrecy};
    use crate::testing::{DAY, NOW, Pki};

    /// [`Pki::files`] makes certificates that expire an hour before this.
    const END: u64 = NOW + 90 * DAY;

    struct Bench {
        _dir: tempfile::TempDir,
        identity: Identity,
        said: Said,
        begun: Instant,
    }

    impl Bench {
        fn new() -> Bench {
            let dir = tempfile::tempdir().unwrap();
            let identity = Identity::open(Pki::new("c").files(dir.path(), "annex://c/donor/a")).unwrap();
            Bench { _dir: dir, identity, said: Said::default(), begun: Instant::now() }
        }

        fn at(&mut self, seconds: u64) -> Vec<Line> {
            self.said.next(&self.identity, unix(seconds), self.begun + Duration::from_secs(seconds - NOW))
        }
    }

    /// The warning of the day before silenced what is said of the expiry for up to a day.
    #[test]
    fn the_moment_of_expiry_is_said_and_each_day_after_it() {
        let mut bench = Bench::new();
        assert_eq!(bench.at(NOW), []);
        let soon = bench.at(END - 7200);
        assert!(matches!(&soon[..], [Line::Bad(text)] if text.contains("expires in 60 minutes")), "{soon:?}");
        assert_eq!(bench.at(END - 7000), []);
        let over = bench.at(END - 3599);
        assert!(matches!(&over[..], [Line::Bad(text)] if text.contains("expired 1 second ago")), "{over:?}");
        assert_eq!(bench.at(END), []);
        assert_eq!(bench.at(END + DAY).len(), 1);
    }

    #[test]
    fn bad_files_are_said_once_and_also_that_they_are_good_again() {
        let mut bench = Bench::new();
        let path = bench.identity.files().certificate.clone();
        let good = files::read(&path).unwrap();
        files::write(&path, b"", Secrecy::Public).unwrap();
        let bad = bench.at(NOW);
        assert!(matches!(&bad[..], [Line::Bad(text)] if text.contains("no whole certificate")), "{bad:?}");
        assert_eq!(bench.at(NOW + 5), []);
        assert_eq!(bench.at(NOW + DAY).len(), 1);
        files::write(&path, &good, Secrecy::Public).unwrap();
        let again = Line::Good("the files of [tls] are again as they were, and good".into());
        assert_eq!(bench.at(NOW + DAY + 5), [again]);
        assert_eq!(bench.at(NOW + DAY + 10), []);
    }
}
