//! `annex-bench`: what annex costs beside what else could be done with the same memory. See `annex_tests::bench`.

use annex_shared::api::parse_bytes;
use annex_tests::access::Pattern;
use annex_tests::bench::{self, Plan, contender::Contender};
use clap::Parser;
use std::path::PathBuf;

/// Measures access patterns on annex, kernel swap and the userfaultfd floor; writes bench-results/.
#[derive(Parser)]
#[command(version)]
struct Args {
    /// A few minutes: shorter runs, no repetitions.
    #[arg(long)]
    quick: bool,
    #[arg(long, value_parser = |s: &str| parse_bytes(s).ok_or("give a size such as 512M"))]
    size: Option<u64>,
    #[arg(long)]
    seconds: Option<f64>,
    #[arg(long)]
    repetitions: Option<usize>,
    /// All unless named.
    #[arg(long, value_delimiter = ',')]
    contenders: Vec<Contender>,
    #[arg(long, value_delimiter = ',')]
    patterns: Vec<Pattern>,
    /// Percent of the set.
    #[arg(long, value_delimiter = ',', default_values_t = [50, 25])]
    resident: Vec<u64>,
    /// Leave out the attach pause, the cost within the limit and the idle CPU.
    #[arg(long)]
    no_pause: bool,
    #[arg(long, default_value = "bench-results")]
    results: PathBuf,
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let default = |list: Vec<_>, all: &[Contender]| if list.is_empty() { all.to_vec() } else { list };
    let plan = Plan {
        bytes: args.size.unwrap_or(512 << 20),
        seconds: args.seconds.unwrap_or(if args.quick { 1.0 } else { 4.0 }),
        repetitions: args.repetitions.unwrap_or(if args.quick { 1 } else { 3 }),
        contenders: default(args.contenders, &Contender::ALL),
        patterns: if args.patterns.is_empty() { Pattern::ALL.to_vec() } else { args.patterns },
        resident: args.resident,
        pause: !args.no_pause,
        results: args.results,
    };
    let results = bench::run(&plan)?;
    if let Some(pause) = results.pause {
        println!(
            "attach pause p50 {:.0} µs, max {:.0} µs over {} attaches (machine alone: {:.0}, {:.0})",
            pause.attach_pause_p50_us,
            pause.attach_pause_max_us,
            pause.attaches,
            pause.machine_pause_p50_us,
            pause.machine_pause_max_us
        );
        println!("within its limit a program runs at {:.2} % of native", pause.within_limit_share * 100.0);
        println!("annexd at rest uses {:.2} % of a core", pause.idle_cpu_percent);
    }
    Ok(())
}
