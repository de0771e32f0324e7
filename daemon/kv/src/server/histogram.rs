//! How long a command's calls took: counts in buckets of about 6 % width, for percentiles and
//! LATENCY HISTOGRAM.

use std::time::Duration;

/// Buckets per doubling.
const STEPS: u64 = 16;
/// Up to 2^36 ns, about a minute; longer calls count as that.
const DOUBLINGS: u64 = 37;
/// LATENCY HISTOGRAM begins here and doubles, as in Redis.
const FIRST_BOUND_NS: u64 = 1024;

#[derive(Clone)]
pub struct Histogram {
    counts: [u32; (STEPS * DOUBLINGS) as usize],
    total: u64,
}

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram { counts: [0; (STEPS * DOUBLINGS) as usize], total: 0 }
    }
}

impl Histogram {
    pub fn record(&mut self, took: Duration) {
        let ns = (took.as_nanos() as u64).clamp(1, (1 << (DOUBLINGS - 1)) - 1);
        let count = &mut self.counts[bucket(ns)];
        *count = count.saturating_add(1);
        self.total += 1;
    }

    pub fn total(&self) -> u64 {
        self.total
    }

    /// In microseconds.
    pub fn percentile(&self, percent: f64) -> f64 {
        let wanted = ((percent / 100.0 * self.total as f64).round() as u64).max(1);
        let mut seen = 0;
        let found = self.counts.iter().position(|count| {
            seen += u64::from(*count);
            seen >= wanted
        });
        found.map_or(0.0, |bucket| highest(bucket) as f64 / 1000.0)
    }

    /// (microseconds, calls that took at most that), for each doubling in which there are calls.
    pub fn cumulative(&self) -> Vec<(i64, i64)> {
        let (mut bound, mut seen, mut told) = (FIRST_BOUND_NS, 0, 0);
        let mut all = Vec::new();
        for (index, count) in self.counts.iter().enumerate() {
            while highest(index) >= bound {
                if seen > told {
                    all.push(((bound / 1000) as i64, seen));
                    told = seen;
                }
                bound *= 2;
            }
            seen += i64::from(*count);
        }
        if seen > told {
            all.push(((bound / 1000) as i64, seen));
        }
        all
    }
}

fn bucket(ns: u64) -> usize {
    let doubling = u64::from(ns.ilog2());
    let step = if doubling >= 4 { (ns >> (doubling - 4)) - STEPS } else { (ns << (4 - doubling)) - STEPS };
    (doubling * STEPS + step) as usize
}

/// The largest value that falls into a bucket, in nanoseconds.
fn highest(bucket: usize) -> u64 {
    let (doubling, step) = (bucket as u64 / STEPS, bucket as u64 % STEPS);
    (((STEPS + step + 1) << doubling) / STEPS).saturating_sub(1).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_near_what_was_recorded() {
        let mut histogram = Histogram::default();
        (1..=1000).for_each(|us| histogram.record(Duration::from_micros(us)));
        let median = histogram.percentile(50.0);
        assert!((median - 500.0).abs() < 40.0, "{median}");
        assert_eq!(histogram.total(), 1000);
    }

    #[test]
    fn the_cumulative_counts_end_with_all_calls() {
        let mut histogram = Histogram::default();
        [1, 3, 3, 900].iter().for_each(|us| histogram.record(Duration::from_micros(*us)));
        let counts = histogram.cumulative();
        assert_eq!(counts.last().map(|(_, count)| *count), Some(4));
        assert!(counts.is_sorted());
    }
}
