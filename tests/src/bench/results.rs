//! What was measured, and ratios of it.

use super::annexd::Counted;
use super::contender::Contender;
use super::plan::{Cell, Plan};
use super::ratio::{Ratio, middle};
use super::ready::Run;
use super::{Machine, advise, machine, pause, programs};
use crate::access::Measured;
use serde::Serialize;
use std::collections::BTreeMap;

#[derive(Debug, Serialize)]
pub struct Results {
    pub machine: Machine,
    pub bytes: u64,
    pub seconds: f64,
    /// By round.
    pub floors: Vec<Floors>,
    pub rows: Vec<Row>,
    /// Who could not run, and why.
    pub skipped: BTreeMap<String, String>,
    pub pause: Option<pause::Report>,
    pub advise: Option<advise::Report>,
    pub programs: Option<programs::Report>,
}

/// What a fault and an answer over TCP cost by themselves.
#[derive(Clone, Debug, Serialize)]
pub struct Floors {
    pub fault: Measured,
    pub sigbus: Measured,
    pub ping: Measured,
}

/// One contender in one cell.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    pub contender: Contender,
    #[serde(flatten)]
    pub cell: Cell,
    /// False if a round had more in memory than its share: then its speed is that of the excess.
    pub held: bool,
    pub median: Measured,
    pub runs: Vec<Run>,
}

impl Row {
    pub fn of(contender: Contender, cell: Cell, runs: Vec<Run>) -> Row {
        let held = runs.iter().all(|run| within_share(&run.measured, cell.resident_percent));
        let median = median(&runs.iter().map(|run| &run.measured).collect::<Vec<_>>());
        Row { contender, cell, held, median, runs }
    }
}

impl Results {
    pub fn new(plan: &Plan) -> Results {
        Results {
            machine: machine(),
            bytes: plan.bytes,
            seconds: plan.seconds,
            floors: Vec::new(),
            rows: Vec::new(),
            skipped: BTreeMap::new(),
            pause: None,
            advise: None,
            programs: None,
        }
    }

    pub fn row(&self, contender: Contender, cell: Cell) -> Option<&Row> {
        self.rows.iter().find(|row| row.contender == contender && row.cell == cell)
    }

    pub fn runs(&self, contender: Contender, cell: Cell) -> &[Run] {
        self.row(contender, cell).map_or(&[], |row| &row.runs)
    }

    /// A figure of one row over that of another, in each round that has both.
    pub fn ratio(
        &self,
        (ours, our_cell): (Contender, Cell),
        (theirs, their_cell): (Contender, Cell),
        figure: impl Fn(&Measured) -> f64,
    ) -> Option<Ratio> {
        let theirs = self.runs(theirs, their_cell);
        let pairs = self.runs(ours, our_cell).iter().filter_map(|our| {
            let their = theirs.iter().find(|their| their.round == our.round)?;
            Some(figure(&our.measured) / figure(&their.measured))
        });
        Ratio::of(pairs.collect())
    }

    /// A figure over one of the floors of the same round.
    pub fn over_floor(
        &self,
        (contender, cell): (Contender, Cell),
        figure: impl Fn(&Measured) -> f64,
        floor: impl Fn(&Floors) -> f64,
    ) -> Option<Ratio> {
        let pairs = self
            .runs(contender, cell)
            .iter()
            .filter_map(|run| Some(figure(&run.measured) / floor(self.floors.get(run.round)?)));
        Ratio::of(pairs.collect())
    }

    /// What annexd counted while a cell was measured, by rounds.
    pub fn counted(&self, contender: Contender, cell: Cell) -> impl Iterator<Item = (&Measured, &Counted)> {
        let runs = self.runs(contender, cell).iter();
        runs.filter_map(|run| Some((&run.measured, run.annexd.as_ref()?.measured.as_ref()?)))
    }

    /// The same while memory was filled.
    pub fn filled(&self, contender: Contender, cell: Cell) -> impl Iterator<Item = &Counted> {
        self.runs(contender, cell).iter().filter_map(|run| run.annexd.as_ref()?.filling.as_ref())
    }
}

/// A tenth more is within what a watermark may lag.
pub fn within_share(one: &Measured, percent: u64) -> bool {
    one.resident_share * 100.0 <= percent as f64 * 1.1 + 2.0
}

/// Of each figure by itself.
fn median(runs: &[&Measured]) -> Measured {
    let of = |figure: fn(&Measured) -> f64| middle(runs.iter().map(|run| figure(run)).collect());
    let points = runs.iter().map(|run| run.miss_curve_us.len()).min().unwrap_or(0);
    let curve = (0..points).map(|nth| middle(runs.iter().map(|run| run.miss_curve_us[nth]).collect()));
    Measured {
        threads: runs.first().map_or(0, |run| run.threads),
        accesses: of(|m| m.accesses as f64) as u64,
        ops_per_s: of(|m| m.ops_per_s),
        p50_us: of(|m| m.p50_us),
        p90_us: of(|m| m.p90_us),
        p99_us: of(|m| m.p99_us),
        p999_us: of(|m| m.p999_us),
        max_us: of(|m| m.max_us),
        slow_share: of(|m| m.slow_share),
        miss_p50_us: of(|m| m.miss_p50_us),
        miss_p99_us: of(|m| m.miss_p99_us),
        miss_p999_us: of(|m| m.miss_p999_us),
        miss_curve_us: curve.collect(),
        resident_share: of(|m| m.resident_share),
        ..Measured::default()
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::access::Pattern;

    /// Results with nothing in them.
    pub fn nothing() -> Results {
        let plan = Plan {
            bytes: 1 << 20,
            seconds: 1.0,
            rounds: 1,
            contenders: Vec::new(),
            cells: Vec::new(),
            pause: None,
            advise: None,
            programs: None,
            umap: None,
            results: Default::default(),
        };
        Results::new(&plan)
    }

    /// A row whose rounds had this throughput.
    pub fn row(contender: Contender, cell: Cell, ops_per_s: &[f64]) -> Row {
        let runs = ops_per_s.iter().enumerate().map(|(round, &ops_per_s)| {
            let measured = Measured { ops_per_s, miss_p50_us: 1e6 / ops_per_s, threads: 1, ..Measured::default() };
            Run { round, measured, annexd: None }
        });
        Row::of(contender, cell, runs.collect())
    }

    #[test]
    fn a_ratio_is_the_median_of_each_rounds_own() {
        let cell = Cell { pattern: Pattern::Random, threads: 1, resident_percent: 50 };
        let mut results = nothing();
        results.rows.push(row(Contender::AnnexShm, cell, &[10.0, 40.0, 90.0]));
        results.rows.push(row(Contender::Zram, cell, &[10.0, 20.0, 30.0]));
        let ratio = results.ratio((Contender::AnnexShm, cell), (Contender::Zram, cell), |m| m.ops_per_s).unwrap();
        assert_eq!(ratio, Ratio { median: 2.0, least: 1.0, most: 3.0, rounds: 3 });
        assert_eq!(results.ratio((Contender::AnnexShm, cell), (Contender::Disk, cell), |m| m.ops_per_s), None);
    }

    #[test]
    fn each_figure_has_a_median_of_its_own() {
        let run = |ops_per_s, p99_us| Measured { ops_per_s, p99_us, ..Measured::default() };
        let middle = median(&[&run(3.0, 30.0), &run(1.0, 20.0), &run(2.0, 10.0)]);
        assert_eq!((middle.ops_per_s, middle.p99_us), (2.0, 20.0));
    }
}
