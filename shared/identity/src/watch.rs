//! Looks at the files of a daemon's identity every few seconds, on a thread of its own, and says in
//! the log what comes of it: new files, files that don't fit together, and a certificate that
//! expires soon or has expired.
//!
//! The thread ends when nobody else has the identity.

use crate::identity::{Identity, Reloaded};
use crate::renewal::Outlook;
use rustls::pki_types::UnixTime;
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
    outlook: Option<Instant>,
}

impl Said {
    fn look(&mut self, identity: &Identity) {
        match identity.reload() {
            Ok(reloaded) => {
                self.files = None;
                if reloaded == Reloaded::Taken {
                    self.outlook = None;
                    info!("the changed files of {} are in use from now on", identity.current().own.name);
                }
            }
            Err(error) => {
                let text = error.to_string();
                let is_new = self.files.as_ref().is_none_or(|(said, at)| *said != text || at.elapsed() >= AGAIN);
                if is_new {
                    warn!("the files of [tls] can't be used, and the ones before stay in use: {text}");
                    self.files = Some((text, Instant::now()));
                }
            }
        }
        let own = identity.current().own.clone();
        let warning = Outlook::of(own.validity, UnixTime::now()).warning();
        if let Some(warning) = warning.filter(|_| self.outlook.is_none_or(|at| at.elapsed() >= AGAIN)) {
            warn!("{}: {warning}", own.name);
            self.outlook = Some(Instant::now());
        }
    }
}
