//! Every program with a quarter, half and three quarters of its pages local, under every policy.

use crate::policy::annexd::{Chooser, Cost, run};
use crate::policy::caches::{Cache, Dip, Fifo, Lirs, Lru, S3Fifo, misses, opt};
use crate::policy::clock::Clock;
use crate::policy::learned::Learned;
use crate::policy::memory::Trace;
use crate::policy::traces::Program;

pub const SHARES: [usize; 3] = [25, 50, 75];
/// Steps in which a phase's settling is looked at.
const WINDOWS: usize = 64;

/// A row of the table.
pub struct Row {
    pub program: &'static str,
    pub share: usize,
    pub steps: usize,
    pub opt: u64,
    /// LRU, FIFO, S3-FIFO, LIRS, DIP.
    pub others: [u64; 5],
    pub clock: Cost,
    pub learned: Cost,
}

pub fn row(program: &Program, trace: &Trace, share: usize) -> Row {
    let limit = trace.footprint() * share / 100;
    let caches: [&mut dyn Cache; 5] = [
        &mut Lru::new(trace, limit),
        &mut Fifo::new(trace, limit),
        &mut S3Fifo::new(trace, limit),
        &mut Lirs::new(trace, limit),
        &mut Dip::new(trace, limit),
    ];
    Row {
        program: program.name,
        share,
        steps: trace.len(),
        opt: opt(trace, limit),
        others: caches.map(|cache| misses(cache, trace)),
        clock: run(trace, limit, &mut Clock::new(trace.end), |_, _| ()),
        learned: run(trace, limit, &mut Learned::new(trace.end), |_, _| ()),
    }
}

pub const HEADER: &str = "\
| program, % local | OPT, thousand | LRU | FIFO | S3-FIFO | LIRS | DIP | clock | learned | waits: clock | learned |
| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |";

impl Row {
    /// In Markdown. Misses are multiples of the optimum's; where that has next to none, thousands.
    pub fn markdown(&self) -> String {
        let is_little = self.opt * 1_000 < self.steps as u64 && self.opt < 1_000;
        let ratio = |misses: u64| match is_little {
            true => format!("({})", thousands(misses)),
            false => format!("{:.2}", misses as f64 / self.opt as f64),
        };
        let mut cells = vec![format!("{}, {}", self.program, self.share), thousands(self.opt)];
        cells.extend(self.others.map(ratio));
        cells.extend([self.clock.brought, self.learned.brought].map(ratio));
        cells.extend([self.clock.faults, self.learned.faults].map(thousands));
        format!("| {} |", cells.join(" | "))
    }

    /// Work of an eviction: pages that the hand looked at, and that left in one span.
    pub fn work(&self) -> String {
        let per = |cost: Cost| {
            let (evicted, spans) = (cost.evicted.max(1) as f64, cost.spans.max(1) as f64);
            format!("{:.1} | {:.1}", cost.scanned as f64 / evicted, evicted / spans)
        };
        format!("| {}, {} | {} | {} |", self.program, self.share, per(self.clock), per(self.learned))
    }
}

pub const WORK_HEADER: &str = "\
| program, % local | clock: looked at for each page | pages a span | learned: looked at | pages a span |
| --- | --- | --- | --- | --- |";

fn thousands(n: u64) -> String {
    if n < 10_000 { format!("{:.1}", n as f64 / 1e3) } else { format!("{}", (n + 500) / 1_000) }
}

/// Misses in a program's last phase until it misses as in the phase's last quarter, in parts of the
/// pages that the phase uses.
pub fn settling(trace: &Trace, limit: usize, chooser: &mut dyn Chooser) -> Option<f64> {
    let began = *trace.phases.last()?;
    let len = (trace.len() - began) / WINDOWS;
    let mut upto = Vec::with_capacity(WINDOWS + 1);
    let cost = run(trace, limit, chooser, |i, cost| {
        if i >= began && (i - began).is_multiple_of(len) && upto.len() <= WINDOWS {
            upto.push(cost.brought);
        }
    });
    upto.resize(WINDOWS + 1, cost.brought);
    let usual = (upto[WINDOWS] - upto[WINDOWS * 3 / 4]) as f64 / (WINDOWS / 4) as f64;
    let settled = upto.windows(2).position(|pair| (pair[1] - pair[0]) as f64 <= usual * 1.25 + 2.0);
    let used: std::collections::HashSet<u32> = trace
        .steps()
        .skip(began)
        .filter_map(|step| match step {
            crate::policy::memory::Step::Read(page) | crate::policy::memory::Step::Write(page) => Some(page),
            crate::policy::memory::Step::Gone(_) => None,
        })
        .collect();
    Some((upto[settled.unwrap_or(WINDOWS)] - upto[0]) as f64 / used.len().max(1) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::traces::PROGRAMS;

    fn rows(name: &str, share: usize) -> Row {
        let program = PROGRAMS.iter().find(|program| program.name == name).unwrap();
        row(program, &program.trace(), share)
    }

    #[test]
    fn a_loop_at_three_quarters_misses_at_most_1_3_times_the_optimum() {
        let row = rows("loop", 75);
        assert!(row.learned.brought * 10 <= row.opt * 13 + 10 * 16_384, "{} of {}", row.learned.brought, row.opt);
        assert!(row.clock.brought > row.opt * 3);
    }

    #[test]
    fn points_beside_a_scan_miss_less_than_with_the_clock() {
        for share in SHARES {
            let row = rows("scan + points", share);
            assert!(row.learned.brought * 100 < row.clock.brought * 97, "{share} % local");
        }
    }

    #[test]
    fn a_phase_change_settles_within_a_working_set() {
        let program = PROGRAMS.iter().find(|program| program.name == "phase change").unwrap();
        let trace = program.trace();
        for share in SHARES {
            let limit = trace.footprint() * share / 100;
            let misses = settling(&trace, limit, &mut Learned::new(trace.end)).unwrap();
            // The first one brings it.
            assert!(misses <= 2.0, "{share} % local: {misses:.2} working sets");
        }
    }

    #[test]
    fn it_is_the_same_every_time() {
        let (a, b) = (rows("scan + points", 50), rows("scan + points", 50));
        assert_eq!(a.markdown(), b.markdown());
    }
}
