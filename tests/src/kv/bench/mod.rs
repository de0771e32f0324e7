//! The KV API beside redis-server, with Redis' own client on the same machine: throughput and latency, by size of the values, length of the pipeline
//! and number of connections. The contenders of a row take turns, and each figure is the median of the rounds.

use crate::bench::{Machine, machine};
use crate::testbed::{Donor, Testbed};
use anyhow::{Context, ensure};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// What is to be measured.
pub struct Plan {
    pub rounds: usize,
    /// How long one figure takes, about.
    pub seconds: f64,
    pub sizes: Vec<usize>,
    pub pipelines: Vec<usize>,
    pub connections: Vec<usize>,
    pub results: PathBuf,
}

/// Bytes of values in all.
const SET: usize = 128 << 20;
/// Requests for a first estimate of the speed.
const TRIAL: usize = 5000;

#[derive(Serialize)]
pub struct Row {
    pub contender: String,
    pub command: String,
    pub bytes: usize,
    pub pipeline: usize,
    pub connections: usize,
    pub per_second: f64,
    pub p50_ms: f64,
    pub p99_ms: f64,
}

#[derive(Serialize)]
pub struct Results {
    pub machine: Machine,
    pub rows: Vec<Row>,
}

/// A server that takes Redis' protocol.
struct Server {
    name: &'static str,
    port: u16,
    _runs: Runs,
}

enum Runs {
    Annex { _bed: Box<Testbed> },
    Redis(Child),
}

impl Drop for Runs {
    fn drop(&mut self) {
        if let Runs::Redis(child) = self {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn annex(name: &'static str, donor: fn() -> Donor, cache: usize) -> anyhow::Result<Server> {
    let options = format!(",cache={cache}");
    let bed = Testbed::builder().donor(donor()).donor(donor()).beside_others().kv(&options).start();
    let address = bed.kv_address.clone().context("no KV API")?;
    let port = address.rsplit(':').next().context("no port")?.parse()?;
    Ok(Server { name, port, _runs: Runs::Annex { _bed: Box::new(bed) } })
}

fn redis() -> anyhow::Result<Server> {
    let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let arguments = ["--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--port", &port.to_string()];
    let child = Command::new("redis-server").args(arguments).stdout(Stdio::null()).spawn().context("redis-server")?;
    Ok(Server { name: "redis-server", port, _runs: Runs::Redis(child) })
}

/// Requests per second, and latency in milliseconds.
#[derive(Clone, Copy)]
struct Figure {
    per_second: f64,
    p50_ms: f64,
    p99_ms: f64,
}

#[derive(Clone, Copy)]
struct Load {
    command: &'static str,
    bytes: usize,
    pipeline: usize,
    connections: usize,
}

impl Load {
    fn keys(&self) -> usize {
        (SET / self.bytes).min(500_000)
    }

    fn run(&self, server: &Server, requests: usize) -> anyhow::Result<Figure> {
        let mut command = Command::new("redis-benchmark");
        command.args(["-p", &server.port.to_string(), "-t", self.command, "--csv", "-r", &self.keys().to_string()]);
        command.args(["-n", &requests.to_string(), "-d", &self.bytes.to_string()]);
        command.args(["-P", &self.pipeline.to_string(), "-c", &self.connections.to_string()]);
        let output = command.output().context("redis-benchmark")?;
        let text = String::from_utf8_lossy(&output.stdout);
        ensure!(output.status.success(), "redis-benchmark failed on {}: {text}", server.name);
        // "test","rps","avg_latency_ms","min_latency_ms","p50_latency_ms","p95_latency_ms","p99_latency_ms","max_latency_ms"
        let line = text.lines().nth(1).with_context(|| format!("redis-benchmark said {text}"))?;
        let fields: Vec<f64> = line.split(',').skip(1).filter_map(|f| f.trim_matches('"').parse().ok()).collect();
        ensure!(fields.len() == 7, "redis-benchmark said {line}");
        Ok(Figure { per_second: fields[0], p50_ms: fields[3], p99_ms: fields[5] })
    }
}

/// Fills a server with all keys of a load.
fn fill(server: &Server, load: Load) -> anyhow::Result<()> {
    let set = Load { command: "set", pipeline: 64, connections: 8, ..load };
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(60) {
        set.run(server, load.keys())?;
        let found = Command::new("redis-cli").args(["-p", &server.port.to_string(), "dbsize"]).output()?;
        let keys: usize = String::from_utf8_lossy(&found.stdout).trim().parse().context("DBSIZE")?;
        // Keys are drawn at random: the last few would take for ever.
        if keys * 10 >= load.keys() * 9 {
            return Ok(());
        }
    }
    anyhow::bail!("{} takes longer than a minute to be filled", server.name)
}

fn empty(server: &Server) -> anyhow::Result<()> {
    let done = Command::new("redis-cli").args(["-p", &server.port.to_string(), "flushall"]).output()?;
    ensure!(done.status.success(), "{} can't be emptied", server.name);
    Ok(())
}

fn median(mut of: Vec<f64>) -> f64 {
    of.sort_by(f64::total_cmp);
    of.get(of.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Runs everything and writes `kv.json` and `kv.md`.
///
/// # Errors
/// A server or the client can't be run.
pub fn run(plan: &Plan) -> anyhow::Result<Results> {
    let servers = [
        redis()?,
        annex("annex shm", Donor::shm, 0)?,
        annex("annex shm, 10 % cached", Donor::shm, SET / 10)?,
        annex("annex tcp", Donor::tcp, 0)?,
    ];
    std::thread::sleep(Duration::from_millis(500));
    let mut rows = Vec::new();
    for bytes in plan.sizes.iter().copied() {
        let whole = Load { command: "set", bytes, pipeline: 1, connections: 1 };
        servers.iter().try_for_each(empty)?;
        servers.iter().try_for_each(|server| fill(server, whole))?;
        for (pipeline, connections) in
            plan.pipelines.iter().flat_map(|p| plan.connections.iter().map(move |c| (*p, *c)))
        {
            for command in ["get", "set"] {
                let load = Load { command, bytes, pipeline, connections };
                eprintln!("{command} of {bytes} B, pipeline {pipeline}, {connections} connections");
                let mut figures: BTreeMap<usize, Vec<Figure>> = BTreeMap::new();
                for _ in 0..plan.rounds {
                    for (n, server) in servers.iter().enumerate() {
                        let trial = load.run(server, TRIAL)?;
                        let requests = (trial.per_second * plan.seconds) as usize;
                        figures.entry(n).or_default().push(load.run(server, requests.max(TRIAL))?);
                    }
                }
                for (n, of) in figures {
                    let of_all = |what: fn(&Figure) -> f64| median(of.iter().map(what).collect());
                    rows.push(Row {
                        contender: servers[n].name.into(),
                        command: command.into(),
                        bytes,
                        pipeline,
                        connections,
                        per_second: of_all(|f| f.per_second),
                        p50_ms: of_all(|f| f.p50_ms),
                        p99_ms: of_all(|f| f.p99_ms),
                    });
                }
            }
        }
    }
    let results = Results { machine: machine(), rows };
    std::fs::create_dir_all(&plan.results)?;
    std::fs::write(plan.results.join("kv.json"), serde_json::to_string_pretty(&results)?)?;
    std::fs::write(plan.results.join("kv.md"), markdown(&results))?;
    Ok(results)
}

/// A table with the throughput beside redis-server's.
pub fn markdown(results: &Results) -> String {
    let mut text = String::from(
        "| command | value | pipeline | connections | server | requests/s | × redis | p50 ms | p99 ms |\n\
         | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n",
    );
    for group in results.rows.chunk_by(|a, b| {
        (&a.command, a.bytes, a.pipeline, a.connections) == (&b.command, b.bytes, b.pipeline, b.connections)
    }) {
        let redis = group.first().map_or(f64::NAN, |row| row.per_second);
        for row in group {
            let _ = writeln!(
                text,
                "| {} | {} B | {} | {} | {} | {:.0} | {:.2} | {:.3} | {:.3} |",
                row.command,
                row.bytes,
                row.pipeline,
                row.connections,
                row.contender,
                row.per_second,
                row.per_second / redis,
                row.p50_ms,
                row.p99_ms
            );
        }
    }
    text
}
