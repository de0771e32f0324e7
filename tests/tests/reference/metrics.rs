//! The metrics that docs/metrics.md has.

use annex_metrics::Metric;

/// A metric as both sides tell it: name, type, labels and what it says.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Told {
    name: String,
    kind: String,
    labels: Vec<String>,
    help: String,
}

impl Told {
    pub fn of(metric: &Metric) -> Told {
        Told {
            name: metric.name.to_owned(),
            kind: metric.kind.name().to_owned(),
            labels: metric.labels.iter().map(|label| (*label).to_owned()).collect(),
            help: metric.help.to_owned(),
        }
    }
}

/// The rows of its tables: metric, type, unit, labels, value.
pub fn rows(manual: &str) -> Vec<Told> {
    let rows = manual.lines().filter(|line| line.starts_with("| `annex"));
    rows.map(|line| {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [name, kind, unit, labels, help] = cells.as_slice() else { panic!("a row has five cells: {line}") };
        assert!(!unit.is_empty(), "the unit is missing: {line}");
        let labels = labels.split(", ").filter(|label| *label != "none").map(|l| l.trim_matches('`').to_owned());
        Told {
            name: name.trim_matches('`').to_owned(),
            kind: (*kind).to_owned(),
            labels: labels.collect(),
            help: (*help).to_owned(),
        }
    })
    .collect()
}
