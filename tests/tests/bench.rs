//! `annex bench` against a running annexd: it measures what it says, with the donors there are, and
//! leaves nothing behind.

use annex_tests::access::Measured;
use annex_tests::testbed::{Donor, Testbed, wait_for};
use serde_json::Value;
use std::time::Duration;

const MINUTE: Duration = Duration::from_secs(60);

#[test]
fn a_bench_shows_memory_in_ram_beside_memory_with_donors() {
    let bed = Testbed::builder().alone().donor(Donor::shm()).donor(Donor::tcp()).start();
    let short =
        ["--json", "--size", "48M", "--local", "25%", "--patterns", "random,zipf", "--seconds", "0.5", "--rounds", "2"];
    let outcome = bed.ask("bench", short).succeeded();
    let report: Value = serde_json::from_str(&outcome.stdout).expect("JSON");
    let transports: Vec<_> = report["donors"].as_array().expect("a list").iter().map(|d| &d["transport"]).collect();
    assert_eq!(transports, ["shm", "tcp"], "{report}");
    let cells = report["cells"].as_array().expect("a list");
    assert_eq!(cells.len(), 4, "{report}");
    for cell in cells {
        let rounds: Vec<Measured> = serde_json::from_value(cell["rounds"].clone()).expect("what was measured");
        assert_eq!(rounds.len(), 2, "{cell}");
        for measured in rounds {
            if cell["local"].is_null() {
                assert_eq!(measured.resident_share, 1.0, "{cell}");
            } else {
                assert!(measured.resident_share < 0.4, "it was not held to its limit: {cell}");
                assert!(measured.slow_share > 0.05 && measured.miss_p50_us > 3.0, "nothing came from donors: {cell}");
            }
        }
    }
    wait_for("every slot to be free", MINUTE, || bed.status().pool.used == 0);
    assert!(bed.status().apps.is_empty());

    // As people read it; and what goes wrong in a run is told.
    let table =
        bed.ask("bench", ["--size", "16M", "--patterns", "random", "--seconds", "0.1", "--rounds", "1"]).succeeded();
    assert!(table.stdout.contains("16 MiB touched by one thread; donors: "), "{table}");
    assert_eq!(table.stdout.lines().filter(|line| line.starts_with("random")).count(), 3, "{table}");
    let crowded = bed.ask("bench", ["--size", "1M", "--threads", "1000", "--seconds", "0.1"]);
    assert_eq!(crowded.code(), 1, "{crowded}");
    assert!(
        crowded.stderr.contains("failed to measure 'random in RAM'") && crowded.stderr.contains("1000 threads"),
        "{crowded}"
    );
}
