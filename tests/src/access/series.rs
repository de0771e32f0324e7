//! Random reads in windows of a tenth of a second: how latency goes when something happens.

use super::{Memory, Pattern, Walk, new_histogram, run, ticks};
use serde::{Deserialize, Serialize};
use std::time::Duration;

const WINDOW: Duration = Duration::from_millis(100);

/// One window. Times in microseconds.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Window {
    /// Its end, in nanoseconds of CLOCK_MONOTONIC, which all processes share.
    pub end_ns: u64,
    pub accesses: u64,
    pub p50_us: f64,
    pub p99_us: f64,
    pub max_us: f64,
}

/// Touches pages until `stop`.
pub fn watch(memory: &Memory, seed: u64, stop: impl Fn() -> bool) -> anyhow::Result<Vec<Window>> {
    let mut walk = Walk::new(Pattern::Random, memory.pages, seed);
    let mut windows = Vec::with_capacity(1 << 16);
    while !stop() {
        let mut histogram = new_histogram()?;
        run(memory, &mut walk, WINDOW, Some(&mut histogram))?;
        let micros = |ns: u64| ns as f64 / 1e3;
        windows.push(Window {
            end_ns: ticks::now(),
            accesses: histogram.len(),
            p50_us: micros(histogram.value_at_quantile(0.5)),
            p99_us: micros(histogram.value_at_quantile(0.99)),
            max_us: micros(histogram.max()),
        });
    }
    Ok(windows)
}
