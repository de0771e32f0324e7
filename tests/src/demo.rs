//! `make demo`: a real redis-server whose data is four times its local memory, on two donors, one
//! over TCP and one over shared memory. Loads known values, forks for a BGSAVE in the middle, reads
//! every value back and compares it.

use crate::redis::{self, Client, Values, Verdict};
use crate::testbed::{Donor, Testbed, bins};
use annex_shared::api::{AppInfo, Status, format_bytes};
use anyhow::{Context, ensure};
use std::fmt::Write as _;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

const APP: &str = "redis";
const VALUE: usize = 2048;
/// Both replicas of the data, the resident part, and room for the programs themselves.
const NEEDED_PER_BYTE: f64 = 2.8;

/// Set by SIGINT and SIGTERM.
pub static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// What the table shows.
pub struct Report {
    pub values: Values,
    pub verdict: Verdict,
    pub app: AppInfo,
    pub status: Status,
    pub took: Duration,
}

/// Runs the demo with `data` bytes of values.
pub fn run(data: u64) -> anyhow::Result<Report> {
    ensure!(bins::system("redis-server").is_some(), "redis-server is not installed: run `make setup`");
    let needed = (data as f64 * NEEDED_PER_BYTE) as u64;
    let available = memory_available()?;
    ensure!(
        available > needed,
        "not enough memory for the demo: {} are available, {} needed (both donors are on this machine); try --data 256M",
        format_bytes(available),
        format_bytes(needed)
    );
    let started = Instant::now();
    let step = |what: &str| eprintln!("[{:5.1} s] {what}", started.elapsed().as_secs_f64());

    step("starting two agents and annexd on loopback");
    let bed = Testbed::builder().donor(Donor::tcp().capacity("2G")).donor(Donor::shm().capacity("2G")).start();
    let local = data / 4;
    step(&format!("annex run --local {} -- redis-server …", format_bytes(local).replace(' ', "")));
    let job = bed.run(APP, &local.to_string(), redis::server(bed.path()));
    let values = Values::of_total(data, VALUE);
    let mut client = Client::connect(bed.path(), values, Duration::from_secs(30))
        .with_context(|| format!("starting redis-server:\n{}", job.process.log()))?;

    step(&format!("loading {} values of {VALUE} bytes", values.count));
    client.store(0..values.count, 1, go_on)?;
    let mut verdict = Verdict::default();
    step("reading the first half back");
    verdict += client.verify(0..values.count / 2, go_on)?;
    step("BGSAVE: redis-server forks, the child writes everything to disk");
    client.command(&["BGSAVE"])?;
    step("meanwhile: every 16th value is overwritten, the second half is read back");
    client.store(0..values.count, 16, go_on)?;
    verdict += client.verify(values.count / 2..values.count, go_on)?;
    while !client.background_save_done()? {
        go_on(0)?;
        std::thread::sleep(Duration::from_millis(100));
    }
    step("BGSAVE is done; reading everything back once more");
    verdict += client.verify(0..values.count, go_on)?;

    let status = bed.status();
    let app = bed.app(APP).context("annexd does not know the app any more")?;
    Ok(Report { values, verdict, app, status, took: started.elapsed() })
}

impl Report {
    /// All values were right, and the program really lived on lent memory.
    pub fn verdict(&self) -> anyhow::Result<()> {
        ensure!(self.verdict.wrong == 0, "{} wrong values", self.verdict.wrong);
        ensure!(self.app.faults.major > 0 && self.app.evicted > 0, "nothing was paged: the run proves nothing");
        Ok(())
    }

    pub fn table(&self) -> String {
        let Report { values, verdict, app, status, took } = self;
        let mut rows = vec![
            ("data".to_owned(), format!("{} values, {}", values.count, format_bytes(values.total()))),
            ("local limit".to_owned(), app.local.to_string()),
            ("resident".to_owned(), format_bytes(app.resident)),
            ("evicted".to_owned(), format_bytes(app.evicted)),
        ];
        for donor in &status.donors {
            let transport = donor.transport.map_or("-".to_owned(), |t| t.to_string());
            rows.push((format!("in pool on {} ({transport})", donor.name), format_bytes(donor.used)));
        }
        rows.push(("faults served from the pool".into(), app.faults.major.to_string()));
        rows.push(("fault p50 / p99".into(), format!("{:.0} / {:.0} µs", app.faults.p50_us, app.faults.p99_us)));
        rows.push(("pages evicted".into(), format!("{} ({} without a write)", app.pages_evicted, app.pages_clean)));
        rows.push(("time".into(), format!("{:.0} s", took.as_secs_f64())));
        rows.push(("values verified".into(), verdict.verified.to_string()));
        rows.push(("wrong values".into(), verdict.wrong.to_string()));
        let width = rows.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
        let mut table = String::new();
        for (name, value) in rows {
            // Writing to a String can't fail.
            let _ = writeln!(table, "  {name:<width$}  {value}");
        }
        table
    }
}

fn go_on(_item: u64) -> anyhow::Result<()> {
    ensure!(!INTERRUPTED.load(Relaxed), "interrupted");
    Ok(())
}

fn memory_available() -> anyhow::Result<u64> {
    let text = std::fs::read_to_string("/proc/meminfo")?;
    let line =
        text.lines().find_map(|l| l.strip_prefix("MemAvailable:")).context("no MemAvailable in /proc/meminfo")?;
    let kib: u64 = line.trim().trim_end_matches("kB").trim().parse()?;
    Ok(kib << 10)
}
