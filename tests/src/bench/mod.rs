//! `make bench`: what annex costs, beside what else could be done with the same memory, in the same
//! run.
//!
//! - [`plan`]: what is measured. [`contender`]: who runs the access patterns. [`ready`]: how each
//!   is confined to its resident share. [`swap`]: kernel swap on zram and on disk, set up and taken
//!   down. [`annexd`]: what annexd counts meanwhile.
//! - [`pause`]: how long an attach stops a program; what a program pays that stays within its
//!   limit; annexd at rest.
//! - [`advise`]: what programs pay while `annex advise` looks at them.
//! - [`programs`]: real programs from beginning to end.
//! - [`results`]: what was measured. [`ratio`]: one figure over another. [`bars`]: what annex is
//!   held to. [`report`]: all of it to be read; [`chart`], [`curves`]: to be looked at.
//!
//! Contenders take turns within each round, so that the machine's moods hit all alike; medians over
//! rounds are reported, and a ratio is the median of each round's own.

pub mod advise;
pub mod annexd;
pub mod bars;
pub mod chart;
pub mod contender;
pub mod curves;
mod interrupted;
mod machine;
pub mod pause;
pub mod plan;
pub mod programs;
pub mod ratio;
pub mod ready;
pub mod report;
pub mod results;
pub mod swap;

use anyhow::Context;
use contender::Contender;
pub use interrupted::INTERRUPTED;
pub(crate) use interrupted::go_on;
pub use machine::{Machine, machine};
use plan::{Cell, Plan};
use ready::{Ready, Run};
use results::{Floors, Results, Row};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

/// Runs the plan, prints what it finds as it goes, and writes what there is after every round.
///
/// # Errors
/// A contender fails once it was set up, or the results can't be written.
pub fn run(plan: &Plan) -> anyhow::Result<Results> {
    std::fs::create_dir_all(&plan.results).with_context(|| format!("creating {}", plan.results.display()))?;
    let mut results = Results::new(plan);
    let mut measured: BTreeMap<(Cell, Contender), Vec<Run>> = BTreeMap::new();
    for round in 0..plan.rounds {
        results.floors.push(floors(plan)?);
        // None always comes first.
        let mut turns = plan.contenders.clone();
        turns.rotate_left(round % plan.contenders.len().max(1));
        for contender in turns {
            let cells = plan.cells_of(contender, round);
            if cells.is_empty() || results.skipped.contains_key(contender.name()) {
                continue;
            }
            // A contender is set up once per round: zram filled, donors started.
            let ready = match Ready::prepare(contender, plan) {
                Ok(ready) => ready,
                Err(why) => {
                    eprintln!("SKIPPED {}: {why:#}", contender.name());
                    results.skipped.insert(contender.name().to_owned(), format!("{why:#}"));
                    continue;
                }
            };
            ready.warm_up(plan, round).with_context(|| format!("warming up {}", contender.name()))?;
            for cell in cells {
                go_on()?;
                let run = ready.measure(cell, plan, round).with_context(|| format!("{}, {cell}", contender.name()))?;
                say(contender, cell, &run);
                measured.entry((cell, contender)).or_default().push(run);
            }
        }
        let rows = measured.iter().map(|((cell, contender), runs)| Row::of(*contender, *cell, runs.clone()));
        results.rows = rows.collect();
        write(&plan.results, &results)?;
    }
    if let Some(how) = plan.pause {
        results.pause = Some(pause::measure(how)?);
        write(&plan.results, &results)?;
    }
    if let Some(how) = plan.advise {
        results.advise = Some(advise::measure(how)?);
        write(&plan.results, &results)?;
    }
    results.programs = plan.programs.as_ref().map(programs::run).transpose()?;
    write(&plan.results, &results)?;
    Ok(results)
}

/// What a fault and an answer over TCP cost by themselves.
fn floors(plan: &Plan) -> anyhow::Result<Floors> {
    let measure = |mode: &str, args: &[&str]| {
        let mut command = Command::new(crate::testbed::bins::find("annex-access"));
        command.args([mode, "--seconds", &plan.seconds.min(1.0).to_string()]).args(args);
        let measured = ready::read(&command.output()?)?;
        eprintln!("   bare {mode}: p50 {:.2} µs  p99 {:.1} µs", measured.p50_us, measured.p99_us);
        anyhow::Ok(measured)
    };
    let bytes = plan.bytes.to_string();
    let fault = measure("fault", &["--size", &bytes])?;
    Ok(Floors { fault, sigbus: measure("sigbus", &["--size", &bytes])?, ping: measure("ping", &[])? })
}

fn say(contender: Contender, cell: Cell, run: &Run) {
    let Run { round, measured, .. } = run;
    eprintln!(
        "{:>2} {:<10} {cell}  {:>9.0} ops/s  misses {:>5.1} %  p50 {:>7.2} µs  p99 {:>8.1} µs",
        round + 1,
        contender.name(),
        measured.ops_per_s,
        measured.slow_share * 100.0,
        measured.miss_p50_us,
        measured.miss_p99_us
    );
    if !results::within_share(measured, cell.resident_percent) {
        eprintln!("   NOT HELD TO ITS SHARE: {:.0} % were in memory at the end", measured.resident_share * 100.0);
    }
}

fn write(directory: &Path, results: &Results) -> anyhow::Result<()> {
    let file = |name: &str| directory.join(name);
    let save = |name: &str, bytes: &[u8]| {
        std::fs::write(file(name), bytes).with_context(|| format!("writing {}", file(name).display()))
    };
    save("access.json", &serde_json::to_vec(&Written { bars: bars::judge(results), results })?)?;
    save("report.md", report::markdown(results).as_bytes())?;
    chart::draw(&file("access.svg"), results).context("drawing access.svg")?;
    curves::shares(&file("shares.svg"), results).context("drawing shares.svg")?;
    curves::faults(&file("faults.svg"), results).context("drawing faults.svg")?;
    if let Some(programs) = &results.programs {
        curves::programs(&file("programs.svg"), programs).context("drawing programs.svg")?;
    }
    Ok(())
}

/// What access.json holds.
#[derive(Serialize)]
struct Written<'a> {
    bars: Vec<bars::Bar>,
    #[serde(flatten)]
    results: &'a Results,
}
