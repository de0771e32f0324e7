//! What two readings of the same counters tell about the time between them. Pure.

use std::time::Duration;

/// Counts as annexd tells them: (less than so many microseconds, how many), the shortest first.
pub type Latencies = [(u64, u64)];

/// What a counter gained per second. A counter that fell belongs to another annexd: it tells
/// nothing.
pub fn per_second(before: u64, now: u64, elapsed: Duration) -> Option<f64> {
    let gained = now.checked_sub(before)?;
    (!elapsed.is_zero()).then(|| gained as f64 / elapsed.as_secs_f64())
}

/// How long threads waited per second, from sums in microseconds: 1.0 is one thread all the time.
pub fn waited_share(before_us: f64, now_us: f64, elapsed: Duration) -> f64 {
    if elapsed.is_zero() { 0.0 } else { (now_us - before_us).max(0.0) / 1e6 / elapsed.as_secs_f64() }
}

/// The operations that came between two readings.
pub fn between(before: &Latencies, now: &Latencies) -> Vec<(u64, u64)> {
    let had = |bound| before.iter().find(|(b, _)| *b == bound).map_or(0, |(_, n)| *n);
    let gained = now.iter().map(|(bound, n)| (*bound, n.saturating_sub(had(*bound))));
    gained.filter(|(_, n)| *n > 0).collect()
}

/// The bound in microseconds below which this share of the operations lies. `None` if there are
/// none.
pub fn percentile(counts: &Latencies, share: f64) -> Option<u64> {
    let all: u64 = counts.iter().map(|(_, n)| n).sum();
    let wanted = ((all as f64 * share).ceil() as u64).max(1);
    let mut seen = 0;
    counts
        .iter()
        .find(|(_, n)| {
            seen += n;
            seen >= wanted
        })
        .map(|(bound, _)| *bound)
}

/// The sum of several such lists.
pub fn together<'a>(lists: impl Iterator<Item = &'a Latencies>) -> Vec<(u64, u64)> {
    let mut sum = std::collections::BTreeMap::new();
    for (bound, n) in lists.flatten() {
        *sum.entry(*bound).or_insert(0) += n;
    }
    sum.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_what_came_over_the_time_it_took() {
        assert_eq!(per_second(100, 400, Duration::from_secs(2)), Some(150.0));
        assert_eq!(per_second(400, 100, Duration::from_secs(2)), None, "another annexd counts");
        assert_eq!(per_second(1, 2, Duration::ZERO), None);
    }

    #[test]
    fn two_threads_that_wait_all_the_time_are_twice_the_time() {
        assert_eq!(waited_share(1e6, 5e6, Duration::from_secs(2)), 2.0);
        assert_eq!(waited_share(5e6, 1e6, Duration::from_secs(2)), 0.0);
    }

    #[test]
    fn percentiles_are_of_what_came_between() {
        let before = [(16, 1000), (64, 5)];
        let now = [(16, 1098), (64, 5), (4096, 2)];
        let gained = between(&before, &now);
        assert_eq!(gained, [(16, 98), (4096, 2)]);
        assert_eq!(percentile(&gained, 0.5), Some(16));
        assert_eq!(percentile(&gained, 0.99), Some(4096));
        assert_eq!(percentile(&[], 0.99), None);
        assert_eq!(together([&now[..], &before[..]].into_iter()), [(16, 2098), (64, 10), (4096, 2)]);
    }
}
