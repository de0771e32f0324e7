//! What was measured.

use super::contender::Contender;
use super::driver::Tally;
use super::load::Load;
use crate::bench::Machine;
use crate::bench::ratio::middle;
use serde::Serialize;
use std::collections::BTreeMap;

/// One contender's round, or the median of its rounds. The latency is that of a whole pipeline.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Figure {
    pub per_second: f64,
    pub p50_us: f64,
    pub p99_us: f64,
    /// redis-benchmark does not say it.
    pub p999_us: Option<f64>,
}

impl From<&Tally> for Figure {
    fn from(tally: &Tally) -> Figure {
        let micros = |quantile| tally.latency.value_at_quantile(quantile) as f64 / 1e3;
        Figure {
            per_second: tally.requests as f64 / tally.took.as_secs_f64(),
            p50_us: micros(0.5),
            p99_us: micros(0.99),
            p999_us: Some(micros(0.999)),
        }
    }
}

impl Figure {
    pub fn median(rounds: &[Figure]) -> Figure {
        let of = |what: fn(&Figure) -> f64| middle(rounds.iter().map(what).collect());
        let p999: Vec<f64> = rounds.iter().filter_map(|figure| figure.p999_us).collect();
        Figure {
            per_second: of(|f| f.per_second),
            p50_us: of(|f| f.p50_us),
            p99_us: of(|f| f.p99_us),
            p999_us: (!p999.is_empty()).then(|| middle(p999)),
        }
    }
}

#[derive(Debug, Serialize)]
pub struct Row {
    #[serde(flatten)]
    pub load: Load,
    pub contender: Contender,
    pub median: Figure,
    pub rounds: Vec<Figure>,
}

#[derive(Debug, Serialize)]
pub struct Results {
    pub machine: Machine,
    pub seconds: f64,
    pub rows: Vec<Row>,
    /// Who could not run, and why.
    pub skipped: BTreeMap<String, String>,
}
