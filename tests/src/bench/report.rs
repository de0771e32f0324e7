//! All of it to be read: `report.md`.

use super::advise;
use super::bars::{Bar, Bound, judge};
use super::programs::{self, End, place::Kind};
use super::ratio::Ratio;
use super::results::{Floors, Results};
use crate::access::Measured;
use annex_shared::api::format_bytes;
use std::fmt::Write as _;

const NOTES: &str = "\
- Contenders take turns within each round. A ratio is the median of each round's own; its range is in brackets.
- A miss is an access that took longer than 3 µs: it was not in memory, nearly always.
- bare fault: a userfaultfd fault that another process on the same CPU answers by one copy from cold memory, nothing
  evicted. bare ping-pong: 32 bytes there, 4 KiB back, over loopback TCP, both processes on that CPU.
- bare SIGBUS fault: one that the faulting thread itself answers, in its signal handler, by a copy of a page at hand.
  client: a region of the program's own (annex-client), over shared memory.
- floor: a whole pager within the program, with FIFO eviction in the fault. readahead: the same, bringing 64 pages at a
  time in order and dropping them unwritten.
- With two threads each has half of the set to itself. All are pinned to a CPU.
- CPU time of an eviction: annexd's evicting thread and the stub. Dirty: while the set is filled; clean: while it is read.
- Pages read for nothing: those that annexd brought unasked, by the part of its samples that nobody wanted. A sample is
  the page where a prefetch ends: the same guess would have brought it next.
";

/// As Markdown.
pub fn markdown(results: &Results) -> String {
    let machine = &results.machine;
    let mut text = format!(
        "# What annex costs\n\n{} × {}, {} of memory, Linux {}. Sets of {}; {} s for each figure; rounds: {}.\n\n{NOTES}\n",
        machine.cpus,
        machine.cpu,
        format_bytes(machine.memory),
        machine.kernel,
        format_bytes(results.bytes),
        results.seconds,
        results.floors.len(),
    );
    let skipped = results.skipped.iter().chain(results.programs.iter().flat_map(|programs| &programs.skipped));
    for (who, why) in skipped {
        // The first line says what; logs that follow would break the page.
        let _ = writeln!(text, "{who} was left out: {}\n", why.lines().next().unwrap_or_default());
    }
    text.push_str(&bars(&judge(results)));
    text.push_str(&patterns(results));
    text.push_str(&counters(results));
    if let Some(pause) = &results.pause {
        let _ = writeln!(
            text,
            "## Attached\n\nAn attach stops a program for {:.0} µs (p50 of {}; longest {:.0}; the machine alone {:.0} and {:.0}). \
             Within its limit it runs at {:.2} % of native. annexd at rest uses {:.2} % of a core.\n",
            pause.attach_pause_p50_us,
            pause.attaches,
            pause.attach_pause_max_us,
            pause.machine_pause_p50_us,
            pause.machine_pause_max_us,
            pause.within_limit_share * 100.0,
            pause.idle_cpu_percent
        );
    }
    text.extend(results.advise.iter().map(advise));
    text.extend(results.programs.iter().map(programs));
    text
}

fn advise(report: &advise::Report) -> String {
    let mut text = format!(
        "## annex advise\n\nBy how much each of {} programs was slower while annex advise looked for {} s, medians of {} rounds; \
         and how far two windows without a look are apart.\n\n\
         | has | uses | slower, % | CPU time, % | the machine alone, % | CPU time, % |\n| --- | --- | --- | --- | --- | --- |\n",
        report.programs.len(),
        report.seconds,
        report.rounds
    );
    for slowed in &report.programs {
        let (size, hot) = (format_bytes(slowed.size), format_bytes(slowed.hot));
        let _ = writeln!(
            text,
            "| {size} | {hot} | {:.2} | {:.2} | {:.2} | {:.2} |",
            slowed.percent, slowed.cpu_percent, slowed.noise_percent, slowed.cpu_noise_percent
        );
    }
    text.push('\n');
    text
}

fn bars(bars: &[Bar]) -> String {
    let mut text = "## Bars\n\n| bar | bound | measured | rounds | |\n| --- | --- | --- | --- | --- |\n".to_owned();
    for bar in bars {
        let bound = match bar.bound {
            Bound::AtMost(most) => format!("≤ {most} {}", bar.unit),
            Bound::AtLeast(least) => format!("≥ {least} {}", bar.unit),
        };
        let verdict = match bar.passed() {
            Some(true) => "passed",
            Some(false) => "**missed**",
            None => "not measured",
        };
        let rounds = bar.measured.map_or(0, |ratio| ratio.rounds);
        let _ = writeln!(text, "| {} | {bound} | {} | {rounds} | {verdict} |", bar.what, ranged(bar.measured));
    }
    text.push('\n');
    text
}

fn ranged(ratio: Option<Ratio>) -> String {
    match ratio {
        None => "–".into(),
        Some(Ratio { median, rounds: 1, .. }) => number(median),
        Some(Ratio { median, least, most, .. }) => format!("{} ({}–{})", number(median), number(least), number(most)),
    }
}

/// Three digits are all that it is worth.
fn number(number: f64) -> String {
    match number.abs() {
        size if size >= 100.0 => format!("{number:.0}"),
        size if size >= 10.0 => format!("{number:.1}"),
        _ => format!("{number:.2}"),
    }
}

fn patterns(results: &Results) -> String {
    let mut text = "\
## Patterns

![accesses per second](access.svg)
![slow-down against local share](shares.svg)
![latency of faults](faults.svg)

| pattern | threads | resident | contender | ops/s | misses | p50 µs | p99 µs | p99.9 µs | miss p50 µs | p99 µs | p99.9 µs |
| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |
"
    .to_owned();
    for row in &results.rows {
        let m = &row.median;
        let _ = writeln!(
            text,
            "| {} | {} | {}{} % | {} | {:.0} | {:.1} % | {:.2} | {:.1} | {:.1} | {} |",
            row.cell.pattern.name(),
            row.cell.threads,
            if row.held { "" } else { "> " },
            row.cell.resident_percent,
            row.contender.name(),
            m.ops_per_s,
            m.slow_share * 100.0,
            m.p50_us,
            m.p99_us,
            m.p999_us,
            // Of so few that were slow, most were interrupted.
            if m.slow_share < 0.001 {
                "– | – | –".into()
            } else {
                format!("{:.1} | {:.1} | {:.1}", m.miss_p50_us, m.miss_p99_us, m.miss_p999_us)
            }
        );
    }
    for (nth, name) in ["bare fault", "bare SIGBUS fault", "bare ping-pong"].into_iter().enumerate() {
        let of = |figure: fn(&Measured) -> f64| {
            let measured = |floors: &Floors| figure([&floors.fault, &floors.sigbus, &floors.ping][nth]);
            super::ratio::middle(results.floors.iter().map(measured).collect())
        };
        let (p50, p99, p999) = (of(|m| m.p50_us), of(|m| m.p99_us), of(|m| m.p999_us));
        let _ = writeln!(text, "\n{name}: p50 {p50:.2} µs, p99 {p99:.1} µs, p99.9 {p999:.1} µs.");
    }
    text.push('\n');
    text
}

/// What annexd counted, where it was measured on one thread.
fn counters(results: &Results) -> String {
    let mut text = "\
## What annexd counted

| pattern | resident | contender | evicted/s | clean | pages in/s | pages per fault | for nothing | eviction µs CPU | while filling | all µs CPU per page moved | bytes per evicted page |
| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |
"
    .to_owned();
    for row in results.rows.iter().filter(|row| row.cell.threads == 1) {
        let counted: Vec<_> = results.counted(row.contender, row.cell).collect();
        if counted.is_empty() {
            continue;
        }
        let of = |figure: &dyn Fn(&super::annexd::Counted) -> Option<f64>| {
            Ratio::of(counted.iter().filter_map(|(_, counted)| figure(counted)).collect()).map(|ratio| ratio.median)
        };
        let said = |figure: Option<f64>| figure.map_or_else(|| "–".into(), number);
        let per_fault = |c: &super::annexd::Counted| (c.faults > 0).then(|| c.pages_in as f64 / c.faults as f64);
        let filling = results.filled(row.contender, row.cell).filter_map(super::annexd::Counted::eviction_us);
        let _ = writeln!(
            text,
            "| {} | {} % | {} | {} | {} % | {} | {} | {} % | {} | {} | {} | {} |",
            row.cell.pattern.name(),
            row.cell.resident_percent,
            row.contender.name(),
            said(of(&|c| Some(c.evicted as f64 / c.seconds))),
            said(of(&|c| Some(c.clean_share() * 100.0))),
            said(of(&|c| Some(c.pages_in as f64 / c.seconds))),
            said(of(&per_fault)),
            said(of(&|c| Some(c.useless()? * 100.0))),
            said(of(&super::annexd::Counted::eviction_us)),
            said(Ratio::of(filling.collect()).map(|ratio| ratio.median)),
            said(of(&super::annexd::Counted::moving_us)),
            said(of(&|c| c.overhead_per_page)),
        );
    }
    text.push('\n');
    text
}

fn programs(report: &programs::Report) -> String {
    let mut text = "\
## Programs

![slow-down of programs](programs.svg)

Beside native: of the same round. redis: 50 connections without pipelining, values of 1 KiB by Zipf 0.99, nine reads to a
write. \"Killed\": the kernel found nothing to swap out in the program's memory cgroup, twice.

| program | uses | local | where | came to | beside native | rounds |
| --- | --- | --- | --- | --- | --- | --- |
"
    .to_owned();
    for row in &report.rows {
        let used = report.used.get(row.program.name()).copied().unwrap_or(0);
        let of = |figure: fn(&programs::Run) -> Option<f64>| {
            Ratio::of(row.runs.iter().filter_map(figure).collect()).map(|ratio| ratio.median)
        };
        let worst = row.runs.iter().map(|run| run.end).find(|end| *end != End::Done);
        let came_to = match (worst, of(|run| run.ops_per_s), of(|run| run.p99_us)) {
            (Some(End::Killed), ..) => "killed".into(),
            (Some(_), ..) => format!("> {} s", of(|run| Some(run.seconds)).map_or_else(String::new, number)),
            (None, Some(ops), Some(p99)) => format!("{ops:.0} requests/s, p99 {p99:.0} µs"),
            _ => format!("{} s", of(|run| Some(run.seconds)).map_or_else(String::new, number)),
        };
        let speed = match (row.place, worst) {
            (Kind::Native, _) | (_, Some(End::Killed)) => "–".into(),
            (_, Some(_)) => format!("< {}", ranged(report.speed(row))),
            (_, None) => ranged(report.speed(row)),
        };
        let _ = writeln!(
            text,
            "| {} | {} | {} % | {} | {came_to} | {speed} | {} |",
            row.program.name(),
            format_bytes(used),
            row.local_percent,
            row.place.name(),
            row.runs.len()
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::Pattern;
    use crate::bench::contender::Contender;
    use crate::bench::plan::Cell;
    use crate::bench::results::tests::{nothing, row};

    #[test]
    fn bars_and_medians_are_in_the_report() {
        let cell = Cell { pattern: Pattern::Random, threads: 1, resident_percent: 50 };
        let mut results = nothing();
        results.rows.push(row(Contender::AnnexShm, cell, &[100.0, 300.0, 200.0]));
        results.rows.push(row(Contender::Zram, cell, &[100.0, 100.0, 100.0]));
        let text = markdown(&results);
        assert!(text.contains("| random 50 %, beside zram | ≥ 2 × | 2.00 (1.00–3.00) | 3 | passed |"), "{text}");
        assert!(text.contains("| random | 1 | 50 % | annex-shm | 200 | 0.0 % |"), "{text}");
        assert!(text.contains("| attach pause, p50 | ≤ 500 µs | – | 0 | not measured |"), "{text}");
    }
}
