//! What an honest client sees beside each kind of client that would make annexd hold too much, or
//! be busy with it alone: latency alone and beside them, in turns, and annexd's memory.
//!
//! Hostile clients run on this machine too: with the least of priorities, or the ratio would be of
//! their share of its CPUs, and not of what they do to the server.

use super::super::wire::Wire;
use super::contender::{Contender, Server};
use crate::testbed::process::own_memory;
use crate::testbed::{Donor, Testbed};
use anyhow::Context;
use hdrhistogram::Histogram;
use std::fmt::Write as _;
use std::io::Write as _;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::{Duration, Instant};

/// How often the honest client asks.
const EVERY: Duration = Duration::from_millis(1);
/// How long it is watched at a time.
const ROUND: Duration = Duration::from_secs(2);
const ROUNDS: usize = 3;
/// Threads of the hostile clients: many of these only wait.
const THREADS: usize = 40;
/// How long a hostile client's attack takes to unfold before the honest one is watched.
const SETTLES: Duration = Duration::from_millis(500);
/// What all clients may hold together.
const BUDGET: usize = 256 << 20;
const LARGE: usize = 16 << 20;
const PASSWORD: &str = "secret";

struct Kind {
    name: &'static str,
    clients: usize,
    /// Whether they have given the password.
    authenticated: bool,
    /// What one of them does, for the nth time, until it is over or the server has closed it.
    does: fn(&mut Wire, usize) -> std::io::Result<()>,
    /// How long it waits before it does so again.
    waits: Duration,
}

/// Runs all of them against the KV API over shared memory, and against redis-server, which has no
/// other bounds; Markdown.
///
/// # Errors
/// The honest client is not answered.
pub fn run() -> anyhow::Result<String> {
    let donor = || Donor::shm().capacity("2GiB");
    let bed = Testbed::builder().donor(donor()).donor(donor()).beside_others().kv("").start();
    let of_annexd = table("annexd", bed.kv_address.as_deref().context("no KV API")?, bed.annexd.pid())?;
    drop(bed);
    let redis = Server::start(Contender::RedisServer, LARGE)?;
    let pid = redis.pid().context("no process")?;
    Ok(of_annexd + "\n" + &table("redis-server", &redis.address.to_string(), pid)?)
}

fn table(name: &str, address: &str, pid: i32) -> anyhow::Result<String> {
    let mut honest = Wire::tcp(address)?;
    honest.ask(&["CONFIG", "SET", "requirepass", PASSWORD])?;
    honest.ask(&["CONFIG", "SET", "maxmemory-clients", &BUDGET.to_string()])?;
    honest.ask(&["SET", "small", "value"])?;
    honest.ask(&["SET", "large", &"x".repeat(LARGE)])?;
    let mut text = format!(
        "| hostile clients | p50 alone, µs | beside, µs | p99 alone, µs | beside, µs | ratio | {name} before, MiB | \
         at most, MiB | account at most, MiB | closed |\n\
         | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n",
    );
    eprint!("{text}");
    for kind in kinds() {
        let (mut alone, mut beside) = (Histogram::<u64>::new(3)?, Histogram::<u64>::new(3)?);
        let closed = number(&mut honest, "evicted_clients")?;
        let before = own_memory(pid)?;
        let (mut most, mut account) = (0, 0);
        for _ in 0..ROUNDS {
            watch(&mut honest, &mut alone, pid)?;
            let is_over = AtomicBool::new(false);
            thread::scope(|scope| -> anyhow::Result<()> {
                let mut hostile = connect(&kind, address);
                let ends: Vec<_> = hostile.iter().map(Wire::closer).collect();
                while !hostile.is_empty() {
                    let some = hostile.split_off(hostile.len().saturating_sub(kind.clients.div_ceil(THREADS)));
                    let (kind, is_over) = (&kind, &is_over);
                    scope.spawn(move || {
                        // SAFETY: a call without pointers, of this thread alone.
                        unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, 19) };
                        attack(kind, some, is_over);
                    });
                }
                thread::sleep(SETTLES);
                let seen = watch(&mut honest, &mut beside, pid);
                let held = number(&mut honest, "mem_clients_normal");
                is_over.store(true, Relaxed);
                ends.into_iter().for_each(|close| close());
                most = most.max(seen?);
                account = account.max(held?);
                Ok(())
            })?;
            // What they left behind.
            thread::sleep(SETTLES);
        }
        let micros = |of: &Histogram<u64>, quantile| of.value_at_quantile(quantile) as f64 / 1e3;
        let line = format!(
            "| {} | {:.0} | {:.0} | {:.0} | {:.0} | {:.1} | {} | {} | {} | {} |",
            kind.name,
            micros(&alone, 0.5),
            micros(&beside, 0.5),
            micros(&alone, 0.99),
            micros(&beside, 0.99),
            micros(&beside, 0.99) / micros(&alone, 0.99),
            before >> 20,
            most >> 20,
            account >> 20,
            number(&mut honest, "evicted_clients")? - closed,
        );
        eprintln!("{line}");
        let _ = writeln!(text, "{line}");
    }
    Ok(text)
}

fn attack(kind: &Kind, mut clients: Vec<Wire>, is_over: &AtomicBool) {
    let mut gone = vec![false; clients.len()];
    for nth in 0.. {
        for (wire, gone) in clients.iter_mut().zip(&mut gone) {
            if is_over.load(Relaxed) {
                return;
            }
            *gone = *gone || (kind.does)(wire, nth).is_err();
        }
        let over = Instant::now() + if gone.iter().all(|gone| *gone) { ROUND } else { kind.waits };
        while Instant::now() < over && !is_over.load(Relaxed) {
            thread::sleep(kind.waits.min(Duration::from_millis(50)));
        }
    }
}

/// As many as get in.
fn connect(kind: &Kind, address: &str) -> Vec<Wire> {
    let one = || {
        let mut wire = Wire::tcp(address).ok()?;
        match kind.authenticated {
            true => wire.ask(&["AUTH", PASSWORD]).ok().map(|_| wire),
            false => Some(wire),
        }
    };
    (0..kind.clients).filter_map(|_| one()).collect()
}

/// Watches the honest client for a round: the most memory that annexd had.
fn watch(honest: &mut Wire, latency: &mut Histogram<u64>, pid: i32) -> anyhow::Result<u64> {
    let (began, mut most) = (Instant::now(), 0);
    while began.elapsed() < ROUND {
        let asked = Instant::now();
        honest.ask(&["GET", "small"])?;
        latency.record(asked.elapsed().as_nanos() as u64)?;
        most = most.max(own_memory(pid)?);
        thread::sleep(EVERY.saturating_sub(asked.elapsed()));
    }
    Ok(most)
}

fn number(honest: &mut Wire, field: &str) -> anyhow::Result<usize> {
    let info = String::from_utf8_lossy(&honest.ask(&["INFO", "everything"])?).into_owned();
    let value = info.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    Ok(value.with_context(|| format!("no {field} in INFO"))?.parse()?)
}

fn send(wire: &mut Wire, bytes: &[u8]) -> std::io::Result<()> {
    wire.sender()?.write_all(bytes)
}

fn kinds() -> Vec<Kind> {
    const AT_ONCE: Duration = Duration::ZERO;
    const SLOWLY: Duration = Duration::from_millis(100);
    let kind = |name, clients, waits, does| Kind { name, clients, authenticated: true, waits, does };
    vec![
        kind("nobody", 0, SLOWLY, |_, _| Ok(())),
        kind("40 that do not read values of 16 MiB", 40, SLOWLY, |wire, _| send(wire, b"GET large\r\n")),
        kind("40 that do not read parts of 16 MiB", 40, SLOWLY, |wire, _| send(wire, b"GETRANGE large 0 -1\r\n")),
        kind("4 that read values of 16 MiB as fast as they can", 4, AT_ONCE, |wire, _| {
            wire.ask(&["GET", "large"]).map(drop)
        }),
        kind("40 that write 16 MiB bit by bit", 40, Duration::from_millis(5), |wire, nth| match nth % 4096 {
            0 => send(wire, b"*3\r\n$3\r\nSET\r\n$4\r\nslow\r\n$16773120\r\n"),
            4095 => send(wire, &[&[b'x'; 4096][..], b"\r\n"].concat()),
            _ => send(wire, &[b'x'; 4096]),
        }),
        Kind {
            name: "2000 half requests without the password",
            clients: 2000,
            authenticated: false,
            waits: SLOWLY,
            does: |wire, nth| match nth {
                0 => send(wire, &[b"*10\r\n$16384\r\n", &[b'x'; 12_000][..]].concat()),
                _ => send(wire, b"x"),
            },
        },
        kind("1 with 20,000,000 empty arguments", 1, AT_ONCE, |wire, nth| match nth % 20_000 {
            0 => send(wire, b"*20000000\r\n"),
            _ => send(wire, &b"$0\r\n\r\n".repeat(1000)),
        }),
        kind("9000 idle", 9000, SLOWLY, |_, _| Ok(())),
        kind("8 with pipelines that they do not read", 8, AT_ONCE, |wire, _| {
            send(wire, &b"GET small\r\n".repeat(10_000))
        }),
        kind("1 with a MULTI without an end", 1, AT_ONCE, |wire, nth| match nth {
            0 => send(wire, b"MULTI\r\n"),
            _ => send(wire, &b"SET key value\r\n".repeat(1000)),
        }),
    ]
}
