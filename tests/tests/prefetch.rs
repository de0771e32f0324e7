//! Programs whose next pages can be told from the last ones fault on few of them, and find in each
//! what they left there.

use annex_tests::testbed::{Outcome, Testbed, bins};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

const MINUTE: Duration = Duration::from_secs(60);

/// Pages that came back for each fault.
fn pages_per_fault(outcome: &Outcome) -> f64 {
    println!("{}{:?}", outcome.stdout, outcome.seen.last);
    outcome.seen.pages_in as f64 / outcome.seen.faults as f64
}

fn read_in_pattern(pattern: &str, bed: &Testbed) -> Outcome {
    let mut reader = Command::new(bins::find("annex-access"));
    reader.args(["pattern", pattern, "--size", "128M", "--seconds", "3"]);
    bed.run(pattern, "32M", reader).wait(2 * MINUTE).succeeded().was_paged(20_000, 20_000)
}

/// Over and over: what one pass leaves resident must not break the next one into pieces.
#[test]
fn a_scan_faults_once_in_a_window() {
    let outcome = read_in_pattern("sequential", &Testbed::builder().alone().shm());
    let per_fault = pages_per_fault(&outcome);
    assert!(per_fault >= 20.0, "{per_fault} pages for each fault: {outcome}");
}

/// Every page carries its number, which is checked at each read.
#[test]
fn a_strided_reader_faults_on_few_of_its_pages() {
    let outcome = read_in_pattern("strided", &Testbed::builder().alone().shm());
    let per_fault = pages_per_fault(&outcome);
    assert!(per_fault >= 4.0, "{per_fault} pages for each fault: {outcome}");
    let app = outcome.seen.last.expect("it was seen");
    assert!(app.pages_prefetched > app.pages_in / 2, "{app:?}");
    assert!(app.prefetch_hits >= app.prefetch_samples / 10 * 9, "pages were brought for nothing: {app:?}");
}

#[test]
fn a_program_that_goes_backwards_faults_on_few_pages_and_finds_each_as_it_left_it() {
    let bed = Testbed::builder().alone().shm();
    let mut python = Command::new(bins::system("python3").expect("python3 is installed by `make setup`"));
    python.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("programs/backwards.py")).args(["128", "6"]);
    let outcome = bed.run("backwards", "32M", python).wait(3 * MINUTE).succeeded().was_paged(20_000, 20_000);
    assert!(outcome.stdout.starts_with("checked "), "{outcome}");
    let per_fault = pages_per_fault(&outcome);
    assert!(per_fault >= 4.0, "{per_fault} pages for each fault: {outcome}");
}
