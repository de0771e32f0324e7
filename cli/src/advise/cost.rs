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

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn status(majors: u64, sum_us: f64, reads: [u64; 2]) -> Status {
        let donor = |(name, read_us): (&str, u64)| {
            json!({"name": name, "address": "h:1", "state": "up", "transport": "tcp", "why": "", "slabs_held": 1,
                "slabs_free": 1, "slabs_capacity": 2, "used": 0, "reads": 0, "writes": 0, "errors": 0,
                "checksum_errors": 0, "read_us": read_us})
        };
        let app = json!({"id": 1, "name": "a", "pids": [7], "uid": 0, "local": "50%", "resident": 0, "evicted": 0,
            "state": "running", "note": "", "pages_evicted": 0, "pages_clean": 0, "pages_zero": 0,
            "faults": {"major": majors, "zero": 0, "p50_us": 1.0, "p99_us": 1.0, "max_us": 1.0,
                "latency_sum_us": sum_us}});
        let all = json!({"version": "0.1.0", "pid": 42, "uptime_s": 1, "kernel": "6.12", "replicas": 2,
            "donors": [donor(("x", reads[0])), donor(("y", reads[1]))], "apps": [app], "warnings": [],
            "pool": {"capacity": 0, "used": 0, "extents": 0, "degraded_extents": 0, "lost_extents": 0, "full": false},
            "workers": {"fault_workers": 2, "wait": "block", "evictors": 1}, "overhead_per_page": null, "cpu_s": 1.0});
        serde_json::from_value(all).expect("an answer of annexd")
    }

    #[test]
    fn what_annexd_has_measured_comes_before_what_is_assumed() {
        let known = |status: &Status| (Cost::known(Some(status)).us, Cost::known(Some(status)).source);
        assert_eq!(known(&status(1000, 12_500.0, [30, 50])), (12.5, Source::Faults));
        assert_eq!(known(&status(99, 12_500.0, [30, 50])), (50.0, Source::Reads), "too few faults");
        assert_eq!(known(&status(0, 0.0, [30, 0])), (40.0, Source::Reads), "one donor was not read from lately");
        assert_eq!(known(&status(0, 0.0, [0, 0])), (50.0, Source::Assumed));
        assert_eq!(Cost::known(None).source, Source::Assumed);
        assert_eq!(Cost::known(None).fault(), Duration::from_micros(50));
    }
}
