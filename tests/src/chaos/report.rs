//! The table.

use super::fault::Fault;
use serde::Serialize;
use std::fmt::Write;
use std::time::Duration;

/// What came of one fault's rounds.
#[derive(Debug, Serialize)]
pub struct Row {
    pub fault: Fault,
    pub rounds: u32,
    pub seconds: f64,
    /// Pages the program waited for and got from the pool.
    pub faults_served: u64,
    /// Pages it verified.
    pub checks: u64,
    pub wrong: u64,
    pub lost: u64,
    /// The longest time of each round in which no fault was served.
    pub stalls: Vec<Duration>,
    /// From the injection until every page had all its replicas again.
    pub whole: Vec<Duration>,
}

impl Row {
    pub fn new(fault: Fault) -> Row {
        Row {
            fault,
            rounds: 0,
            seconds: 0.0,
            faults_served: 0,
            checks: 0,
            wrong: 0,
            lost: 0,
            stalls: Vec::new(),
            whole: Vec::new(),
        }
    }

    pub fn is_good(&self) -> bool {
        self.rounds > 0 && self.wrong == 0 && self.lost == 0
    }
}

pub const HEAD: &str = "| fault | rounds | faults/s meanwhile | pages verified | wrong bytes | lost pages | stall p50 / max, ms | whole again p50 / max, ms |\n\
                        | --- | --- | --- | --- | --- | --- | --- | --- |";

/// A line of the table in Markdown.
pub fn line(row: &Row) -> String {
    let mut text = format!("| {} | {} | {:.0} ", row.fault.words(), row.rounds, row.faults_served as f64 / row.seconds);
    let _ = write!(text, "| {} | {} | {} ", row.checks, row.wrong, row.lost);
    for times in [&row.stalls, &row.whole] {
        let (p50, max) = middle_and_most(times);
        let _ = write!(text, "| {p50:.0} / {max:.0} ");
    }
    text + "|"
}

/// In milliseconds.
fn middle_and_most(times: &[Duration]) -> (f64, f64) {
    let mut millis: Vec<f64> = times.iter().map(|t| t.as_secs_f64() * 1e3).collect();
    millis.sort_by(f64::total_cmp);
    (millis.get(millis.len() / 2).copied().unwrap_or(f64::NAN), millis.last().copied().unwrap_or(f64::NAN))
}
