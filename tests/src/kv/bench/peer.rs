//! redis-benchmark on redis-server: if our own client were the slower one, it would hold up all
//! that are fast.

use super::Figure;
use super::load::{Load, keys};
use anyhow::{Context, ensure};
use std::net::SocketAddr;
use std::process::Command;

/// Runs a load's reads.
///
/// # Errors
/// The program is missing, fails, or says something else than it should.
pub fn redis_benchmark(address: SocketAddr, load: Load, requests: usize) -> anyhow::Result<Figure> {
    let mut command = Command::new("redis-benchmark");
    command.args(["-p", &address.port().to_string(), "-t", load.mix.name(), "--csv"]);
    command.args(["-n", &requests.to_string(), "-r", &keys(load.bytes).to_string(), "-d", &load.bytes.to_string()]);
    command.args(["-P", &load.pipeline.to_string(), "-c", &load.connections.to_string()]);
    let output = command.output().context("redis-benchmark")?;
    let text = String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.success(), "redis-benchmark failed: {text}");
    parse(&text).with_context(|| format!("redis-benchmark said {text}"))
}

/// Its CSV: the test's name, operations per second, then latencies in milliseconds: average, least,
/// p50, p95, p99, most.
fn parse(text: &str) -> Option<Figure> {
    let fields = text.lines().nth(1)?.split(',').skip(1);
    let fields: Option<Vec<f64>> = fields.map(|field| field.trim_matches('"').parse().ok()).collect();
    let &[per_second, _, _, p50_ms, _, p99_ms, _] = fields?.as_slice() else { return None };
    Some(Figure { per_second, p50_us: p50_ms * 1e3, p99_us: p99_ms * 1e3, p999_us: None })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_table_is_understood() {
        let head = "\"test\",\"rps\",\"avg_latency_ms\",…";
        let figure = parse(&format!("{head}\n\"GET\",\"50000.00\",\"0.5\",\"0.1\",\"0.4\",\"0.6\",\"0.7\",\"2.0\"\n"));
        assert_eq!(figure.map(|f| (f.per_second, f.p50_us, f.p99_us, f.p999_us)), Some((50000.0, 400.0, 700.0, None)));
        assert!(parse(head).is_none() && parse(&format!("{head}\n\"GET\",\"50000.00\"\n")).is_none());
    }
}
