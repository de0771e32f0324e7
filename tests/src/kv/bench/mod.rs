//! The KV API beside redis-server and memcached on the same machine, with the same client for all:
//! throughput and latency, by mix of requests, size of the values, length of the pipeline and
//! number of connections. The contenders of a cell take turns, and each figure is the median of the
//! rounds.
//!
//! - [`contender`]: who is measured, and how each is started. [`raw`]: the bare floor.
//! - [`load`]: which requests for which keys. [`protocol`]: what they and their answers look like.
//!   [`driver`]: the client.
//! - [`peer`]: redis-benchmark, which must not be faster than our client. [`report`]: the table.
//! - [`fairness`]: what one client's large requests cost another one. [`hostile`]: what clients
//!   cost it that mean harm.

pub mod contender;
pub mod driver;
pub mod fairness;
mod figures;
pub mod hostile;
pub mod load;
pub mod peer;
pub mod protocol;
pub mod raw;
pub mod report;

use crate::access::zipf::Zipf;
use crate::bench::machine;
use anyhow::{Context, ensure};
use contender::{Contender, Server};
pub use figures::{Figure, Results, Row};
use load::{Load, Mix, Requests};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// What is to be measured.
pub struct Plan {
    pub rounds: usize,
    /// How long one figure takes, besides the time to settle.
    pub seconds: f64,
    pub contenders: Vec<Contender>,
    pub mixes: Vec<Mix>,
    pub sizes: Vec<usize>,
    pub pipelines: Vec<usize>,
    pub connections: Vec<usize>,
    pub results: PathBuf,
}

/// Runs everything and writes `kv.json` and `kv.md`.
///
/// # Errors
/// A server answers wrongly or not at all, or the results can't be written.
pub fn run(plan: &Plan) -> anyhow::Result<Results> {
    ensure!(plan.sizes.iter().all(|bytes| *bytes >= 16), "values begin with their key: give sizes from 16 B on");
    let mut results = Results { machine: machine(), seconds: plan.seconds, rows: Vec::new(), skipped: BTreeMap::new() };
    let began = Instant::now();
    for (done, bytes) in plan.sizes.iter().copied().enumerate() {
        let servers = start(plan, bytes, &mut results.skipped)?;
        let zipf = Zipf::new(load::keys(bytes), 0.99);
        let cells = cells(plan, bytes);
        for (nth, load) in cells.iter().copied().enumerate() {
            eprintln!(
                "[{}/{}, {} s] {}",
                done * cells.len() + nth + 1,
                plan.sizes.len() * cells.len(),
                began.elapsed().as_secs(),
                report::name(load)
            );
            // No round draws the keys of another: what that one left in a cache would be all that
            // this one asks for.
            let seed = (done * cells.len() + nth) * plan.rounds;
            results.rows.extend(measure(plan, load, zipf, seed as u64, &servers)?);
        }
    }
    std::fs::create_dir_all(&plan.results)?;
    std::fs::write(plan.results.join("kv.json"), serde_json::to_string_pretty(&results)?)?;
    std::fs::write(plan.results.join("kv.md"), report::markdown(&results))?;
    Ok(results)
}

fn cells(plan: &Plan, bytes: usize) -> Vec<Load> {
    let mut cells = Vec::new();
    for mix in &plan.mixes {
        for pipeline in &plan.pipelines {
            for connections in &plan.connections {
                cells.push(Load { mix: *mix, bytes, pipeline: *pipeline, connections: *connections });
            }
        }
    }
    cells
}

/// Starts and fills whoever can run here.
fn start(plan: &Plan, bytes: usize, skipped: &mut BTreeMap<String, String>) -> anyhow::Result<Vec<Server>> {
    let mut servers = Vec::new();
    for contender in plan.contenders.iter().filter(|c| **c != Contender::RedisBenchmark) {
        let began = Instant::now();
        match Server::start(*contender, bytes) {
            Ok(server) => {
                server.fill(bytes).with_context(|| format!("filling {}", contender.name()))?;
                eprintln!("{} filled after {:.1} s", contender.name(), began.elapsed().as_secs_f64());
                servers.push(server);
            }
            Err(why) => {
                eprintln!("SKIPPED {}: {why:#}", contender.name());
                skipped.insert(contender.name().to_owned(), format!("{why:#}"));
            }
        }
    }
    Ok(servers)
}

fn measure(plan: &Plan, load: Load, zipf: Zipf, seed: u64, servers: &[Server]) -> anyhow::Result<Vec<Row>> {
    let duration = Duration::from_secs_f64(plan.seconds);
    // It reads and writes, and draws its keys evenly.
    let asks_peer = plan.contenders.contains(&Contender::RedisBenchmark) && load.mix == Mix::Get;
    let mut figures: BTreeMap<Contender, Vec<Figure>> = BTreeMap::new();
    for round in 0..plan.rounds {
        for server in servers {
            let requests = Requests::drawn(load, zipf, seed + round as u64 + 1);
            let tally = server.measure(load, requests, duration).with_context(|| server.contender.name())?;
            let figure = Figure::from(&tally);
            figures.entry(server.contender).or_default().push(figure);
            if server.contender == Contender::RedisServer && asks_peer {
                let requests = (figure.per_second * plan.seconds) as usize;
                let figure = peer::redis_benchmark(server.address, load, requests)?;
                figures.entry(Contender::RedisBenchmark).or_default().push(figure);
            }
        }
    }
    let row = |(contender, rounds): (_, Vec<Figure>)| {
        let median = Figure::median(&rounds);
        eprintln!("   {:<34}{:>9.0}/s  p50 {:>8.1} µs", Contender::name(contender), median.per_second, median.p50_us);
        Row { load, contender, median, rounds }
    };
    Ok(figures.into_iter().map(row).collect())
}

#[cfg(test)]
mod tests {
    use super::driver::Tally;
    use super::*;

    /// A small cell whose server is the bare floor.
    fn tally(mix: Mix, pipeline: usize, connections: usize) -> Tally {
        let load = Load { mix, bytes: 16384, pipeline, connections };
        let server = Server::start(Contender::Raw, load.bytes).unwrap();
        let requests = Requests::drawn(load, Zipf::new(load::keys(load.bytes), 0.99), 1);
        server.measure(load, requests, Duration::from_millis(50)).unwrap()
    }

    #[test]
    fn every_round_is_answered_and_timed() {
        for (mix, pipeline, connections) in [(Mix::Get, 1, 1), (Mix::Set, 16, 3), (Mix::Mixed, 16, 50)] {
            let tally = tally(mix, pipeline, connections);
            assert_eq!(tally.requests, tally.latency.len() as usize * pipeline);
            assert!(tally.requests >= pipeline * connections, "{} {pipeline} {connections}", tally.requests);
        }
    }

    #[test]
    fn the_median_is_that_of_each_figure() {
        let figure = |per_second, p50_us, p999_us| Figure { per_second, p50_us, p99_us: 0.0, p999_us };
        let rounds = [figure(3.0, 1.0, Some(5.0)), figure(1.0, 2.0, Some(7.0)), figure(2.0, 3.0, Some(6.0))];
        let median = Figure::median(&rounds);
        assert_eq!((median.per_second, median.p50_us, median.p999_us), (2.0, 2.0, Some(6.0)));
    }
}
