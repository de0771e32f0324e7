//! `annex-policy`: which pages should leave, simulated. See `annex_tests::policy`.

use annex_tests::policy::annexd::Chooser;
use annex_tests::policy::clock::Clock;
use annex_tests::policy::learned::Learned;
use annex_tests::policy::report::{HEADER, SHARES, WORK_HEADER, row, settling};
use annex_tests::policy::traces::PROGRAMS;
use clap::Parser;

/// Compares policies for which pages leave, over traces of programs, and prints Markdown.
#[derive(Parser)]
#[command(version)]
struct Args {
    /// Only programs whose name has this in it.
    #[arg(long, default_value = "")]
    program: String,
}

fn main() {
    let args = Args::parse();
    let (mut work, mut settled) = (Vec::new(), Vec::new());
    println!("{HEADER}");
    for program in PROGRAMS.iter().filter(|program| program.name.contains(&args.program)) {
        let trace = program.trace();
        for share in SHARES {
            let row = row(program, &trace, share);
            println!("{}", row.markdown());
            work.push(row.work());
            if !trace.phases.is_empty() {
                let limit = trace.footprint() * share / 100;
                let of = |chooser: &mut dyn Chooser| settling(&trace, limit, chooser).unwrap_or_default();
                let (clock, learned) = (of(&mut Clock::new(trace.end)), of(&mut Learned::new(trace.end)));
                settled.push(format!("| {}, {share} | {clock:.2} | {learned:.2} |", program.name));
            }
        }
    }
    println!("\n{WORK_HEADER}\n{}", work.join("\n"));
    if !settled.is_empty() {
        println!(
            "\n| misses until settled, in working sets | clock | learned |\n| --- | --- | --- |\n{}",
            settled.join("\n")
        );
    }
}
