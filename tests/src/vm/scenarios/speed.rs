//! How fast our way over verbs is beside the device's own tools, as ratios of runs that take turns
//! in the same guests: emulated machines are slow, and no two runs alike. It prints, and holds
//! nothing against a bar.

use super::roce;
use crate::access::Measured;
use crate::vm::guest::Guest;
use crate::vm::lab::{Lab, Settings, address};
use annex_shared::transport::Transport;
use anyhow::{Context, ensure};
use std::time::Duration;

const ROUNDS: usize = 5;
const READ: &str = "ib_read_lat -s 4096 -n 500";
/// The same one after another at the pace of a program's faults, and slept for as annexd does. The
/// gap is part of what it reports.
const PACED: &str = "ib_read_lat -s 4096 -n 500 -e --latency_gap=1500";
const GAP_US: f64 = 1500.0;
const WRITE: &str = "ib_write_bw -s 65536 -n 500";

/// READs and WRITEs within one guest, and faults over the wire.
pub fn ratios(lab: &mut Lab) -> anyhow::Result<()> {
    let settings = Settings { of_donors: "transport = \"verbs\"", ..Settings::default() };
    lab.start(2, &settings)?;
    let (client, donor) = (lab.client()?, lab.donor(1)?);
    let mut rounds = Vec::new();
    for round in 1..=ROUNDS {
        let (ours_read, ours_write) = ours(client)?;
        let read = perftest(client, client, &address(0), READ, 4)?;
        // MiB/s, of which ours are 10^6 bytes.
        let write = perftest(client, client, &address(0), WRITE, 3)? * 1.048_576;
        let wire = perftest(donor, client, &address(1), READ, 4)?;
        let paced = perftest(donor, client, &address(1), PACED, 4)? - GAP_US;
        let floor = access(client, "--floor 4M")?;
        let (fault, its_read) = access_paged(lab)?;
        println!(
            "round {round}: READ 4 KiB {ours_read:.0} us, {READ} {read:.0} us; WRITE 64 KiB {ours_write:.1} MB/s, {WRITE} {write:.1} MB/s; \
             fault p50 {fault:.0} us, of which its READ {its_read:.0} us; bare floor {floor:.0} us, READ over the wire {wire:.0} us, \
             paced and slept for {paced:.0} us"
        );
        rounds.push([ours_read / read, ours_write / write, fault / (floor + wire), fault / (floor + paced)]);
    }
    let ratios = [
        ("READ latency", "goal <= 1.15"),
        ("WRITE bandwidth", "goal >= 0.9"),
        ("fault p50 with READs back to back", "goal <= 1.3"),
        ("fault p50 with READs at a fault's pace", "no goal: how much of the line above is ours"),
    ];
    for (n, (what, goal)) in ratios.iter().enumerate() {
        let mut ratios: Vec<f64> = rounds.iter().map(|round| round[n]).collect();
        ratios.sort_by(f64::total_cmp);
        println!(
            "{what}: {:.2} of the tools', median of {ROUNDS} rounds, from {:.2} to {:.2} ({goal})",
            ratios[ROUNDS / 2],
            ratios[0],
            ratios[ROUNDS - 1]
        );
    }
    Ok(())
}

/// Our endpoint against an agent's, both in this guest: microseconds of a READ, and 10^6 bytes
/// written per second.
fn ours(guest: &Guest) -> anyhow::Result<(f64, f64)> {
    let said = guest.sh_within(
        Duration::from_secs(120),
        "ulimit -l unlimited; ANNEX_REQUIRE_VERBS=1 /payload/tests/fabric --ignored --nocapture how_long_a_read_takes",
    )?;
    let after =
        |key: &str| said.split_once(key).and_then(|(_, rest)| rest.split_whitespace().next()).map(str::to_owned);
    let read = after("p50 ").with_context(|| said.clone())?;
    let write = after("WRITE of 65536: ").with_context(|| said.clone())?;
    let read = read.trim_end_matches(',');
    let micros = match (read.strip_suffix("µs"), read.strip_suffix("ms")) {
        (Some(us), _) => us.parse::<f64>()?,
        (None, Some(ms)) => ms.parse::<f64>()? * 1e3,
        (None, None) => anyhow::bail!("{read} is no time of a READ"),
    };
    Ok((micros, write.parse()?))
}

/// A field of perftest's row.
fn perftest(server: &Guest, client: &Guest, server_is_at: &str, program: &str, field: usize) -> anyhow::Result<f64> {
    let row = roce::perftest(server, client, server_is_at, program)?;
    Ok(row.split_whitespace().nth(field).with_context(|| row.clone())?.parse()?)
}

/// Random reads of 16 MiB: the median of those that were not in memory, in microseconds.
fn access(guest: &Guest, how: &str) -> anyhow::Result<f64> {
    let said = guest.sh(&format!("/payload/bin/annex-access pattern random --size 16M --seconds 5 {how}"))?;
    median_fault(&said)
}

/// The same of what a program saw that was paged, and of the READs that annexd made for it.
fn access_paged(lab: &Lab) -> anyhow::Result<(f64, f64)> {
    let said = lab
        .client()?
        .sh("annex run --local 4M --name access -- /payload/bin/annex-access pattern random --size 16M --seconds 5")?;
    let status = lab.status()?;
    ensure!(status.donors.iter().all(|d| d.transport == Some(Transport::Verbs)), "{:?}", status.donors);
    let reads = status.donors.iter().flat_map(|d| &d.traffic).filter(|t| t.transport == Transport::Verbs);
    let busiest = reads.max_by_key(|t| t.reads).context("no traffic over verbs")?;
    Ok((median_fault(&said)?, busiest.p50_us))
}

fn median_fault(said: &str) -> anyhow::Result<f64> {
    let measured: Measured = serde_json::from_str(said).with_context(|| said.to_owned())?;
    // With a quarter resident the median access is a fault.
    ensure!(measured.slow_share > 0.6, "too few accesses were faults: {measured:?}");
    Ok(measured.p50_us)
}
