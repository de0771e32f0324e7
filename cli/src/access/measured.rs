//! What a run came to.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// An access that took longer was not in memory, nearly always: reading a page that is takes less
/// than one.
pub const SLOW_NS: u64 = 3_000;

/// Where the curve of misses is looked at: closer together towards the tail.
pub const CURVE: [f64; 24] = [
    0.01, 0.05, 0.10, 0.15, 0.20, 0.25, 0.30, 0.35, 0.40, 0.45, 0.50, 0.55, 0.60, 0.65, 0.70, 0.75, 0.80, 0.85, 0.90,
    0.95, 0.98, 0.99, 0.995, 0.999,
];

/// One run's result. Times in microseconds.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Measured {
    pub threads: usize,
    pub accesses: u64,
    /// Of all threads together.
    pub ops_per_s: f64,
    pub p50_us: f64,
    pub p90_us: f64,
    pub p99_us: f64,
    pub p999_us: f64,
    pub max_us: f64,
    /// Accesses that took longer than 3 µs: those that were not in memory, nearly.
    pub slow_share: f64,
    /// Of those alone.
    pub miss_p50_us: f64,
    pub miss_p99_us: f64,
    pub miss_p999_us: f64,
    /// The same at the quantiles of [`CURVE`].
    pub miss_curve_us: Vec<f64>,
    /// Part of the set that was in memory at the end: whether the contender held it to its share.
    pub resident_share: f64,
    /// When the set was filled, and when what was measured began and ended: nanoseconds of
    /// CLOCK_MONOTONIC, which all processes share.
    pub filled_ns: u64,
    pub began_ns: u64,
    pub ended_ns: u64,
}

impl Measured {
    /// Of accesses in nanoseconds that took `seconds` together.
    pub fn of(histogram: &Histogram<u64>, seconds: f64) -> Measured {
        let micros = |quantile: f64| histogram.value_at_quantile(quantile) as f64 / 1e3;
        let all = histogram.len();
        let fast = histogram.count_between(0, SLOW_NS);
        let slow_share = (all - fast) as f64 / all.max(1) as f64;
        let miss = |quantile: f64| {
            if all == fast { 0.0 } else { micros(1.0 - slow_share + slow_share * quantile) }
        };
        Measured {
            accesses: all,
            ops_per_s: all as f64 / seconds,
            p50_us: micros(0.5),
            p90_us: micros(0.9),
            p99_us: micros(0.99),
            p999_us: micros(0.999),
            max_us: histogram.max() as f64 / 1e3,
            slow_share,
            miss_p50_us: miss(0.5),
            miss_p99_us: miss(0.99),
            miss_p999_us: miss(0.999),
            miss_curve_us: if all == fast { Vec::new() } else { CURVE.map(miss).to_vec() },
            ..Measured::default()
        }
    }

    /// Accesses that were not in memory, per second.
    pub fn misses_per_s(&self) -> f64 {
        self.ops_per_s * self.slow_share
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn misses_are_told_apart_from_what_was_in_memory() {
        let mut histogram = Histogram::<u64>::new_with_bounds(1, 60_000_000_000, 3).unwrap();
        histogram.record_n(500, 900).unwrap();
        (1..=100).for_each(|n| histogram.record(n * 10_000).unwrap());
        let measured = Measured::of(&histogram, 1.0);
        assert_eq!((measured.p50_us, measured.slow_share), (0.5, 0.1));
        assert!((measured.miss_p50_us - 500.0).abs() < 11.0, "{}", measured.miss_p50_us);
        assert!((measured.miss_p99_us - 990.0).abs() < 11.0, "{}", measured.miss_p99_us);
        assert_eq!(measured.miss_curve_us.len(), CURVE.len());
    }

    #[test]
    fn nothing_missed_has_no_latency() {
        let mut histogram = Histogram::<u64>::new_with_bounds(1, 60_000_000_000, 3).unwrap();
        histogram.record_n(500, 900).unwrap();
        let measured = Measured::of(&histogram, 1.0);
        assert_eq!((measured.slow_share, measured.miss_p99_us), (0.0, 0.0));
    }
}
