//! `annex-shapes`: a random shape of program that verifies itself, or many of them under annex.
//! See `annex_tests::shapes`.

use annex_shared::api::parse_bytes;
use annex_tests::shapes::hunt::{Bag, Fabric, Hunt, Kill, bed};
use annex_tests::shapes::{self, Plan, step};
use clap::Parser;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Random threads, processes and mappings that verify every page.
#[derive(Parser)]
#[command(version)]
struct Args {
    /// Which program; with --hunt, the first of many
    #[arg(long, default_value_t = 1)]
    seed: u64,
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// At most so many steps of each thread
    #[arg(long, default_value_t = u64::MAX, hide_default_value = true)]
    steps: u64,
    #[arg(long, default_value = "32M", value_parser = |s: &str| parse_bytes(s).ok_or("give a size such as 32M"))]
    size: u64,
    /// How often it may replace itself by the program of the next seed
    #[arg(long, default_value_t = 1)]
    generations: u64,
    /// Steps to take, all that annexd is to follow unless named: others become checks
    #[arg(long, value_delimiter = ',', value_parser = step::parse)]
    only: Vec<step::What>,
    #[arg(long, hide = true)]
    inner: bool,
    /// For so many seconds, run program after program under annex, of --seconds each; needs root
    #[arg(long)]
    hunt: Option<u64>,
    /// With --hunt: what may be resident
    #[arg(long, default_value = "8M")]
    local: String,
    /// With --hunt: what is killed meanwhile
    #[arg(long, value_enum, default_value = "varied")]
    kill: Kill,
    /// With --hunt: where the donors are
    #[arg(long, value_enum, default_value = "shm")]
    fabric: Fabric,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let done = match args.hunt {
        Some(time) => hunt(args, Duration::from_secs(time)),
        None => {
            let Args { seed, seconds, steps, size, generations, only, inner, .. } = args;
            shapes::run(Plan { seed, seconds, steps, size, generations, only, inner })
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("annex-shapes: {why}");
            ExitCode::FAILURE
        }
    }
}

fn hunt(args: Args, time: Duration) -> Result<(), String> {
    let Args { size, local, seconds, kill, only, .. } = args;
    let hunt = Hunt { size, local, seconds, kill, only };
    let mut bed = bed(args.fabric);
    let mut bag = Bag::default();
    let started = Instant::now();
    for seed in args.seed.. {
        println!("seed {seed} after {:.1?}: {bag:?}", started.elapsed());
        hunt.round(&mut bed, seed, &mut bag)?;
        if started.elapsed() > time {
            break;
        }
    }
    println!("no wrong byte in {:.1?}: {bag:?}", started.elapsed());
    Ok(())
}
