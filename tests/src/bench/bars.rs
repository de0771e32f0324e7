//! What annex is held to: ratios within one run, each the median of its rounds.

use super::annexd::Counted;
use super::contender::Contender::{AnnexShm, AnnexTcp, Client, Readahead, Zram};
use super::plan::Cell;
use super::programs::{place::Kind, program::Program};
use super::ratio::Ratio;
use super::results::Results;
use crate::access::{Measured, Pattern};
use serde::Serialize;

/// A bar and how annex did.
#[derive(Clone, Debug, Serialize)]
pub struct Bar {
    pub what: String,
    pub bound: Bound,
    pub unit: &'static str,
    /// `None` if the run did not measure it.
    pub measured: Option<Ratio>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Bound {
    AtMost(f64),
    AtLeast(f64),
}

impl Bar {
    /// Whether annex is on the right side of it.
    pub fn passed(&self) -> Option<bool> {
        let median = self.measured?.median;
        Some(match self.bound {
            Bound::AtMost(most) => median <= most,
            Bound::AtLeast(least) => median >= least,
        })
    }
}

/// A pattern on one thread.
fn cell(pattern: Pattern, resident_percent: u64) -> Cell {
    Cell { pattern, threads: 1, resident_percent }
}

/// All of them, in the order of the table.
pub fn judge(results: &Results) -> Vec<Bar> {
    let mut bars = Vec::new();
    let mut bar = |what: String, bound, unit, measured| bars.push(Bar { what, bound, unit, measured });
    let faults = cell(Pattern::Random, 25);
    let over = |who, ours: fn(&Measured) -> f64, floor: fn(&super::results::Floors) -> f64| {
        results.over_floor((who, faults), ours, floor)
    };
    let p50 = over(AnnexShm, |m| m.miss_p50_us, |f| f.fault.p50_us);
    bar("fault over shm, p50, beside the bare fault".into(), Bound::AtMost(1.3), "×", p50);
    let client = over(Client, |m| m.miss_p50_us, |f| f.sigbus.p50_us);
    bar("fault in a region, p50, beside the bare SIGBUS fault".into(), Bound::AtMost(1.2), "×", client);
    let p99 = over(AnnexShm, |m| m.miss_p99_us, |f| f.fault.p99_us);
    bar("fault over shm, p99, beside the bare fault".into(), Bound::AtMost(2.0), "×", p99);
    let tcp = over(AnnexTcp, |m| m.miss_p50_us, |f| f.fault.p50_us + f.ping.p50_us);
    bar("fault over tcp, p50, beside bare fault + bare ping-pong".into(), Bound::AtMost(1.3), "×", tcp);
    for (pattern, least) in [(Pattern::Random, 2.0), (Pattern::Zipf, 1.5), (Pattern::Sequential, 8.0)] {
        for percent in [50, 25] {
            let cell = cell(pattern, percent);
            let ratio = results.ratio((AnnexShm, cell), (Zram, cell), |m| m.ops_per_s);
            bar(format!("{} {percent} %, beside zram", pattern.name()), Bound::AtLeast(least), "×", ratio);
        }
    }
    for percent in [50, 25] {
        let cell = cell(Pattern::Sequential, percent);
        let ratio = results.ratio((AnnexShm, cell), (Readahead, cell), |m| m.ops_per_s);
        bar(format!("sequential {percent} %, beside perfect read-ahead"), Bound::AtLeast(0.85), "×", ratio);
    }
    let strided = cell(Pattern::Strided, 25);
    let found = results.runs(AnnexShm, strided).iter().map(|run| run.measured.slow_share * 100.0);
    bar("strided: reads that still miss".into(), Bound::AtMost(25.0), "%", Ratio::of(found.collect()));
    for pattern in [Pattern::Sequential, Pattern::Strided, Pattern::Phase] {
        let counted = results.counted(AnnexShm, cell(pattern, 25));
        let wasted = Ratio::of(counted.filter_map(|(_, counted)| Some(counted.useless()? * 100.0)).collect());
        bar(format!("{}: pages read for nothing", pattern.name()), Bound::AtMost(10.0), "%", wasted);
    }
    for pattern in Pattern::ALL {
        let tails = results.runs(AnnexShm, cell(pattern, 25)).iter().map(|run| run.measured.p999_us);
        let tails = Ratio::of(tails.collect());
        bar(format!("{} 25 % over shm, p99.9 of all accesses", pattern.name()), Bound::AtMost(100.0), "µs", tails);
    }
    bar("evicting a dirty page, 2 replicas".into(), Bound::AtMost(1.5), "µs CPU", dirty(results));
    bar("evicting a clean page".into(), Bound::AtMost(0.3), "µs CPU", clean(results));
    let two = Cell { threads: 2, ..faults };
    let rate = results.ratio((AnnexShm, two), (AnnexShm, faults), Measured::misses_per_s);
    bar("faults per second, two threads beside one".into(), Bound::AtLeast(1.8), "×", rate);
    let pause = |figure: fn(&super::pause::Report) -> f64| Ratio::of(results.pause.iter().map(figure).collect());
    let slower = pause(|p| (1.0 - p.within_limit_share) * 100.0);
    bar("within its limit, slower than native by".into(), Bound::AtMost(1.0), "%", slower);
    bar("attach pause, p50".into(), Bound::AtMost(500.0), "µs", pause(|p| p.attach_pause_p50_us));
    let looked_at = Ratio::of(results.advise.iter().map(super::advise::Report::worst).collect());
    bar("slower while annex advise looks, the worst of ten".into(), Bound::AtMost(1.0), "%", looked_at);
    bar("redis at 50 %, beside native".into(), Bound::AtLeast(0.85), "×", redis(results));
    bar("annexd's memory for an evicted page, 25 % resident".into(), Bound::AtMost(16.0), "bytes", overhead(results));
    bars
}

/// While a set is filled, everything that goes out is written.
fn dirty(results: &Results) -> Option<Ratio> {
    let filled = Pattern::ALL.iter().flat_map(|pattern| results.filled(AnnexShm, cell(*pattern, 25)));
    let all_dirty = filled.filter(|counted| counted.clean_share() < 0.01);
    Ratio::of(all_dirty.filter_map(Counted::eviction_us).collect())
}

/// While it is only read, nothing is, once each page was out.
fn clean(results: &Results) -> Option<Ratio> {
    let read = [Pattern::Sequential, Pattern::Strided, Pattern::Random];
    let counted = read.iter().flat_map(|pattern| results.counted(AnnexShm, cell(*pattern, 25)));
    let all_clean = counted.filter(|(_, counted)| counted.clean_share() > 0.95);
    Ratio::of(all_clean.filter_map(|(_, counted)| counted.eviction_us()).collect())
}

fn redis(results: &Results) -> Option<Ratio> {
    let programs = results.programs.as_ref()?;
    programs.speed(programs.row(Program::Redis, Kind::AnnexShm, 50)?)
}

fn overhead(results: &Results) -> Option<Ratio> {
    let counted = results.counted(AnnexShm, cell(Pattern::Random, 25));
    Ratio::of(counted.filter_map(|(_, counted)| counted.overhead_per_page).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::results::tests::{nothing, row};

    #[test]
    fn a_bar_is_passed_missed_or_not_measured() {
        let mut results = nothing();
        results.rows.push(row(AnnexShm, cell(Pattern::Random, 50), &[30.0, 50.0, 40.0]));
        results.rows.push(row(Zram, cell(Pattern::Random, 50), &[10.0, 10.0, 10.0]));
        results.rows.push(row(AnnexShm, cell(Pattern::Sequential, 50), &[70.0]));
        results.rows.push(row(Zram, cell(Pattern::Sequential, 50), &[10.0]));
        let bars = judge(&results);
        let passed = |what: &str| bars.iter().find(|bar| bar.what == what).unwrap().passed();
        assert_eq!(passed("random 50 %, beside zram"), Some(true));
        assert_eq!(passed("sequential 50 %, beside zram"), Some(false));
        assert_eq!(passed("random 25 %, beside zram"), None);
    }
}
