//! A thread that does nothing but read the clock, and the gaps in what it saw: how long it was kept
//! from running, and when.

pub use super::now;
use serde::{Deserialize, Serialize};

/// Shorter gaps are the loop itself.
const SHORTEST_NS: u64 = 5_000;

/// One gap, in nanoseconds of CLOCK_MONOTONIC, which all processes share.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Gap {
    pub begin: u64,
    pub end: u64,
}

impl Gap {
    pub fn len(&self) -> u64 {
        self.end - self.begin
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Reads the clock until `stop`, and returns the gaps.
pub fn watch(stop: impl Fn() -> bool) -> Vec<Gap> {
    let mut gaps = Vec::with_capacity(1 << 20);
    let mut last = now();
    loop {
        for _ in 0..1000 {
            let time = now();
            if time - last > SHORTEST_NS && gaps.len() < gaps.capacity() {
                gaps.push(Gap { begin: last, end: time });
            }
            last = time;
        }
        if stop() {
            return gaps;
        }
    }
}
