//! How long a donor's reads take, as one lane sees them: the 99th percentile, from a histogram that forgets.

/// Buckets per doubling.
const STEPS: u32 = 4;
const BUCKETS: usize = 40 * STEPS as usize;
/// The quantile is computed anew after so many reads, and old ones count half after so many.
const EVERY: u32 = 64;
const HALVE_EVERY: u32 = 2048;

/// See the module's header.
#[derive(Debug)]
pub(super) struct Quantile {
    counts: [u16; BUCKETS],
    seen: u32,
    p99_ns: u64,
}

impl Default for Quantile {
    fn default() -> Self {
        Quantile { counts: [0; BUCKETS], seen: 0, p99_ns: 0 }
    }
}

impl Quantile {
    pub fn observe(&mut self, ns: u64) {
        let count = &mut self.counts[bucket(ns)];
        *count = count.saturating_add(1);
        self.seen = self.seen.wrapping_add(1);
        if self.seen.is_multiple_of(EVERY) {
            self.p99_ns = self.compute();
        }
        if self.seen.is_multiple_of(HALVE_EVERY) {
            self.counts.iter_mut().for_each(|c| *c /= 2);
        }
    }

    /// 0 until enough is known.
    pub fn p99_ns(&self) -> u64 {
        self.p99_ns
    }

    fn compute(&self) -> u64 {
        let total: u32 = self.counts.iter().map(|c| u32::from(*c)).sum();
        let mut above = total / 100;
        for (i, count) in self.counts.iter().enumerate().rev() {
            match above.checked_sub(u32::from(*count)) {
                Some(left) => above = left,
                None => return end(i),
            }
        }
        0
    }
}

fn bucket(ns: u64) -> usize {
    let ns = ns.max(STEPS.into());
    let log = ns.ilog2();
    let step = (ns >> (log - STEPS.ilog2())) as u32 - STEPS;
    ((log * STEPS + step) as usize).min(BUCKETS - 1)
}

/// Where a bucket ends.
fn end(bucket: usize) -> u64 {
    let (log, step) = (bucket as u32 / STEPS, bucket as u32 % STEPS);
    u64::from(STEPS + step + 1) << log.saturating_sub(STEPS.ilog2())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_quantile_is_that_of_what_was_seen_and_follows_changes() {
        let mut quantile = Quantile::default();
        assert_eq!(quantile.p99_ns(), 0);
        (0..1000u64).for_each(|i| quantile.observe(if i % 50 == 0 { 1_000_000 } else { 10_000 }));
        assert!((1_000_000..1_300_000).contains(&quantile.p99_ns()), "{}", quantile.p99_ns());
        (0..20_000).for_each(|_| quantile.observe(20_000));
        assert!((20_000..26_000).contains(&quantile.p99_ns()), "{}", quantile.p99_ns());
    }
}
