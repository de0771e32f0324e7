//! `annex-chaos`: faults under load, again and again. See `annex_tests::chaos`.

use annex_shared::api::parse_bytes;
use annex_tests::chaos::fault::Fault;
use annex_tests::chaos::report::{HEAD, line};
use annex_tests::chaos::{self, Plan};
use clap::{Parser, ValueEnum};
use std::path::PathBuf;
use std::time::Duration;

/// Breaks annex in every way it must survive, under a program that checks every byte; writes
/// chaos-results/.
#[derive(Parser)]
#[command(version)]
struct Args {
    /// Of each fault
    #[arg(long, default_value_t = 100)]
    rounds: u32,
    /// Seconds after which no new round of a fault begins
    #[arg(long, default_value_t = 3000)]
    at_most: u64,
    /// The program's working set, a quarter of it resident
    #[arg(long, default_value = "96M", value_parser = |s: &str| parse_bytes(s).ok_or("give a size such as 512M"))]
    size: u64,
    /// All unless named
    #[arg(long, value_delimiter = ',')]
    faults: Vec<Fault>,
    /// Bytes in the pool when a donor dies for good and is done without; 0: leave that out
    #[arg(long, default_value = "1G", value_parser = |s: &str| parse_bytes(s).ok_or("give a size such as 1G"))]
    rebuild: u64,
    #[arg(long, default_value = "chaos-results")]
    results: PathBuf,
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let faults = if args.faults.is_empty() { Fault::value_variants().to_vec() } else { args.faults };
    let plan = Plan { faults, rounds: args.rounds, at_most: Duration::from_secs(args.at_most), size: args.size };
    println!("{HEAD}");
    let rows = chaos::run(&plan, |row| println!("{}", line(row)))?;
    std::fs::create_dir_all(&args.results)?;
    let table: Vec<String> = rows.iter().map(line).collect();
    std::fs::write(args.results.join("chaos.md"), format!("{HEAD}\n{}\n", table.join("\n")))?;
    std::fs::write(args.results.join("chaos.json"), serde_json::to_vec_pretty(&rows)?)?;
    if args.rebuild > 0 {
        let rebuild = chaos::rebuild::run(args.rebuild)?;
        println!("{}", serde_json::to_string_pretty(&rebuild)?);
        println!("{}", rebuild.verdict());
        std::fs::write(args.results.join("rebuild.json"), serde_json::to_vec_pretty(&rebuild)?)?;
    }
    let bad: Vec<&str> = rows.iter().filter(|row| !row.is_good()).map(|row| row.fault.words()).collect();
    anyhow::ensure!(bad.is_empty(), "not survived: {}", bad.join("; "));
    Ok(())
}
