//! `annex-kv-bench`: the KV API beside redis-server and memcached. See `annex_tests::kv::bench`.

use annex_tests::kv::bench::{self, Plan, contender::Contender, fairness, hostile, load::Mix, report};
use clap::Parser;
use std::path::PathBuf;

/// Measures reads and writes on the KV API, redis-server and memcached; writes bench-results/kv.md
/// and kv.json.
#[derive(Parser)]
#[command(version)]
struct Args {
    /// Within three minutes: one round, small and large values.
    #[arg(long)]
    quick: bool,
    /// Instead: how long another client waits while one has a large request under way. Needs 8 GiB
    /// of memory.
    #[arg(long)]
    fairness: bool,
    /// Instead: what an honest client sees beside hostile ones, and what memory these make annexd
    /// take. Needs 10,000 file descriptors.
    #[arg(long)]
    hostile: bool,
    #[arg(long)]
    rounds: Option<usize>,
    /// How long one figure takes, besides the time to settle.
    #[arg(long, default_value_t = 0.4)]
    seconds: f64,
    /// All unless named.
    #[arg(long, value_delimiter = ',')]
    contenders: Vec<Contender>,
    #[arg(long, value_delimiter = ',')]
    mixes: Vec<Mix>,
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
    if args.fairness {
        print!("{}", fairness::run()?);
        return Ok(());
    }
    if args.hostile {
        print!("{}", hostile::run()?);
        return Ok(());
    }
    let plan = Plan {
        rounds: args.rounds.unwrap_or(if args.quick { 1 } else { 5 }),
        seconds: args.seconds,
        contenders: named(args.contenders, &Contender::ALL),
        mixes: named(args.mixes, &Mix::ALL),
        sizes: named(args.sizes, if args.quick { &[100, 16384] } else { &[100, 1024, 16384] }),
        pipelines: args.pipelines,
        connections: args.connections,
        results: args.results,
    };
    print!("{}", report::markdown(&bench::run(&plan)?));
    Ok(())
}

fn named<T: Clone>(list: Vec<T>, all: &[T]) -> Vec<T> {
    if list.is_empty() { all.to_vec() } else { list }
}
