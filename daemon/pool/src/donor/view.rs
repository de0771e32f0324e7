//! What the pool knows of a donor: counted by lanes, told by its control thread, shown by listings.

use crate::config::DonorConfig;
use crate::donor::traffic::Traffic;
use annex_fabric::Transport;
use annex_shared::api::DonorState;
use annex_shared::ids::DonorId;
use annex_shared::wire::Refusal;
use parking_lot::Mutex;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::{Duration, Instant};

/// One that stood still for seconds and goes on is not slow: no single read counts for more.
const MOST_OF_ONE_READ: Duration = Duration::from_millis(100);
/// What was measured longer ago says nothing of how slow a donor is.
const READ_LATELY: Duration = Duration::from_secs(60);

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
    pub reading: Reading,
}

/// How long reads take lately, but for those that are over at once (shared memory).
#[derive(Debug)]
pub(crate) struct Reading {
    /// Smoothed, in nanoseconds; 0 = not known.
    ns: AtomicU64,
    /// When one was last seen, in milliseconds after `base`.
    at_ms: AtomicU64,
    base: Instant,
}

/// Written by the donor's control thread.
#[derive(Clone, Debug)]
pub(crate) struct DonorView {
    pub name: String,
    pub state: DonorState,
    pub transport: Option<Transport>,
    /// Why this transport, or why there is no connection.
    pub why: String,
    /// Why RDMA, which both hosts have, does not work.
    pub rdma_failed: String,
    /// Why it lent no slab when it was asked last.
    pub refusal: Option<Refusal>,
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
        fold(&self.latency_ns, ns);
    }
}

fn fold(smoothed: &AtomicU64, ns: u64) {
    let old = smoothed.load(Relaxed);
    smoothed.store(if old == 0 { ns } else { old - old / 16 + ns / 16 }, Relaxed);
}

impl Default for Reading {
    fn default() -> Reading {
        Reading { ns: AtomicU64::new(0), at_ms: AtomicU64::new(0), base: Instant::now() }
    }
}

impl Reading {
    pub fn observe(&self, took: Duration, now: Instant) {
        fold(&self.ns, took.min(MOST_OF_ONE_READ).as_nanos() as u64);
        self.at_ms.store(self.since_base(now), Relaxed);
    }

    /// The mean of the last reads in microseconds; 0 if there was none lately.
    pub fn mean_us(&self, now: Instant) -> u64 {
        let age = self.since_base(now).saturating_sub(self.at_ms.load(Relaxed));
        if age > READ_LATELY.as_millis() as u64 { 0 } else { self.ns.load(Relaxed) / 1000 }
    }

    fn since_base(&self, now: Instant) -> u64 {
        now.saturating_duration_since(self.base).as_millis() as u64
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
            rdma_failed: String::new(),
            refusal: None,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_are_slow_if_many_are_and_only_while_they_are_young() {
        let (reading, now) = (Reading::default(), Instant::now());
        assert_eq!(reading.mean_us(now), 0);
        (0..100).for_each(|_| reading.observe(Duration::from_micros(200), now));
        reading.observe(Duration::from_secs(10), now);
        assert!(reading.mean_us(now) < 10_000, "one read counts for too much: {}", reading.mean_us(now));
        (0..100).for_each(|_| reading.observe(Duration::from_millis(60), now));
        assert!(reading.mean_us(now) > 50_000, "{}", reading.mean_us(now));
        assert_eq!(reading.mean_us(now + READ_LATELY + Duration::from_millis(2)), 0);
    }
}
