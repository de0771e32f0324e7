//! What one client's request costs the others: another connection asks for a small value every
//! millisecond, and each heavy request in turn runs beside it.

use super::super::wire::Wire;
use crate::testbed::{Donor, Testbed};
use anyhow::{Context, ensure};
use hdrhistogram::Histogram;
use std::fmt::Write as _;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::{Duration, Instant};

/// How often the other client asks.
const EVERY: Duration = Duration::from_millis(1);
/// Keys of a large request, commands of a large transaction.
const MANY: usize = 200_000;
/// Bytes of a large value: the most that a string may have.
const LARGE: usize = 512 << 20;
/// Requests that are sent together.
const TOGETHER: usize = 1000;
const CAPACITY: &str = "3GiB";
/// How long it is watched when nothing else is asked.
const ALONE: Duration = Duration::from_secs(1);

type Words = Vec<Vec<u8>>;

/// A request that takes long, and what has to be there for it.
struct Heavy {
    name: &'static str,
    before: Vec<Words>,
    request: Words,
}

/// What the other client saw meanwhile.
struct Seen {
    took: Duration,
    latency: Histogram<u64>,
}

/// Runs all of them against the KV API over shared memory, and tells what the other client saw, as
/// Markdown.
///
/// # Errors
/// annexd does not answer, or answers an error.
pub fn run() -> anyhow::Result<String> {
    let donor = || Donor::shm().capacity(CAPACITY);
    let bed = Testbed::builder().donor(donor()).donor(donor()).beside_others().kv("").start();
    let address = bed.kv_address.as_deref().context("no KV API")?;
    Wire::tcp(address)?.ask(&["SET", "small", "value"])?;
    let mut text = String::from(
        "| request | takes, ms | answers meanwhile | p50, µs | p99, µs | slowest, µs |\n| --- | --- | --- | --- | --- | --- |\n",
    );
    let mut row = |name: &str, seen: Seen| {
        let micros = |nanos: u64| nanos / 1000;
        let line = format!(
            "| {name} | {} | {} | {} | {} | {} |",
            seen.took.as_millis(),
            seen.latency.len(),
            micros(seen.latency.value_at_quantile(0.5)),
            micros(seen.latency.value_at_quantile(0.99)),
            micros(seen.latency.max()),
        );
        eprintln!("{line}");
        let _ = writeln!(text, "{line}");
    };
    row("nothing", beside(address, || thread::sleep(ALONE))?);
    let mut wire = Wire::tcp(address)?;
    for heavy in all() {
        for requests in heavy.before.chunks(TOGETHER) {
            expect_no_error(wire.ask_all(requests)?)?;
        }
        let mut answer = Ok(Vec::new());
        let seen = beside(address, || answer = wire.ask(&heavy.request))?;
        expect_no_error(vec![answer?]).context(heavy.name)?;
        row(heavy.name, seen);
    }
    Ok(text)
}

fn expect_no_error(answers: Vec<Vec<u8>>) -> anyhow::Result<()> {
    let error = answers.iter().find(|answer| answer.starts_with(b"-"));
    ensure!(error.is_none(), "{}", String::from_utf8_lossy(error.map_or(&[], Vec::as_slice)));
    Ok(())
}

/// Asks for the small value again and again while something runs.
fn beside(address: &str, run: impl FnOnce()) -> anyhow::Result<Seen> {
    let (mut wire, is_over) = (Wire::tcp(address)?, AtomicBool::new(false));
    thread::scope(|scope| {
        let asking = scope.spawn(|| -> anyhow::Result<Histogram<u64>> {
            let mut latency = Histogram::new(3)?;
            while !is_over.load(Relaxed) {
                let began = Instant::now();
                wire.ask(&["GET", "small"])?;
                latency.record(began.elapsed().as_nanos() as u64)?;
                thread::sleep(EVERY.saturating_sub(began.elapsed()));
            }
            Ok(latency)
        });
        let began = Instant::now();
        run();
        let took = began.elapsed();
        is_over.store(true, Relaxed);
        let latency = asking.join().expect("no panic")?;
        Ok(Seen { took, latency })
    })
}

fn words(line: &str) -> Words {
    line.split(' ').map(|word| word.as_bytes().to_vec()).collect()
}

/// A name, and for each of many keys some words.
fn for_many(name: &str, of: impl Fn(usize) -> String) -> Words {
    let mut all = words(name);
    (0..MANY).for_each(|n| all.extend(words(&of(n))));
    all
}

fn all() -> Vec<Heavy> {
    let request = |name, line: &str| Heavy { name, before: Vec::new(), request: words(line) };
    let many = |name, words| Heavy { name, before: Vec::new(), request: words };
    let key = |n: usize| format!("key:{n}");
    let exec = |name, of: fn(usize) -> String| {
        let queued = (0..MANY).map(|n| words(&of(n)));
        Heavy { name, before: std::iter::once(words("MULTI")).chain(queued).collect(), request: words("EXEC") }
    };
    let last = LARGE - 1;
    let half = LARGE / 2 - 1;
    let text = |seed: usize| (0..8_000).map(|n| char::from(b'a' + (n * seed % 23) as u8)).collect::<String>();
    vec![
        exec("EXEC of 200,000 SETs", |n| format!("SET key:{n} value:{n}")),
        exec("EXEC of 200,000 GETs", |n| format!("GET key:{n}")),
        many("MSET of 200,000 keys", for_many("MSET", |n| format!("key:{n} other:{n}"))),
        many("MGET of 200,000 keys", for_many("MGET", key)),
        many("EXISTS of 200,000 keys", for_many("EXISTS", key)),
        many("TOUCH of 200,000 keys", for_many("TOUCH", key)),
        request("KEYS *", "KEYS *"),
        request("SCAN 0 COUNT 1000000", "SCAN 0 COUNT 1000000"),
        many("DEL of 200,000 keys", for_many("DEL", key)),
        request("SETRANGE of 512 MiB", &format!("SETRANGE large {last} x")),
        request("SETRANGE within 512 MiB", "SETRANGE large 1000 y"),
        request("SETBIT within 512 MiB", "SETBIT large 100000 1"),
        request("SETRANGE of 256 MiB", &format!("SETRANGE half {half} x")),
        request("APPEND to 256 MiB", "APPEND half y"),
        request("BITCOUNT of 512 MiB", "BITCOUNT large"),
        request("BITPOS of 512 MiB", "BITPOS large 1 200000"),
        request("GETRANGE of 100 MiB", "GETRANGE large 0 104857599"),
        request("GET of 512 MiB", "GET large"),
        request("DEL of 512 MiB", "DEL large"),
        request("BITOP NOT of 256 MiB", "BITOP NOT half half"),
        request("COPY of 256 MiB", "COPY half another"),
        Heavy {
            name: "LCS of 2 × 8 KB",
            before: vec![words(&format!("MSET {{a}} {} {{b}} {}", text(3), text(5)))],
            request: words("LCS {a} {b}"),
        },
        Heavy {
            name: "FLUSHALL of 200,000 keys",
            before: (0..MANY).map(|n| words(&format!("SET key:{n} {n}"))).chain([words("SET small value")]).collect(),
            request: words("FLUSHALL"),
        },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_of_them_are_the_same_request() {
        let mut all: Vec<Words> =
            all().into_iter().filter(|heavy| heavy.before.is_empty()).map(|h| h.request).collect();
        let count = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), count);
    }
}
