//! What the pool knows of a donor: counted by lanes, told by its control thread, shown by listings.

use crate::config::DonorConfig;
use crate::donor::traffic::Traffic;
use annex_fabric::Transport;
use annex_shared::api::DonorState;
use annex_shared::ids::DonorId;
use parking_lot::Mutex;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Duration;

/// One donor, as the data plane and the listings see it.
pub(crate) struct Donor {
    pub id: DonorId,
    pub address: String,
    /// `None` = not used any more.
    pub config: Mutex<Option<DonorConfig>>,
    pub stats: DonorStats,
    pub traffic: Traffic,
    /// Neither operations nor its agent answer. Set and cleared by the coordinator.
    pub silent: AtomicBool,
    pub view: Mutex<DonorView>,
}

/// Counted by lanes.
#[derive(Debug, Default)]
pub(crate) struct DonorStats {
    pub reads: AtomicU64,
    pub writes: AtomicU64,
    pub errors: AtomicU64,
    pub checksum_errors: AtomicU64,
    pub healed: AtomicU64,
    /// Smoothed time of an operation, in nanoseconds; 0 = not known.
    pub latency_ns: AtomicU64,
}

/// Written by the donor's control thread.
#[derive(Clone, Debug)]
pub(crate) struct DonorView {
    pub name: String,
    pub state: DonorState,
    pub transport: Option<Transport>,
    /// Why this transport, or why there is no connection.
    pub why: String,
    pub encrypted: bool,
    pub held: u32,
    pub free: u32,
    pub capacity: u32,
    /// It is to be removed.
    pub draining: bool,
    /// How long its leases last; `None`: it was not reached yet.
    pub lease: Option<Duration>,
}

impl DonorStats {
    /// Folds one operation's time into the smoothed one.
    pub fn observe(&self, ns: u64) {
        let old = self.latency_ns.load(Relaxed);
        self.latency_ns.store(if old == 0 { ns } else { old - old / 16 + ns / 16 }, Relaxed);
    }
}

impl Donor {
    pub fn new(id: DonorId, address: String, config: Option<DonorConfig>) -> Self {
        let name = config.as_ref().map_or(address.clone(), |c| c.label().to_owned());
        let view = DonorView {
            name,
            state: DonorState::Connecting,
            transport: None,
            why: "not reached yet".to_owned(),
            encrypted: false,
            held: 0,
            free: 0,
            capacity: 0,
            draining: false,
            lease: None,
        };
        Donor {
            id,
            address,
            config: Mutex::new(config),
            stats: DonorStats::default(),
            traffic: Traffic::default(),
            silent: AtomicBool::new(false),
            view: Mutex::new(view),
        }
    }
}
