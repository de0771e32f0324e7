//! `annex-access`: one access-pattern run, its result as a line of JSON. See `annex_tests::access`.

use annex_client::{Limit, Options, Region};
use annex_shared::api::parse_bytes;
use annex_tests::access::floor::{self, Ahead};
use annex_tests::access::{self, Memory, Pattern, bare, graph, part, series, ticks};
use annex_tests::stress::content::PAGE;
use anyhow::Context;
use clap::{Parser, Subcommand};
use std::path::PathBuf;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

/// Touches memory in some pattern and measures each access.
#[derive(Parser)]
#[command(version)]
struct Args {
    #[command(subcommand)]
    mode: Mode,
}

#[derive(Subcommand)]
enum Mode {
    /// Touch pages in a pattern.
    Pattern {
        pattern: Pattern,
        #[arg(long, default_value = "512M", value_parser = bytes)]
        size: u64,
        #[arg(long, default_value_t = 4.0)]
        seconds: f64,
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// Each on a part of the memory and a CPU of its own.
        #[arg(long, default_value_t = 1)]
        threads: usize,
        /// Page it ourselves, with that much resident: the bare userfaultfd floor.
        #[arg(long, value_parser = bytes)]
        floor: Option<u64>,
        /// The floor knows that pages are read in order: perfect read-ahead.
        #[arg(long, requires = "floor")]
        ahead: bool,
        /// On a region of the annexd at this socket, which pages it.
        #[arg(long, conflicts_with = "floor")]
        region: Option<PathBuf>,
        /// The region's local limit, and what it is to be called.
        #[arg(long, requires = "region", default_value = "50%")]
        local: Limit,
        #[arg(long, requires = "region", default_value = "access")]
        name: String,
    },
    /// Fault pages in that another process has, one at a time, without eviction.
    Fault {
        #[arg(long, default_value = "512M", value_parser = bytes)]
        size: u64,
        #[arg(long, default_value_t = 1.0)]
        seconds: f64,
    },
    /// Install pages in the thread that faults, from its SIGBUS handler, one at a time, without
    /// eviction.
    Sigbus {
        #[arg(long, default_value = "512M", value_parser = bytes)]
        size: u64,
        #[arg(long, default_value_t = 1.0)]
        seconds: f64,
    },
    /// Ask another process for pages over loopback TCP, one at a time.
    Ping {
        #[arg(long, default_value_t = 1.0)]
        seconds: f64,
    },
    /// PageRank on a made-up graph.
    Graph {
        #[arg(long, default_value_t = 1 << 21)]
        nodes: usize,
        #[arg(long, default_value_t = 8)]
        passes: usize,
    },
    /// Read random pages until SIGTERM and print latencies by windows of 100 ms.
    Series {
        #[arg(long, default_value = "512M", value_parser = bytes)]
        size: u64,
    },
    /// Use a part of the memory again and again until SIGTERM, and print when each pass was.
    Part {
        #[arg(long, default_value = "128M", value_parser = bytes)]
        size: u64,
        #[arg(long, default_value = "32M", value_parser = bytes)]
        hot: u64,
        /// Locked memory beside it, which is not used.
        #[arg(long, default_value = "0", value_parser = bytes)]
        locked: u64,
        /// Shared memory beside it, which is not used.
        #[arg(long, default_value = "0", value_parser = bytes)]
        shared: u64,
        /// In huge pages, if the kernel has any.
        #[arg(long)]
        huge: bool,
        /// Milliseconds of rest between two passes.
        #[arg(long, default_value_t = 10)]
        rest: u64,
    },
    /// Read the clock until SIGTERM and print the gaps.
    Ticks {
        #[arg(long, default_value = "64M", value_parser = bytes)]
        size: u64,
    },
}

fn bytes(text: &str) -> Result<u64, &'static str> {
    parse_bytes(text).ok_or("give a size such as 512M")
}

static STOP: AtomicBool = AtomicBool::new(false);

fn stop_on_sigterm() -> anyhow::Result<()> {
    use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
    extern "C" fn stop(_signal: i32) {
        STOP.store(true, Relaxed);
    }
    let action = SigAction::new(SigHandler::Handler(stop), SaFlags::SA_RESTART, SigSet::empty());
    // SAFETY: the handler only stores to an atomic.
    unsafe { sigaction(Signal::SIGTERM, &action)? };
    Ok(())
}

fn main() -> anyhow::Result<()> {
    match Args::parse().mode {
        Mode::Pattern { pattern, size, seconds, seed, threads, floor, ahead, region, local, name } => {
            let pages = size as usize / PAGE;
            let ahead = if ahead { Ahead::Known } else { Ahead::Guessed };
            let memory = match (floor, region) {
                (Some(resident), _) => floor::memory(pages, resident as usize / PAGE, threads, ahead)?,
                (None, Some(socket)) => {
                    let options =
                        Options { socket, local: Some(local), name: Some(name), ..Options::of(size as usize) };
                    // Until the end of the process.
                    let region = Box::leak(Box::new(Region::new(options)?));
                    let base = NonNull::new(region.as_ptr()).context("a region at address zero")?;
                    // SAFETY: the region stays, and nobody else knows of it.
                    unsafe { Memory::over(base, pages) }
                }
                (None, None) => Memory::plain(pages)?,
            };
            let measured = access::measure(&memory, pattern, threads, Duration::from_secs_f64(seconds), seed)?;
            println!("{}", serde_json::to_string(&measured)?);
        }
        Mode::Fault { size, seconds } => {
            let measured = bare::fault(size as usize / PAGE, Duration::from_secs_f64(seconds))?;
            println!("{}", serde_json::to_string(&measured)?);
        }
        Mode::Sigbus { size, seconds } => {
            let measured = bare::sigbus(size as usize / PAGE, Duration::from_secs_f64(seconds))?;
            println!("{}", serde_json::to_string(&measured)?);
        }
        Mode::Ping { seconds } => {
            let measured = bare::ping(Duration::from_secs_f64(seconds))?;
            println!("{}", serde_json::to_string(&measured)?);
        }
        Mode::Graph { nodes, passes } => {
            let (sum, highest) = graph::page_rank(nodes, passes)?;
            println!("{sum} {highest}");
        }
        Mode::Series { size } => {
            stop_on_sigterm()?;
            let memory = Memory::plain(size as usize / PAGE)?;
            eprintln!("ready");
            println!("{}", serde_json::to_string(&series::watch(&memory, 1, || STOP.load(Relaxed))?)?);
        }
        Mode::Part { size, hot, locked, shared, huge, rest } => {
            stop_on_sigterm()?;
            let plan = part::Plan { size, hot: hot.min(size), locked, shared, huge, rest: Duration::from_millis(rest) };
            let passes = part::watch(plan, || eprintln!("ready"), || STOP.load(Relaxed))?;
            println!("{}", serde_json::to_string(&passes)?);
        }
        Mode::Ticks { size } => {
            stop_on_sigterm()?;
            let _memory = Memory::plain(size as usize / PAGE)?;
            eprintln!("ready");
            let gaps = ticks::watch(|| STOP.load(Relaxed));
            println!("{}", serde_json::to_string(&gaps)?);
        }
    }
    Ok(())
}
