//! What work on a space needs of the rest of the pager.

use crate::app::quota::Quotas;
use crate::sched::watchdog::Watchdog;
use crate::space::address_space::Space;
use crate::space::inflight::InFlight;
use crate::space::registry::Registry;
use annex_pool::Pool;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// Has somebody watch a space.
pub type Watch = Box<dyn Fn(&Arc<Space>) + Send + Sync>;

/// What the space needs of the rest of the pager.
pub struct Shared {
    pub pool: Arc<Pool>,
    pub in_flight: InFlight,
    pub registry: Arc<Registry>,
    /// What ordinary users may take.
    pub quotas: Quotas,
    pub watchdog: Watchdog,
    /// Has a fork's child watched.
    pub watch: Watch,
    pub ids: AtomicU64,
}
