//! Regions: what their programs write to the ring that they share with annexd.

use super::{MINUTE, goes_on, stress};
use annex_tests::testbed::process::own_memory;
use annex_tests::testbed::{Testbed, nobody};
use nix::sys::signal::Signal;
use std::process::Stdio;
use std::time::Duration;

/// What annexd may grow by, beside a region that asks without end.
const ALLOWANCE: u64 = 48 << 20;

/// Every mark in the ring was a fault that annexd served or kept: other programs had none of theirs
/// served for as long as it went on, and annexd grew.
#[test]
fn a_region_that_asks_without_end_costs_itself_only() {
    let bed = Testbed::builder().shm();
    let honest = stress("honest", &bed);
    let mut flood = nobody::command();
    flood.arg(nobody::copy("annex-region", bed.path(), 0o755)).arg("--socket").arg(&bed.socket);
    flood.args(["--name", "flood", "--size", "64M", "--local", "16M", "--flood"]).stdin(Stdio::null());
    let mut flood = bed.natively("flood", flood);
    flood.wait_says("ready", MINUTE);
    bed.wait_app("flood", MINUTE, |app| app.pages_in > 100);
    let before = own_memory(bed.annexd.pid()).expect("it runs");
    for _ in 0..10 {
        goes_on("honest", &bed);
        std::thread::sleep(Duration::from_secs(1));
    }
    let grown = own_memory(bed.annexd.pid()).expect("it runs").saturating_sub(before);
    assert!(grown < ALLOWANCE, "annexd has grown by {grown} bytes");
    flood.signal(Signal::SIGTERM);
    let said = flood.wait(MINUTE).succeeded().stdout;
    println!("the region {}; annexd grew by {grown} bytes", said.trim());
    honest.signal(Signal::SIGTERM);
    honest.wait(MINUTE).succeeded();
}
