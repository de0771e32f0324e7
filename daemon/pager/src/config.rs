//! What annexd's configuration says of the pager.

use crate::sched::waiting::Wait;
use serde::{Deserialize, Serialize};

/// `[pager]` in annexd's configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PagerConfig {
    /// Fault workers; 0 = one per CPU, four at most.
    pub fault_workers: u32,
    /// How workers wait for faults: `auto` (what is measured at start to be better here), `block`
    /// or `spin`.
    pub wait: Wait,
    /// Microseconds for which a worker polls for a page that it reads, before it sleeps; 0 = none,
    /// and no rings of regions either.
    pub busy_poll_us: u32,
    /// It polls only while reads usually come back within `busy_poll_us`.
    pub adaptive_polling: bool,
}

impl Default for PagerConfig {
    fn default() -> Self {
        PagerConfig { fault_workers: 0, wait: Wait::default(), busy_poll_us: 20, adaptive_polling: true }
    }
}
