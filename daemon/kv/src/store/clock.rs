//! The store's clock.

use nix::time::{ClockId, clock_gettime};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A moment: milliseconds since 1970.
pub type UnixMs = u64;

/// The time of day.
pub fn now() -> UnixMs {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64
}

/// The same, some milliseconds behind and cheaper: for what is counted in seconds.
pub fn about_now() -> UnixMs {
    let time = clock_gettime(ClockId::CLOCK_REALTIME_COARSE).map(Duration::from);
    time.map_or_else(|_| now(), |since| since.as_millis() as u64)
}
