//! A run that is interrupted ends in order.

use anyhow::ensure;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Set by SIGINT and SIGTERM. Swap must not stay on after us: the run ends with an error, not at
/// once.
pub static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// # Errors
/// A signal asked for the end.
pub(crate) fn go_on() -> anyhow::Result<()> {
    ensure!(!INTERRUPTED.load(Relaxed), "interrupted");
    Ok(())
}
