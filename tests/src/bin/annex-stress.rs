//! `annex-stress`: uses memory in every way a program can and checks every byte. See
//! `annex_tests::stress`.
//!
//! Exit codes: 0 all was well, 1 wrong content or a failed call, 134 (abort) no progress.

use annex_shared::api::parse_bytes;
use annex_tests::stress::{self, Feature, Plan};
use clap::Parser;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Uses memory in every way a program can and checks every byte.
#[derive(Parser)]
#[command(version)]
struct Args {
    /// Working set, such as 256M.
    #[arg(long, default_value = "256M", value_parser = |s: &str| parse_bytes(s).ok_or("give a size such as 256M"))]
    size: u64,
    #[arg(long, default_value_t = 4)]
    threads: usize,
    /// 0 = until SIGTERM.
    #[arg(long, default_value_t = 30)]
    seconds: u64,
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// What to do; everything unless named.
    #[arg(long, value_delimiter = ',')]
    features: Vec<Feature>,
    /// What to leave out.
    #[arg(long, value_delimiter = ',')]
    without: Vec<Feature>,
    /// For scratch files; O_DIRECT needs a real filesystem.
    #[arg(long, default_value = "/var/tmp")]
    dir: PathBuf,
    /// Seconds without any progress after which the run is ended.
    #[arg(long, default_value_t = 30)]
    stall: u64,
    /// Only fill and verify that many MiB (what exec'ed copies do).
    #[arg(long, hide = true)]
    probe: Option<usize>,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let stall = Duration::from_secs(args.stall);
    if let Some(megabytes) = args.probe {
        return match stress::probe(megabytes, stall) {
            Ok(()) => ExitCode::SUCCESS,
            Err(trouble) => fail(&trouble.to_string()),
        };
    }
    let mut features = if args.features.is_empty() { Feature::ALL.to_vec() } else { args.features };
    features.retain(|f| !args.without.contains(f));
    if features.is_empty() || args.threads == 0 || args.size < 1 << 20 {
        return fail("nothing to do: give at least one feature, one thread and 1 MiB");
    }
    let plan = Plan {
        bytes: args.size as usize,
        threads: args.threads,
        duration: Duration::from_secs(args.seconds),
        seed: args.seed,
        features,
        directory: args.dir,
        stall,
    };
    match stress::run(&plan) {
        Ok(summary) => {
            println!("{}", serde_json::json!(summary));
            match summary.error {
                None if summary.errors == 0 => ExitCode::SUCCESS,
                error => fail(&error.unwrap_or_else(|| "a child found wrong content".into())),
            }
        }
        Err(trouble) => fail(&trouble.to_string()),
    }
}

fn fail(message: &str) -> ExitCode {
    eprintln!("annex-stress: {message}");
    ExitCode::FAILURE
}
