//! How long a donor's reads take, as one lane sees them, and when one of them is late: a histogram
//! that forgets.
//!
//! *Late* is past the 99th percentile, but never past a multiple of the median: a donor that stood
//! still for a moment answers all that had waited at once, and the percentile would stay that high
//! for thousands of reads. If it is slow and not hung, its median says so.

/// Buckets per doubling.
const STEPS: u32 = 4;
const BUCKETS: usize = 40 * STEPS as usize;
/// The quantile is computed anew after so many reads, and old ones count half after so many.
const EVERY: u32 = 64;
const HALVE_EVERY: u32 = 2048;
/// A read is late after so many medians, whatever the percentile.
const TAIL: u64 = 32;

/// See the module's header.
#[derive(Debug)]
pub(crate) struct Quantile {
    counts: [u16; BUCKETS],
    seen: u32,
    late_ns: u64,
}

impl Default for Quantile {
    fn default() -> Self {
        Quantile { counts: [0; BUCKETS], seen: 0, late_ns: 0 }
    }
}

impl Quantile {
    pub fn observe(&mut self, ns: u64) {
        let count = &mut self.counts[bucket(ns)];
        *count = count.saturating_add(1);
        self.seen = self.seen.wrapping_add(1);
        if self.seen.is_multiple_of(EVERY) {
            self.late_ns = self.above(100).min(self.above(2).saturating_mul(TAIL));
        }
        if self.seen.is_multiple_of(HALVE_EVERY) {
            self.counts.iter_mut().for_each(|c| *c /= 2);
        }
    }

    /// 0 until enough is known.
    pub fn late_ns(&self) -> u64 {
        self.late_ns
    }

    /// What one in so many took longer than.
    fn above(&self, one_in: u32) -> u64 {
        let total: u32 = self.counts.iter().map(|c| u32::from(*c)).sum();
        let mut above = total / one_in;
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
        assert_eq!(quantile.late_ns(), 0);
        (0..1000u64).for_each(|i| quantile.observe(if i % 50 == 0 { 200_000 } else { 10_000 }));
        assert!((200_000..260_000).contains(&quantile.late_ns()), "{}", quantile.late_ns());
        (0..20_000).for_each(|_| quantile.observe(20_000));
        assert!((20_000..26_000).contains(&quantile.late_ns()), "{}", quantile.late_ns());
    }

    #[test]
    fn a_donor_that_hung_for_a_moment_is_not_waited_for_as_long_the_next_time() {
        // It was, for thousands of reads: a program stood still for as long as its donor was cut
        // off, again and again.
        let mut quantile = Quantile::default();
        (0..1000).for_each(|_| quantile.observe(100_000));
        (0..64).for_each(|_| quantile.observe(1_000_000_000));
        assert!(quantile.late_ns() < 5_000_000, "{}", quantile.late_ns());
        // One that is slow all the time is given the time.
        (0..4000).for_each(|_| quantile.observe(50_000_000));
        assert!(quantile.late_ns() >= 50_000_000, "{}", quantile.late_ns());
    }
}
