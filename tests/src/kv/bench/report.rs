//! The table: each contender's throughput beside redis-server's, memcached's and the bare floor's
//! of the same cell, and its tail beside redis-server's.

use super::contender::Contender;
use super::load::Load;
use super::{Figure, Results, Row};
use std::fmt::Write as _;

const NOTES: &str = "\
- mixed: nine reads to a write, keys by Zipf with exponent 0.99.
- × bare: beside requests and answers of the same size over loopback TCP, from a thread that stores nothing.
- By redis-benchmark: what Redis' own client gets out of the same redis-server, to tell whether ours holds anybody up.
- Latency is that of a whole pipeline. Throughput and p99 are told beside redis-server's: of the first more is better, of
  the second less.

";

const HEAD: &str = "\
| load | value | pipeline | connections | server | requests/s | × redis | × memcached | × bare | p50 µs | p99 µs | p99 × redis | p99.9 µs |
| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |
";

/// What of a figure stands beside another's.
type Part = fn(&Figure) -> f64;
const RATE: Part = |figure| figure.per_second;
const TAIL: Part = |figure| figure.p99_us;

/// A cell in words.
pub fn name(load: Load) -> String {
    let Load { mix, bytes, pipeline, connections } = load;
    format!("{} of {bytes} B, pipeline {pipeline}, connections {connections}", mix.name())
}

/// As Markdown.
pub fn markdown(results: &Results) -> String {
    let machine = &results.machine;
    let rounds = results.rows.iter().map(|row| row.rounds.len()).max().unwrap_or(0);
    let mut text = format!(
        "{} × {}, Linux {}. Rounds: {rounds}, of {} s for each figure; the medians.\n\n{NOTES}",
        machine.cpus, machine.cpu, machine.kernel, results.seconds
    );
    for (who, why) in &results.skipped {
        let _ = writeln!(text, "{who} was left out: {why}\n");
    }
    text.push_str(HEAD);
    for group in results.rows.chunk_by(|a, b| a.load == b.load) {
        let beside = |row: &Row, whom: Contender, what: Part| {
            let theirs = &group.iter().find(|row| row.contender == whom)?.median;
            Some(what(&row.median) / what(theirs))
        };
        for row in group {
            let Load { mix, bytes, pipeline, connections } = row.load;
            let _ = writeln!(
                text,
                "| {} | {bytes} B | {pipeline} | {connections} | {} | {:.0} | {} | {} | {} | {:.1} | {:.1} | {} | {} |",
                mix.name(),
                row.contender.name(),
                row.median.per_second,
                number(beside(row, Contender::RedisServer, RATE), 2),
                number(beside(row, Contender::Memcached, RATE), 2),
                number(beside(row, Contender::Raw, RATE), 2),
                row.median.p50_us,
                row.median.p99_us,
                number(beside(row, Contender::RedisServer, TAIL), 2),
                number(row.median.p999_us, 1),
            );
        }
    }
    text
}

fn number(number: Option<f64>, digits: usize) -> String {
    number.map_or_else(|| "–".to_owned(), |number| format!("{number:.digits$}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::machine;
    use crate::kv::bench::load::Mix;

    #[test]
    fn every_row_stands_beside_those_of_its_own_cell() {
        let load = Load { mix: Mix::Get, bytes: 100, pipeline: 1, connections: 1 };
        let other = Load { mix: Mix::Set, ..load };
        let row = |load, contender, per_second, p99_us| {
            let median = Figure { per_second, p50_us: 12.0, p99_us, p999_us: None };
            Row { load, contender, median, rounds: vec![median] }
        };
        let rows = vec![
            row(load, Contender::RedisServer, 1000.0, 40.0),
            row(load, Contender::AnnexTcp, 500.0, 50.0),
            row(load, Contender::Raw, 2000.0, 30.0),
            row(other, Contender::AnnexTcp, 300.0, 34.0),
        ];
        let text = markdown(&Results { machine: machine(), seconds: 1.0, rows, skipped: [].into() });
        for line in [
            "| get | 100 B | 1 | 1 | redis-server | 1000 | 1.00 | – | 0.50 | 12.0 | 40.0 | 1.00 | – |",
            "| get | 100 B | 1 | 1 | annex tcp | 500 | 0.50 | – | 0.25 | 12.0 | 50.0 | 1.25 | – |",
            "| set | 100 B | 1 | 1 | annex tcp | 300 | – | – | – | 12.0 | 34.0 | – | – |",
        ] {
            assert!(text.contains(line), "{text}");
        }
    }
}
