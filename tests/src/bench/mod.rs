//! `make bench`: what annex costs, beside what else could be done with the same memory, in the same run.
//!
//! - [`contender`]: who runs the access patterns, and how each is confined to its resident share. [`swap`]: kernel swap on
//!   zram and on disk, set up and taken down.
//! - [`pause`]: how long an attach stops a program; what a program pays that stays within its limit; annexd at rest.
//! - [`chart`]: the SVG.
//!
//! Contenders take turns within each repetition, so that the machine's moods hit all alike; medians over repetitions are
//! reported.

pub mod chart;
pub mod contender;
pub mod pause;
pub mod swap;

use crate::access::{Measured, Pattern};
use anyhow::Context;
use contender::{Contender, Ready};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// How much to measure.
#[derive(Clone, Debug)]
pub struct Plan {
    pub bytes: u64,
    pub seconds: f64,
    pub repetitions: usize,
    pub contenders: Vec<Contender>,
    pub patterns: Vec<Pattern>,
    /// Percent.
    pub resident: Vec<u64>,
    pub pause: bool,
    pub results: PathBuf,
}

/// One line of the result.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    pub contender: Contender,
    pub pattern: Pattern,
    pub resident_percent: u64,
    /// False if a repetition had more in memory than its share: then its speed is that of the excess.
    pub held: bool,
    /// Of the repetitions.
    pub median: Measured,
    pub all: Vec<Measured>,
}

#[derive(Debug, Serialize)]
pub struct Results {
    pub machine: Machine,
    pub bytes: u64,
    pub rows: Vec<Row>,
    pub skipped: BTreeMap<String, String>,
    pub pause: Option<pause::Report>,
}

#[derive(Debug, Serialize)]
pub struct Machine {
    pub kernel: String,
    pub cpu: String,
    pub cpus: usize,
}

/// Runs the plan, prints what it finds as it goes, and writes JSON and SVG.
pub fn run(plan: &Plan) -> anyhow::Result<Results> {
    std::fs::create_dir_all(&plan.results).with_context(|| format!("creating {}", plan.results.display()))?;
    let mut skipped = BTreeMap::new();
    let mut measured: BTreeMap<(Pattern, u64, Contender), Vec<Measured>> = BTreeMap::new();
    for repetition in 0..plan.repetitions {
        for contender in &plan.contenders {
            if skipped.contains_key(contender.name()) {
                continue;
            }
            // A contender is set up once per repetition: zram filled, donors started.
            let ready = match Ready::prepare(*contender, plan.bytes) {
                Ok(ready) => ready,
                Err(why) => {
                    eprintln!("SKIPPED {}: {why:#}", contender.name());
                    skipped.insert(contender.name().to_owned(), format!("{why:#}"));
                    continue;
                }
            };
            for pattern in &plan.patterns {
                for percent in &plan.resident {
                    // All in RAM is the same at every share.
                    if *contender == Contender::Ram && Some(percent) != plan.resident.first() {
                        continue;
                    }
                    let one = ready
                        .measure(*pattern, plan.bytes, *percent, plan.seconds, repetition as u64 + 1)
                        .with_context(|| format!("{} {} {percent}%", contender.name(), pattern.name()))?;
                    eprintln!(
                        "{:>2} {:<10} {:<10} {:>3}%  {:>9.0} ops/s  p50 {:>7.2} µs  p99 {:>8.1} µs",
                        repetition + 1,
                        contender.name(),
                        pattern.name(),
                        percent,
                        one.ops_per_s,
                        one.p50_us,
                        one.p99_us
                    );
                    if *contender != Contender::Ram && !within_share(&one, *percent) {
                        let share = one.resident_share * 100.0;
                        eprintln!("   NOT HELD TO ITS SHARE: {share:.0} % were in memory at the end");
                    }
                    measured.entry((*pattern, *percent, *contender)).or_default().push(one);
                }
            }
        }
    }
    let rows = measured
        .into_iter()
        .map(|((pattern, resident_percent, contender), all)| {
            let median = median(&all);
            let held = contender == Contender::Ram || all.iter().all(|one| within_share(one, resident_percent));
            Row { held, contender, pattern, resident_percent, median, all }
        })
        .collect();
    let pause = plan.pause.then(pause::measure).transpose()?;
    let results = Results { machine: machine(), bytes: plan.bytes, rows, skipped, pause };
    write(&plan.results, &results)?;
    Ok(results)
}

fn write(directory: &Path, results: &Results) -> anyhow::Result<()> {
    let json = directory.join("access.json");
    std::fs::write(&json, serde_json::to_vec_pretty(results)?)
        .with_context(|| format!("writing {}", json.display()))?;
    let svg = directory.join("access.svg");
    chart::draw(&svg, results).with_context(|| format!("drawing {}", svg.display()))?;
    eprintln!("written: {} {}", json.display(), svg.display());
    Ok(())
}

/// A tenth more is within what a watermark may lag.
fn within_share(one: &Measured, percent: u64) -> bool {
    one.resident_share * 100.0 <= percent as f64 * 1.1 + 2.0
}

/// The repetition whose throughput is the median, whole: its percentiles belong together.
fn median(all: &[Measured]) -> Measured {
    let mut sorted = all.to_vec();
    sorted.sort_by(|a, b| a.ops_per_s.total_cmp(&b.ops_per_s));
    sorted.get(sorted.len() / 2).cloned().unwrap_or_default()
}

/// The middle one of some numbers.
pub(crate) fn middle(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers.get(numbers.len() / 2).copied().unwrap_or(f64::NAN)
}

pub fn machine() -> Machine {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let cpuinfo = read("/proc/cpuinfo");
    let model = cpuinfo.lines().find_map(|l| l.strip_prefix("model name")).unwrap_or("unknown");
    Machine {
        kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
        cpu: model.trim_start_matches([' ', '\t', ':']).to_owned(),
        cpus: std::thread::available_parallelism().map_or(0, usize::from),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_one_whole_repetition() {
        let run = |ops_per_s, p99_us| Measured { ops_per_s, p99_us, ..Measured::default() };
        let middle = median(&[run(3.0, 30.0), run(1.0, 10.0), run(2.0, 20.0)]);
        assert_eq!((middle.ops_per_s, middle.p99_us), (2.0, 20.0));
    }
}
