//! `annex bench`: what programs would see on this host, with the donors and the fabric that annexd
//! has now.
//!
//! One program touches memory in some pattern ([`annex_cli::access`]) and checks what it reads:
//! with all of it in RAM, and under annexd with a part of it resident. All take turns, several
//! rounds, so that whatever else the machine does befalls each of them. Figures are medians of the
//! rounds.

use crate::client::Client;
use crate::failure::Failure;
use crate::output::show;
use crate::table::{self, Column};
use annex_cli::access::{self, Measured, Memory, Pattern};
use annex_cli::command::{BenchArgs, PatternArgs};
use annex_shared::api::{DonorInfo, DonorState, Limit, format_bytes};
use annex_shared::page::PAGE_SIZE;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// How long the app of one run may take to be gone when its program has ended.
const GONE_WITHIN: Duration = Duration::from_secs(30);

/// What `--json` prints. Times are in microseconds.
#[derive(Serialize)]
struct Report {
    size: u64,
    threads: usize,
    donors: Vec<Lender>,
    cells: Vec<Cell>,
}

#[derive(Serialize)]
struct Lender {
    name: String,
    transport: String,
}

/// One pattern with one amount of memory.
#[derive(Serialize)]
struct Cell {
    pattern: Pattern,
    /// What may stay resident; `None`: all of it, without annexd.
    local: Option<Limit>,
    rounds: Vec<Measured>,
}

pub fn bench(client: &Client, args: &BenchArgs, socket: &Path, json: bool) -> Result<(), Failure> {
    let donors: Vec<_> = client.donors()?.iter().filter(|d| d.state == DonorState::Up).map(Lender::of).collect();
    let locals = || std::iter::once(None).chain(args.local.iter().copied().map(Some));
    let mut cells: Vec<Cell> = (args.patterns.iter())
        .flat_map(|pattern| locals().map(|local| Cell { pattern: *pattern, local, rounds: Vec::new() }))
        .collect();
    let bar = ProgressBar::new((cells.len() * usize::from(args.rounds)) as u64);
    if let Ok(style) = ProgressStyle::with_template("{msg} [{bar:30}] {pos} of {len}, {eta} left") {
        bar.set_style(style.progress_chars("=> "));
    }
    for round in 0..args.rounds {
        for cell in &mut cells {
            bar.set_message(format!("{} {}", cell.pattern.name(), cell.resident()));
            let measured = measure(client, args, socket, cell, round)?;
            cell.rounds.push(measured);
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    show(json, &Report { size: args.size, threads: args.threads, donors, cells }, Report::text)
}

/// Is run by [`bench()`], under `annex run` or not; prints what it measured.
pub fn pattern(args: &PatternArgs) -> Result<(), Failure> {
    let failed =
        |error: anyhow::Error| Failure::Workload { cell: args.pattern.name().into(), why: format!("{error:#}") };
    let memory = Memory::plain(args.size as usize / PAGE_SIZE).map_err(failed)?;
    let time = Duration::from_secs_f64(args.seconds);
    let measured = access::measure(&memory, args.pattern, args.threads, time, args.seed).map_err(failed)?;
    show(true, &measured, |_| String::new())
}

fn measure(client: &Client, args: &BenchArgs, socket: &Path, cell: &Cell, round: u16) -> Result<Measured, Failure> {
    let failed = |why: String| Failure::Workload { cell: format!("{} {}", cell.pattern.name(), cell.resident()), why };
    let annex = std::env::current_exe().map_err(|e| failed(format!("no way to this program: {e}")))?;
    let name = format!("bench-{}", std::process::id());
    let mut line: Vec<OsString> = Vec::new();
    if let Some(local) = cell.local {
        line.extend([annex.clone().into(), "--socket".into(), socket.into()]);
        line.extend(["run", "--local", &local.to_string(), "--name", &name, "--"].map(OsString::from));
    }
    line.push(annex.into());
    line.extend(["bench-pattern", cell.pattern.name(), "--size", &args.size.to_string()].map(OsString::from));
    line.extend(["--seconds", &args.seconds.to_string(), "--threads", &args.threads.to_string()].map(OsString::from));
    line.extend(["--seed", &(round + 1).to_string()].map(OsString::from));
    let mut command = Command::new(&line[0]);
    let ran = command.args(&line[1..]).stdin(Stdio::null()).output().map_err(|e| failed(e.to_string()))?;
    if !ran.status.success() {
        let said = String::from_utf8_lossy(&ran.stderr);
        return Err(failed(format!("{}: {}", ran.status, said.trim().trim_start_matches("annex: "))));
    }
    // What it leaves behind must not be tidied up while the next is measured.
    let until = Instant::now() + GONE_WITHIN;
    while client.apps()?.iter().any(|app| app.name == name) && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(20));
    }
    serde_json::from_slice(&ran.stdout).map_err(|e| failed(format!("its result makes no sense: {e}")))
}

impl Lender {
    fn of(donor: &DonorInfo) -> Lender {
        let transport = donor.transport.map_or("none".into(), |t| t.to_string());
        Lender { name: donor.name.clone(), transport }
    }
}

impl Cell {
    fn resident(&self) -> String {
        self.local.map_or("in RAM".into(), |local| format!("at {local}"))
    }

    fn median(&self, of: impl Fn(&Measured) -> f64) -> f64 {
        let mut all: Vec<f64> = self.rounds.iter().map(of).collect();
        all.sort_by(f64::total_cmp);
        all.get(all.len() / 2).copied().unwrap_or(0.0)
    }
}

impl Report {
    fn text(&self) -> String {
        let donors: Vec<_> = self.donors.iter().map(|d| format!("{} ({})", d.name, d.transport)).collect();
        let columns = [
            Column::Text("pattern"),
            Column::Text("memory"),
            Column::Number("resident"),
            Column::Number("accesses/s"),
            Column::Number("of RAM"),
            Column::Number("p50"),
            Column::Number("p99"),
            Column::Number("p99.9"),
            Column::Number("fault p50"),
            Column::Number("fault p99"),
        ];
        let rows = self.cells.iter().map(|cell| {
            let in_ram = self.cells.iter().find(|c| c.pattern == cell.pattern && c.local.is_none());
            let rate = cell.median(|m| m.ops_per_s);
            let of_ram = in_ram.map_or(0.0, |ram| 100.0 * rate / ram.median(|m| m.ops_per_s));
            let micros = |of: fn(&Measured) -> f64| format!("{:.1}", cell.median(of));
            let fault = |of: fn(&Measured) -> f64| if cell.local.is_some() { micros(of) } else { String::new() };
            vec![
                cell.pattern.name().into(),
                cell.resident(),
                format!("{:.0} %", 100.0 * cell.median(|m| m.resident_share)),
                table::count(rate as u64),
                format!("{of_ram:.0} %"),
                micros(|m| m.p50_us),
                micros(|m| m.p99_us),
                micros(|m| m.p999_us),
                fault(|m| m.miss_p50_us),
                fault(|m| m.miss_p99_us),
            ]
        });
        let drawn = table::draw(&columns, rows, None);
        format!(
            "{} touched by {}; donors: {}\n\n{drawn}\nTimes in microseconds, medians of {} rounds; a fault is an access that took longer than 3.\n",
            format_bytes(self.size),
            if self.threads == 1 { "one thread".into() } else { format!("{} threads", self.threads) },
            donors.join(", "),
            self.cells.first().map_or(0, |c| c.rounds.len())
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_says_what_a_pattern_keeps_of_its_speed_in_ram() {
        let measured = |ops_per_s| Measured { ops_per_s, p50_us: 9.04, miss_p50_us: 12.5, ..Measured::default() };
        let cell =
            |local, rates: [f64; 3]| Cell { pattern: Pattern::Zipf, local, rounds: rates.map(measured).to_vec() };
        let cells = vec![cell(None, [1e6, 2e6, 9e6]), cell(Some(Limit::Percent(25)), [4e5, 5e5, 1e5])];
        let donors = vec![Lender { name: "a".into(), transport: "verbs".into() }];
        let text = Report { size: 512 << 20, threads: 1, donors, cells }.text();
        let line = text.lines().find(|line| line.contains("at 25%")).expect("a row");
        let words: Vec<_> = line.split_whitespace().collect();
        assert_eq!(words[3..], ["0", "%", "400k", "20", "%", "9.0", "0.0", "0.0", "12.5", "0.0"], "{text}");
        assert!(text.starts_with("512 MiB touched by one thread"), "{text}");
        assert!(text.contains("donors: a (verbs)"), "{text}");
    }
}
