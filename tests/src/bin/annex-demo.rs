//! `annex-demo`: redis-server on lent memory, every value verified. See `annex_tests::demo`.
//!
//! Exit codes: 0 all values were right, 1 a wrong value or a failure, 130 interrupted.

use annex_shared::api::parse_bytes;
use annex_tests::demo::{self, INTERRUPTED};
use clap::Parser;
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
use std::process::ExitCode;
use std::sync::atomic::Ordering::Relaxed;

/// Runs redis-server on memory lent by two donors and verifies every value.
#[derive(Parser)]
#[command(version)]
struct Args {
    /// Bytes of values; a quarter of it stays local.
    #[arg(long, default_value = "1G", value_parser = |s: &str| parse_bytes(s).ok_or("give a size such as 1G"))]
    data: u64,
}

fn main() -> anyhow::Result<ExitCode> {
    let args = Args::parse();
    extern "C" fn interrupt(_signal: i32) {
        INTERRUPTED.store(true, Relaxed);
    }
    let action = SigAction::new(SigHandler::Handler(interrupt), SaFlags::SA_RESTART, SigSet::empty());
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        // SAFETY: the handler only stores to an atomic.
        unsafe { sigaction(signal, &action)? };
    }
    let report = match demo::run(args.data) {
        Err(_) if INTERRUPTED.load(Relaxed) => {
            eprintln!("interrupted; everything that was started has been stopped");
            return Ok(ExitCode::from(130));
        }
        outcome => outcome?,
    };
    println!("\n{}", report.table());
    report.verdict()?;
    Ok(ExitCode::SUCCESS)
}
