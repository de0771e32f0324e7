//! Points at which annexd can be told to die, for the tests of what its successor makes of it.
//!
//! `ANNEXD_DIE_AT=NAME` or `NAME:N` in annexd's environment kills it, as SIGKILL from outside would, when it comes by the point NAME for
//! the Nth time. Without the variable a point costs one load.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

struct Death {
    point: String,
    left: AtomicU64,
}

static DEATH: OnceLock<Option<Death>> = OnceLock::new();

/// Reads the environment; before this, points do nothing.
pub fn arm() {
    let wanted = std::env::var("ANNEXD_DIE_AT").ok().filter(|w| !w.is_empty());
    DEATH.get_or_init(|| {
        let wanted = wanted?;
        let (point, nth) = wanted.split_once(':').unwrap_or((&wanted, "1"));
        Some(Death { point: point.to_owned(), left: AtomicU64::new(nth.parse().unwrap_or(1)) })
    });
}

/// Dies here if that is what was asked for.
#[inline]
pub fn point(name: &'static str) {
    if let Some(Some(death)) = DEATH.get() {
        come_by(death, name);
    }
}

#[cold]
fn come_by(death: &Death, name: &str) {
    if death.point == name && death.left.fetch_sub(1, Relaxed) == 1 {
        // SAFETY: takes numbers only.
        unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
        // The signal is on its way: nothing more may happen here.
        loop {
            std::thread::park();
        }
    }
}
