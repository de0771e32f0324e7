//! What a fault costs on this host: measured by annexd where it has served some. Pure.

use annex_shared::api::{DonorState, Status};
use serde::Serialize;
use std::time::Duration;

/// Fewer faults than this tell little.
const ENOUGH: u64 = 100;
/// What a fault takes beside the read from a donor (docs/performance.md).
const OWN: f64 = 10.0;
/// Where nothing is known: a page over TCP within one machine takes 34 µs, and between machines a
/// round trip is added.
const ASSUMED: f64 = 50.0;

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Cost {
    #[serde(rename = "fault_us")]
    pub us: f64,
    #[serde(rename = "fault_known_from")]
    pub source: Source,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// The mean of the faults that annexd has served for apps.
    Faults,
    /// How long reads from donors take lately, and what annexd adds.
    Reads,
    Assumed,
}

impl Cost {
    pub fn known(status: Option<&Status>) -> Cost {
        let measured = status.and_then(|status| of_faults(status).or_else(|| of_reads(status)));
        measured.unwrap_or(Cost { us: ASSUMED, source: Source::Assumed })
    }

    pub fn fault(&self) -> Duration {
        Duration::from_secs_f64(self.us / 1e6)
    }

    pub fn words(&self) -> &'static str {
        match self.source {
            Source::Faults => "as annexd's faults take on the mean",
            Source::Reads => "as reads from the donors take lately, and 10 µs for the rest",
            Source::Assumed => "assumed, since no annexd with donors was asked; annex bench measures it",
        }
    }
}

fn of_faults(status: &Status) -> Option<Cost> {
    let faults = status.apps.iter().map(|app| app.faults.major).sum::<u64>();
    let sum = status.apps.iter().map(|app| app.faults.latency_sum_us).sum::<f64>();
    (faults >= ENOUGH && sum > 0.0).then(|| Cost { us: sum / faults as f64, source: Source::Faults })
}

fn of_reads(status: &Status) -> Option<Cost> {
    let is_known = |us: &u64| *us > 0;
    let up = status.donors.iter().filter(|donor| donor.state == DonorState::Up && !donor.is_spill());
    let reads: Vec<u64> = up.map(|donor| donor.read_us).filter(is_known).collect();
    let mean = reads.iter().sum::<u64>() as f64 / reads.len() as f64;
    (!reads.is_empty()).then_some(Cost { us: mean + OWN, source: Source::Reads })
}
