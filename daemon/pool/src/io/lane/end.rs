//! One donor's end of a lane: its endpoint, what is posted there, and what waits.

use crate::io::inflight::{Posted, Queue};
use crate::io::latency;
use annex_fabric::Endpoint;
use std::time::{Duration, Instant};

/// Nothing came from an end for so long, though something is under way there: far beyond what an
/// operation takes.
pub(crate) const LATE: Duration = Duration::from_millis(50);

/// One donor's end, as this lane holds it.
#[derive(Default)]
pub(super) struct End {
    pub endpoint: Option<Box<dyn Endpoint>>,
    /// A fresh one that takes over when nothing is outstanding on the old one.
    pub next: Option<Box<dyn Endpoint>>,
    pub outstanding: usize,
    /// Operations that wait for room or for an endpoint.
    pub waiting: Queue,
    pub posted: bool,
    pub latency_ns: u64,
    /// When something came from it last, or was posted while nothing was outstanding; and when the
    /// coordinator was told of its silence.
    pub heard: Option<Instant>,
    pub told: Option<Instant>,
    /// Reads that are posted.
    pub reads: Posted,
    pub quantile: latency::Quantile,
}

impl End {
    /// Operations can be posted.
    pub fn usable(&self) -> bool {
        self.next.is_none() && self.endpoint.as_ref().is_some_and(|e| !e.is_broken())
    }

    /// A read took so long.
    pub fn learn(&mut self, took: Duration) {
        let ns = took.as_nanos() as u64;
        self.latency_ns = self.latency_ns - self.latency_ns / 8 + ns / 8;
        self.quantile.observe(ns);
    }

    /// Since when something is awaited from it and nothing came.
    pub fn waits(&self, now: Instant) -> Option<Duration> {
        let heard = self.heard.filter(|_| self.outstanding > 0)?;
        Some(now.saturating_duration_since(heard)).filter(|waits| *waits >= LATE)
    }
}
