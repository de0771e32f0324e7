//! `annex-programs`: the test suites of others under annex. See `annex_tests::programs`.

use annex_tests::programs::comparison::compare;
use annex_tests::programs::report::{HEAD, findings, line, summary};
use annex_tests::programs::suites::{self, NAMES};
use annex_tests::programs::trial::Arena;
use anyhow::ensure;
use clap::Parser;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Runs the test suites of others natively and under annex, and compares them test by test.
#[derive(Parser)]
#[command(version)]
struct Args {
    /// All unless named
    #[arg(long, value_parser = clap::builder::PossibleValuesParser::new(NAMES))]
    suite: Vec<String>,
    /// The bounded part that CI runs
    #[arg(long)]
    quick: bool,
    /// Only programs of this name
    #[arg(long)]
    only: Vec<String>,
    /// Local memory of each program, if not as much as its suite has by default
    #[arg(long)]
    local: Option<String>,
    /// Seconds after which no further program of a suite begins
    #[arg(long, default_value_t = 7200)]
    at_most: u64,
    /// Say which programs there are
    #[arg(long)]
    list: bool,
    /// All results go here too
    #[arg(long)]
    json: Option<PathBuf>,
    /// Where suites are fetched to and built
    #[arg(long, default_value = "target/programs")]
    dir: PathBuf,
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let named = |name: &&&str| args.suite.is_empty() || args.suite.iter().any(|suite| suite == **name);
    std::fs::create_dir_all(&args.dir)?;
    let dir = args.dir.canonicalize()?;
    let (mut all, mut table, mut found) = (Vec::new(), vec![HEAD.to_owned()], Vec::new());
    for name in NAMES.iter().filter(named) {
        let mut suite = suites::find(name, &dir)?;
        suite.programs.retain(|program| {
            (!args.quick || program.quick) && (args.only.is_empty() || args.only.contains(&program.name))
        });
        if args.list {
            suite.programs.iter().for_each(|program| println!("{name} {}", program.name));
            continue;
        }
        ensure!(!suite.programs.is_empty(), "{name} has no such program: see annex-programs --list");
        suite.programs.iter().filter_map(|program| program.prepare.as_ref()).try_for_each(|prepare| prepare())?;
        let mut arena = Arena::new(args.local.as_deref().unwrap_or(suite.local), suite.small.then_some(&dir))?;
        let started = Instant::now();
        let mut rows = Vec::new();
        for program in &suite.programs {
            if started.elapsed() > Duration::from_secs(args.at_most) {
                println!("{name} is not done after {} s: {} was not begun", args.at_most, program.name);
                break;
            }
            let row = compare(suite.name, program, &mut arena)?;
            println!("{}", line(&format!("{name} {}", program.name), &row));
            rows.push(row);
        }
        table.push(summary(name, &rows));
        found.extend(findings(&rows));
        let paged = rows.iter().any(|row| row.pages_back > 0);
        if !paged {
            found.push(format!("{name} proves nothing: no page came back"));
        }
        all.extend(rows);
        println!("{name}: {:.0?}", started.elapsed());
    }
    if args.list {
        return Ok(());
    }
    if let Some(path) = &args.json {
        std::fs::write(path, serde_json::to_vec_pretty(&all)?)?;
    }
    found.iter().for_each(|finding| println!("== {finding}"));
    println!("{}", table.join("\n"));
    ensure!(found.is_empty(), "{} differ from what they are natively", found.len());
    Ok(())
}
