//! `annex-bench`: what annex costs beside what else could be done with the same memory. See
//! `annex_tests::bench`.

use annex_shared::api::parse_bytes;
use annex_tests::access::Pattern;
use annex_tests::bench::contender::Contender;
use annex_tests::bench::plan::{Cell, Plan};
use annex_tests::bench::programs::program::Program;
use annex_tests::bench::{self, advise, pause, programs, report};
use clap::Parser;
use std::path::PathBuf;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// Measures access patterns on annex, kernel swap and the userfaultfd floor; writes bench-results/.
#[derive(Parser)]
#[command(version)]
struct Args {
    /// Within four minutes: one round of short runs. For a look, not for conclusions.
    #[arg(long)]
    quick: bool,
    /// Every pattern at three shares on one and two threads, instead of what the bars ask for.
    #[arg(long)]
    full: bool,
    /// Bytes of the set.
    #[arg(long, value_parser = |s: &str| parse_bytes(s).ok_or("give a size such as 512M"))]
    size: Option<u64>,
    /// Measured in each cell, after half as long to settle.
    #[arg(long)]
    seconds: Option<f64>,
    #[arg(long)]
    rounds: Option<usize>,
    /// All unless named.
    #[arg(long, value_delimiter = ',')]
    contenders: Vec<Contender>,
    /// With any of these three, all combinations of them are measured.
    #[arg(long, value_delimiter = ',')]
    patterns: Vec<Pattern>,
    #[arg(long, value_delimiter = ',')]
    threads: Vec<usize>,
    /// Percent of the set.
    #[arg(long, value_delimiter = ',')]
    resident: Vec<u64>,
    /// A contender of your own, such as umap: called as `PATH pattern NAME --size BYTES --seconds S
    /// --seed N --threads N --resident BYTES`, it runs the pattern with so much resident and prints
    /// what `annex-access pattern` prints.
    #[arg(long, value_name = "PATH")]
    umap: Option<PathBuf>,
    /// Leave out the attach pause, the cost within the limit and the idle CPU.
    #[arg(long)]
    no_pause: bool,
    /// Leave out what programs pay while annex advise looks at them.
    #[arg(long)]
    no_advise: bool,
    /// Measure that alone.
    #[arg(long, conflicts_with = "no_advise")]
    only_advise: bool,
    /// Real programs to run; all unless named.
    #[arg(long, value_delimiter = ',')]
    programs: Vec<Program>,
    #[arg(long)]
    no_programs: bool,
    /// For the programs: rounds begin as long as they will be over by then.
    #[arg(long)]
    program_minutes: Option<f64>,
    #[arg(long, default_value = "bench-results")]
    results: PathBuf,
}

impl Args {
    fn plan(self) -> Plan {
        let named = |list: Vec<u64>, default: &[u64]| if list.is_empty() { default.to_vec() } else { list };
        let cells = if self.full || !(self.patterns.is_empty() && self.threads.is_empty() && self.resident.is_empty()) {
            let patterns = if self.patterns.is_empty() { Pattern::ALL.to_vec() } else { self.patterns };
            let threads = match (self.threads.is_empty(), self.full) {
                (false, _) => self.threads,
                (true, true) => vec![1, 2],
                (true, false) => vec![1],
            };
            Cell::all(&patterns, &threads, &named(self.resident, if self.full { &[75, 50, 25] } else { &[50, 25] }))
        } else {
            Cell::usual()
        };
        let mut contenders = if self.contenders.is_empty() { Contender::ALL.to_vec() } else { self.contenders };
        if self.umap.is_none() {
            contenders.retain(|contender| *contender != Contender::Umap);
        }
        let programs = programs::Plan {
            programs: if self.programs.is_empty() { Program::ALL.to_vec() } else { self.programs },
            local: if self.quick { vec![50] } else { vec![75, 50, 25] },
            size: if self.quick { 50 } else { 100 },
            rounds: self.rounds.unwrap_or(if self.quick { 1 } else { 5 }),
            budget: Duration::from_secs_f64(60.0 * self.program_minutes.unwrap_or(7.0)),
            seconds: self.seconds.unwrap_or(if self.quick { 0.5 } else { 1.0 }),
        };
        Plan {
            bytes: self.size.unwrap_or(if self.quick { 256 << 20 } else { 512 << 20 }),
            seconds: self.seconds.unwrap_or(if self.quick { 0.5 } else { 1.0 }),
            rounds: self.rounds.unwrap_or(if self.quick { 1 } else { 5 }),
            contenders,
            cells,
            advise: (!self.no_advise).then(|| {
                let usual = if self.quick { advise::Plan::QUICK } else { advise::Plan::USUAL };
                advise::Plan { rounds: self.rounds.unwrap_or(usual.rounds), ..usual }
            }),
            pause: (!self.no_pause).then_some(if self.quick { pause::Plan::QUICK } else { pause::Plan::USUAL }),
            programs: (!self.no_programs).then_some(programs),
            umap: self.umap,
            results: self.results,
        }
    }
}

/// The benchmark ends after the cell it is at: what was set up, swap above all, is taken down on
/// the way out.
fn end_by_error_when_interrupted() -> anyhow::Result<()> {
    use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
    extern "C" fn interrupt(_signal: i32) {
        bench::INTERRUPTED.store(true, Relaxed);
    }
    let action = SigAction::new(SigHandler::Handler(interrupt), SaFlags::SA_RESTART, SigSet::empty());
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        // SAFETY: the handler only stores to an atomic.
        unsafe { sigaction(signal, &action)? };
    }
    Ok(())
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let only_advise = args.only_advise;
    let mut plan = args.plan();
    if only_advise {
        plan = Plan { rounds: 0, pause: None, programs: None, ..plan };
    }
    end_by_error_when_interrupted()?;
    let results = bench::run(&plan)?;
    print!("{}", report::markdown(&results));
    eprintln!("written: report.md, access.json and plots, in {}", plan.results.display());
    Ok(())
}
