//! The service manager's watchdog: it is told that annexd is alive as long as its workers are.
//!
//! A worker that has stalled is said in `annex status` (and by the pager in the log). After
//! [`HOPELESS`] the service manager is told nothing more: it kills annexd, whose successor takes
//! the programs over.

use super::Apps;
use super::stop::notify;
use sd_notify::NotifyState;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A stall this long does not end by itself.
const HOPELESS: Duration = Duration::from_secs(30);

/// Whether the service manager is to be told that all is well, given since when something has
/// stalled.
fn is_well(stalled_since: Option<Instant>, now: Instant) -> bool {
    stalled_since.is_none_or(|since| now.duration_since(since) < HOPELESS)
}

/// Looks after the workers for ever, if the service manager wants to hear of it.
pub async fn watch(apps: Arc<dyn Apps>) {
    let Some(within) = sd_notify::watchdog_enabled() else { return };
    let mut since = None;
    loop {
        tokio::time::sleep(within / 3).await;
        since = apps.stalled().map(|_| since.unwrap_or_else(Instant::now));
        if is_well(since, Instant::now()) {
            notify(&[NotifyState::Watchdog]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_stall_is_borne_and_a_long_one_is_not() {
        let start = Instant::now();
        assert!(is_well(None, start));
        assert!(is_well(Some(start), start + HOPELESS / 2));
        assert!(!is_well(Some(start), start + HOPELESS));
    }
}
