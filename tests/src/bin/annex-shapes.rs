//! `annex-shapes`: a random shape of program that verifies itself. See `annex_tests::shapes`.

use annex_shared::api::parse_bytes;
use annex_tests::shapes::{Owner, Tally};
use clap::Parser;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

/// Random threads, forks and mappings that verify every page.
#[derive(Parser)]
struct Args {
    #[arg(long, default_value_t = 1)]
    seed: u64,
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    #[arg(long, default_value = "32M", value_parser = |s: &str| parse_bytes(s).ok_or("give a size such as 32M"))]
    size: u64,
}

static TALLY: Tally = Tally { shapes: AtomicU64::new(0), checks: AtomicU64::new(0) };
static LEFT: AtomicU64 = AtomicU64::new(0);

fn main() {
    let args = Args::parse();
    let threads = 2 + args.seed % 3;
    LEFT.store(threads, SeqCst);
    for nth in 0..threads {
        let pages = (args.size / 4096 / threads).max(16) as usize;
        std::thread::spawn(move || {
            let seed = args.seed.wrapping_mul(1000) + nth;
            let lived =
                Owner::new(seed, pages, &TALLY).and_then(|mut owner| owner.live(Duration::from_secs(args.seconds)));
            if let Err(why) = lived {
                eprintln!("annex-shapes: --seed {}: {why}", args.seed);
                std::process::exit(1);
            }
            if LEFT.fetch_sub(1, SeqCst) == 1 {
                let (shapes, checks) = (TALLY.shapes.load(SeqCst), TALLY.checks.load(SeqCst));
                println!("{}", serde_json::json!({ "shapes": shapes, "checks": checks, "errors": 0 }));
                std::process::exit(0);
            }
        });
    }
    // Of every two programs one loses its main thread.
    if args.seed.is_multiple_of(2) {
        // SAFETY: ends this thread alone; what it owns is not used by the others.
        unsafe { libc::syscall(libc::SYS_exit, 0) };
    }
    loop {
        std::thread::park();
    }
}
