//! `annex-kv-bench`: the KV API beside redis-server. See `annex_tests::kv::bench`.

use annex_tests::kv::bench::{self, Plan};
use clap::Parser;
use std::path::PathBuf;

/// Measures GET and SET on the KV API and on redis-server with redis-benchmark; writes bench-results/kv.md and kv.json.
#[derive(Parser)]
#[command(version)]
struct Args {
    /// A few minutes: one round, small and medium values.
    #[arg(long)]
    quick: bool,
    #[arg(long)]
    rounds: Option<usize>,
    #[arg(long)]
    seconds: Option<f64>,
    /// Bytes of a value.
    #[arg(long, value_delimiter = ',')]
    sizes: Vec<usize>,
    #[arg(long, value_delimiter = ',', default_values_t = [1, 16])]
    pipelines: Vec<usize>,
    #[arg(long, value_delimiter = ',', default_values_t = [1, 50])]
    connections: Vec<usize>,
    #[arg(long, default_value = "bench-results")]
    results: PathBuf,
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let sizes = if args.quick { vec![100, 1024] } else { vec![100, 1024, 16384] };
    let plan = Plan {
        rounds: args.rounds.unwrap_or(if args.quick { 1 } else { 5 }),
        seconds: args.seconds.unwrap_or(1.0),
        sizes: if args.sizes.is_empty() { sizes } else { args.sizes },
        pipelines: args.pipelines,
        connections: args.connections,
        results: args.results,
    };
    print!("{}", bench::markdown(&bench::run(&plan)?));
    Ok(())
}
