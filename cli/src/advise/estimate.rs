//! From what was touched over a while to a limit, and what it would cost. Pure.
//!
//! What was touched in a time T is the working set of that length. A program that may keep so much
//! waits for the pages that it touches more rarely than that. How many these are per second is how
//! fast the set still grows at its end (Denning): its slope over the last half.

use super::look::Look;
use annex_shared::page::PAGE_SIZE;
use std::time::Duration;

/// On top of what was touched: a tenth, and 8 MiB at least. A CPU that has a page's translation
/// cached does not mark the page again; it has so many bytes of small pages cached at most.
const MARGIN: u64 = 10;
const LEAST_MARGIN: u64 = 8 << 20;
/// What must leave for an attach to be worth it: so many bytes, and this part of all.
const LEAST_GAIN: u64 = 16 << 20;
const LEAST_PART: u64 = 20;
/// The share of time that a program with a fixed limit may wait. It is the target of
/// `--local auto`.
const MOST_LOST: f64 = 0.01;

const MIB: u64 = 1 << 20;

#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Estimate {
    /// What the app may keep: bytes, in whole MiB.
    pub limit: u64,
    /// What would leave.
    pub gain: u64,
    /// Faults a second at that limit; `None` if there was one look only.
    pub faults_per_s: Option<f64>,
    /// Share of one thread's time spent on them.
    pub lost: Option<f64>,
    pub verdict: Verdict,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Attach it with this limit.
    Attach,
    /// It has cold memory, but what is cold changes fast: annexd should find the limit.
    Auto,
    /// Too little would leave.
    Leave,
}

/// Of looks in the order of time, one at least; a fault takes so long.
pub fn estimate(looks: &[Look], fault: Duration) -> Option<Estimate> {
    let last = looks.last()?;
    let margin = (last.hot / MARGIN).max(LEAST_MARGIN);
    let limit = (last.kept + last.hot + margin).div_ceil(MIB) * MIB;
    let gain = last.anonymous().saturating_sub(limit);
    let faults_per_s = slope(looks).map(|bytes_per_s| bytes_per_s / PAGE_SIZE as f64);
    let lost = faults_per_s.map(|faults| faults * fault.as_secs_f64());
    let verdict = match () {
        () if gain < LEAST_GAIN || gain < last.anonymous() / LEAST_PART => Verdict::Leave,
        () if lost.is_some_and(|lost| lost > MOST_LOST) => Verdict::Auto,
        () => Verdict::Attach,
    };
    Some(Estimate { limit, gain, faults_per_s, lost, verdict })
}

/// How fast the working set grows at its end, in bytes a second, without what the program has
/// allocated: that is new, and was nowhere to come back from.
fn slope(looks: &[Look]) -> Option<f64> {
    let (last, before) = looks.split_last()?;
    let half = last.after / 2;
    let middle = before.iter().min_by_key(|look| look.after.abs_diff(half))?;
    let time = last.after.checked_sub(middle.after).filter(|time| !time.is_zero())?;
    let allocated = last.takeable.saturating_sub(middle.takeable);
    let grown = last.hot.saturating_sub(middle.hot).saturating_sub(allocated);
    Some(grown as f64 / time.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAULT: Duration = Duration::from_micros(50);

    /// Looks at a quarter, a half and the whole of a minute.
    fn looks(takeable: u64, hot: [u64; 3]) -> Vec<Look> {
        let at = |(seconds, hot): (u64, u64)| Look {
            after: Duration::from_secs(seconds),
            takeable: takeable * MIB,
            hot: hot * MIB,
            kept: MIB,
            ..Look::default()
        };
        [15, 30, 60].into_iter().zip(hot).map(at).collect()
    }

    #[test]
    fn what_was_touched_and_a_margin_may_stay() {
        let found = estimate(&looks(1000, [200, 200, 200]), FAULT).unwrap();
        assert_eq!((found.limit, found.gain), (221 * MIB, 780 * MIB));
        assert_eq!((found.faults_per_s, found.lost, found.verdict), (Some(0.0), Some(0.0), Verdict::Attach));
        let small = estimate(&looks(1000, [20, 20, 20]), FAULT).unwrap();
        assert_eq!(small.limit, 29 * MIB, "8 MiB at least");
        let odd = Look { hot: 5, takeable: 100 * MIB, after: Duration::from_secs(1), ..Look::default() };
        assert_eq!(estimate(&[odd], FAULT).unwrap().limit, 9 * MIB, "whole MiB");
    }

    #[test]
    fn what_still_grows_comes_back_as_faults() {
        // 30 MiB in 30 s: 256 pages a second, 12.8 ms of each.
        let found = estimate(&looks(1000, [100, 120, 150]), FAULT).unwrap();
        assert_eq!((found.faults_per_s, found.verdict), (Some(256.0), Verdict::Auto));
        assert!((found.lost.unwrap() - 0.0128).abs() < 1e-9, "{found:?}");
        let quick = estimate(&looks(1000, [100, 120, 150]), Duration::from_micros(10)).unwrap();
        assert_eq!(quick.verdict, Verdict::Attach);
    }

    #[test]
    fn memory_that_is_allocated_meanwhile_costs_nothing() {
        let mut grows = looks(1000, [100, 120, 150]);
        grows[1].takeable -= 30 * MIB;
        assert_eq!(estimate(&grows, FAULT).unwrap().faults_per_s, Some(0.0));
        let mut shrinks = looks(1000, [100, 120, 90]);
        shrinks[2].takeable -= 60 * MIB;
        assert_eq!(estimate(&shrinks, FAULT).unwrap().faults_per_s, Some(0.0));
    }

    #[test]
    fn little_gain_is_not_worth_it() {
        assert_eq!(estimate(&looks(1000, [990, 990, 990]), FAULT).unwrap().verdict, Verdict::Leave);
        assert_eq!(estimate(&looks(70, [50, 50, 50]), FAULT).unwrap().verdict, Verdict::Leave);
        // 30 MiB of a GiB.
        assert_eq!(estimate(&looks(1000, [882, 882, 882]), FAULT).unwrap().verdict, Verdict::Leave);
        assert_eq!(estimate(&looks(100, [50, 50, 50]), FAULT).unwrap().verdict, Verdict::Attach);
    }

    #[test]
    fn one_look_tells_no_rate() {
        let one = &looks(1000, [0, 0, 200])[2..];
        let found = estimate(one, FAULT).unwrap();
        assert_eq!((found.faults_per_s, found.lost, found.verdict), (None, None, Verdict::Attach));
        assert_eq!(estimate(&[], FAULT), None);
    }
}
