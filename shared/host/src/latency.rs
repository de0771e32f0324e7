//! A histogram that many threads add to without a lock: buckets an eighth of a power of two wide.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

const SUB: u32 = 3;
const BUCKETS: usize = (64 - SUB as usize) << SUB;

/// Durations in nanoseconds, exact to 12.5 %.
pub struct Latency {
    buckets: Box<[AtomicU64; BUCKETS]>,
    max: AtomicU64,
}

impl Default for Latency {
    fn default() -> Self {
        Latency { buckets: Box::new([const { AtomicU64::new(0) }; BUCKETS]), max: AtomicU64::new(0) }
    }
}

impl Latency {
    pub fn add(&self, took: Duration) {
        let nanos = took.as_nanos() as u64;
        self.buckets[bucket(nanos)].fetch_add(1, Relaxed);
        self.max.fetch_max(nanos, Relaxed);
    }

    /// The `q`-quantile in microseconds (middle of its bucket); 0 if nothing was added.
    pub fn quantile(&self, q: f64) -> f64 {
        let total: u64 = self.buckets.iter().map(|b| b.load(Relaxed)).sum();
        let wanted = (q * total as f64).ceil().max(1.0) as u64;
        let mut seen = 0;
        for (i, b) in self.buckets.iter().enumerate() {
            seen += b.load(Relaxed);
            if seen >= wanted {
                return ((floor_of(i) + floor_of(i + 1)) as f64 / 2.0).min(self.max.load(Relaxed) as f64) / 1e3;
            }
        }
        0.0
    }

    /// Counts by doublings of a microsecond: (less than so many microseconds, how many); those of 0
    /// are left out.
    pub fn by_doublings(&self) -> Vec<(u64, u64)> {
        let mut counts: Vec<(u64, u64)> = Vec::new();
        for (i, bucket) in self.buckets.iter().enumerate() {
            let count = bucket.load(Relaxed);
            // By its floor: what is counted one too low is so by an eighth at most.
            let below = (floor_of(i) / 1000 + 1).checked_next_power_of_two().unwrap_or(u64::MAX);
            match counts.last_mut() {
                _ if count == 0 => {}
                Some((last, n)) if *last == below => *n += count,
                _ => counts.push((below, count)),
            }
        }
        counts
    }

    /// All durations together in microseconds, as exact as the buckets are.
    pub fn sum_us(&self) -> f64 {
        let middle = |i| (floor_of(i) as f64 + floor_of(i + 1) as f64) / 2.0;
        let all = self.buckets.iter().enumerate().map(|(i, b)| (i, b.load(Relaxed)));
        all.filter(|(_, n)| *n > 0).map(|(i, n)| n as f64 * middle(i)).sum::<f64>() / 1e3
    }

    /// Several histograms as one.
    pub fn together<'a>(parts: impl IntoIterator<Item = &'a Latency>) -> Latency {
        let all = Latency::default();
        for part in parts {
            for (bucket, more) in all.buckets.iter().zip(part.buckets.iter()) {
                bucket.fetch_add(more.load(Relaxed), Relaxed);
            }
            all.max.fetch_max(part.max.load(Relaxed), Relaxed);
        }
        all
    }

    pub fn max(&self) -> f64 {
        self.max.load(Relaxed) as f64 / 1e3
    }
}

fn bucket(nanos: u64) -> usize {
    if nanos < 1 << SUB {
        return nanos as usize;
    }
    let exponent = 63 - nanos.leading_zeros() - SUB;
    (((exponent + 1) << SUB) as u64 + ((nanos >> exponent) & ((1 << SUB) - 1))) as usize
}

fn floor_of(bucket: usize) -> u64 {
    if bucket < 1 << SUB {
        return bucket as u64;
    }
    let exponent = (bucket >> SUB) as u32 - 1;
    ((1 << SUB) + (bucket as u64 & ((1 << SUB) - 1))).checked_shl(exponent).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_lies_in_its_bucket() {
        for nanos in (0..100_000).chain([u64::MAX / 3, 1 << 40, (1 << 40) - 1]) {
            let b = bucket(nanos);
            assert!(floor_of(b) <= nanos && nanos < floor_of(b + 1), "{nanos} in bucket {b}");
        }
    }

    #[test]
    fn quantiles_are_those_of_what_was_added() {
        let latency = Latency::default();
        (1..=1000).for_each(|us| latency.add(Duration::from_micros(us)));
        assert!((latency.quantile(0.5) - 500.0).abs() < 70.0);
        assert!((latency.quantile(0.99) - 990.0).abs() < 130.0);
        assert_eq!(latency.max(), 1000.0);
    }

    #[test]
    fn parts_count_together_and_their_sum_is_about_right() {
        let (one, two) = (Latency::default(), Latency::default());
        (1..=500).for_each(|us| one.add(Duration::from_micros(us)));
        (501..=1000).for_each(|us| two.add(Duration::from_micros(us)));
        let all = Latency::together([&one, &two]);
        assert_eq!(all.by_doublings().iter().map(|(_, n)| n).sum::<u64>(), 1000);
        assert_eq!(all.max(), 1000.0);
        assert!((all.sum_us() / 500_500.0 - 1.0).abs() < 0.125, "{}", all.sum_us());
    }

    #[test]
    fn doublings_start_at_a_microsecond_and_count_everything() {
        let latency = Latency::default();
        for nanos in [0, 900, 1100, 3000, 3900, 4100, 70_000] {
            latency.add(Duration::from_nanos(nanos));
        }
        assert_eq!(latency.by_doublings(), [(1, 2), (2, 1), (4, 2), (8, 1), (128, 1)]);
    }
}
