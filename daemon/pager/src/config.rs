//! What annexd's configuration says of the pager, and of ordinary users.

use crate::sched::waiting::Wait;
use annex_shared::api::Limit;
use annex_shared::config::ByteSize;
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

/// `[users]` in annexd's configuration: what each user may have who is neither root nor a member of
/// group annex.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct UsersConfig {
    /// Whether they may have programs paged; regions (`annex-client`) they may have in any case.
    pub programs: bool,
    /// Apps at a time.
    pub apps: u32,
    /// What the page tables of all their apps may take.
    pub table_bytes: ByteSize,
    /// What all their apps may have in the pool: a size, or a share of what the pool can take.
    pub pool_bytes: Limit,
}

impl Default for UsersConfig {
    fn default() -> Self {
        UsersConfig { programs: true, apps: 100, table_bytes: ByteSize(64 << 20), pool_bytes: Limit::Percent(75) }
    }
}
