//! The KV API's promise, under faults: what concurrent clients see of each key can have happened in
//! one order, and what was acknowledged is there, while donors are killed, stopped past their
//! lease, cut off and slow, and annexd is killed. Some keys are written once, before everything
//! else, and read again and again. That what looks for an order finds the lack of one is tried on a
//! server that lies.
//!
//! `ANNEX_KV_ROUNDS` sets how many faults there are.

use annex_tests::kv::history::{Act, Operation, check};
use annex_tests::kv::liar::{self, Lie};
use annex_tests::kv::wire::{Wire, text};
use annex_tests::testbed::{Donor, Testbed, wait_for};
use nix::sys::signal::Signal;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const CLIENTS: u64 = 5;
const KEYS: usize = 6;
/// Keys that are written once and for all.
const OLD: usize = 40;
/// How long clients go on before the fault, and after it has happened.
const BEFORE: Duration = Duration::from_millis(200);
const AFTER: Duration = Duration::from_millis(400);
/// Leases last for 2 s, and are renewed three times in that.
const NOTICED: Duration = Duration::from_secs(3);
/// How long after a fault all must be whole.
const WHOLE: Duration = Duration::from_secs(60);

fn rounds(default: usize) -> usize {
    std::env::var("ANNEX_KV_ROUNDS").map_or(default, |n| n.parse().expect("ANNEX_KV_ROUNDS is a number"))
}

/// A key of a round, or behind those an old one.
fn key(round: usize, nth: usize) -> String {
    if nth < KEYS { format!("round{round}:key{nth}") } else { format!("old:{nth}") }
}

/// A value that tells its number, of any size up to two pages.
fn value(number: u64) -> String {
    format!("{number}:{}", "x".repeat((number * 7919 % 8000) as usize))
}

fn number(value: &[u8]) -> u64 {
    let text = std::str::from_utf8(value).expect("values are text");
    let (number, _) = text.split_once(':').expect("a number and a colon");
    let number = number.parse().expect("a number");
    assert!(text == self::value(number), "a value is cut short or mixed up: {text:.40}");
    number
}

struct Client {
    socket: PathBuf,
    wire: Option<Wire>,
}

impl Client {
    fn new(socket: &Path) -> Client {
        Client { socket: socket.into(), wire: None }
    }

    /// A reply, or nothing if there was none: the connection is gone then.
    fn ask(&mut self, words: &[&str]) -> Option<Vec<u8>> {
        if self.wire.is_none() {
            self.wire = Wire::unix(&self.socket).ok();
        }
        let reply = self.wire.as_mut()?.ask(words).ok();
        if reply.is_none() {
            self.wire = None;
        }
        reply
    }

    /// What came of an act, and whether an answer came. `None`: nothing was done.
    fn act(&mut self, key: &str, act: Act) -> Option<(Act, bool)> {
        if self.wire.is_none() {
            // Nothing is sent without a connection.
            self.wire = Some(Wire::unix(&self.socket).ok()?);
        }
        let reply = match act {
            Act::Write(Some(number)) => self.ask(&["SET", key, &value(number)]),
            Act::Write(None) => self.ask(&["DEL", key]),
            Act::Read(_) => self.ask(&["GET", key]),
        };
        let Some(reply) = reply else { return Some((act, false)) };
        match act {
            _ if reply.starts_with(b"-LOADING") => None,
            Act::Read(_) => text(&reply).ok().map(|value| (Act::Read(value.as_deref().map(number)), true)),
            // One that was refused may have reached some donors.
            Act::Write(_) => Some((act, !reply.starts_with(b"-"))),
        }
    }
}

type Seen = Vec<(usize, Operation)>;

/// Clients that write, read and remove the keys of a round until they are told to end.
fn clients(socket: &Path, round: usize, numbers: &Arc<AtomicU64>, while_they_run: impl FnOnce()) -> Seen {
    let over = Arc::new(AtomicBool::new(false));
    let threads: Vec<_> = (0..CLIENTS)
        .map(|nth| {
            let (over, numbers) = (over.clone(), numbers.clone());
            let mut client = Client::new(socket);
            let mut random = StdRng::seed_from_u64(round as u64 * 100 + nth);
            std::thread::spawn(move || {
                let mut seen = Seen::new();
                while !over.load(Ordering::Relaxed) {
                    let at = random.random_range(0..KEYS);
                    let (at, act) = match random.random_range(0..12) {
                        0..5 => (at, Act::Read(None)),
                        5..9 => (at, Act::Write(Some(numbers.fetch_add(1, Ordering::Relaxed)))),
                        9 => (at, Act::Write(None)),
                        _ => (random.random_range(KEYS..KEYS + OLD), Act::Read(None)),
                    };
                    let called = Instant::now();
                    match client.act(&key(round, at), act) {
                        Some((act, answers)) => {
                            let answered = answers.then(Instant::now);
                            seen.push((at, Operation { act, called, answered }));
                        }
                        None => std::thread::sleep(Duration::from_millis(2)),
                    }
                }
                seen
            })
        })
        .collect();
    while_they_run();
    over.store(true, Ordering::Relaxed);
    threads.into_iter().flat_map(|thread| thread.join().expect("a client")).collect()
}

/// Whole for so long that what befell a donor has been noticed: two that fail one after the other
/// may take a page's only two copies with them.
fn wait_whole(bed: &Testbed, donors: usize) {
    let mut since = None;
    wait_for("all is whole again", WHOLE, || {
        since = if is_whole(bed, donors) { since.or(Some(Instant::now())) } else { None };
        since.is_some_and(|since| since.elapsed() > NOTICED)
    });
}

fn is_whole(bed: &Testbed, donors: usize) -> bool {
    let status = bed.status();
    let up = status.donors.iter().filter(|d| d.state == annex_shared::api::DonorState::Up).count();
    up == donors && status.pool.degraded_extents == 0
}

/// Writes the old keys, and tells their values.
fn write_old(socket: &Path, numbers: &AtomicU64) -> Vec<u64> {
    let mut client = Client::new(socket);
    let write = |at| {
        let number = numbers.fetch_add(1, Ordering::Relaxed);
        let done = client.act(&key(0, at), Act::Write(Some(number)));
        assert_eq!(done, Some((Act::Write(Some(number)), true)), "{} can't be written", key(0, at));
        number
    };
    (KEYS..KEYS + OLD).map(write).collect()
}

/// Reads all keys of a round and the old ones, and holds what was seen against one order. How many
/// answers there were, or what no order explains.
fn one_order(socket: &Path, round: usize, old: &[u64], mut seen: Seen) -> Result<usize, String> {
    let mut client = Client::new(socket);
    for at in 0..KEYS + OLD {
        let called = Instant::now();
        let reply = client.ask(&["GET", &key(round, at)]).expect("a connection");
        let value = text(&reply).unwrap_or_else(|error| panic!("{} can't be read: {error}", key(round, at)));
        let act = Act::Read(value.as_deref().map(number));
        seen.push((at, Operation { act, called, answered: Some(Instant::now()) }));
    }
    for at in 0..KEYS + OLD {
        let of_key: Vec<Operation> = seen.iter().filter(|(n, _)| *n == at).map(|(_, op)| *op).collect();
        let first = at.checked_sub(KEYS).map(|nth| old[nth]);
        if let Err(stuck) = check(&of_key, first) {
            let began = stuck.iter().map(|op| op.called).min().expect("some");
            let since = |at: Instant| at.saturating_duration_since(began).as_micros();
            let told: Vec<String> = stuck
                .iter()
                .take(12)
                .map(|op| format!("{:?} {} to {:?}", op.act, since(op.called), op.answered.map(since)))
                .collect();
            return Err(format!("no order explains {}, at first {first:?}:\n{}", key(round, at), told.join("\n")));
        }
    }
    Ok(seen.iter().filter(|(_, op)| op.answered.is_some()).count())
}

fn assert_one_order(socket: &Path, round: usize, old: &[u64], seen: Seen) -> usize {
    one_order(socket, round, old, seen).unwrap_or_else(|why| panic!("{why}"))
}

#[test]
fn a_server_that_lies_is_found_out() {
    let bed = Testbed::builder().donor(Donor::shm()).donor(Donor::shm()).kv("").start();
    let numbers = Arc::new(AtomicU64::new(1));
    let old = write_old(&bed.kv_socket(), &numbers);
    let found = [Lie::Honest, Lie::Forgets, Lie::Stale].map(|lie| {
        let socket = bed.path().join(format!("{lie:?}.sock"));
        liar::start(&socket, &bed.kv_socket(), lie).expect("a socket");
        let seen = clients(&socket, lie as usize, &numbers, || std::thread::sleep(AFTER));
        assert!(seen.len() > 300, "{} answers of the {lie:?} one are too few to prove anything", seen.len());
        one_order(&bed.kv_socket(), lie as usize, &old, seen)
    });
    found[0].as_ref().unwrap_or_else(|why| panic!("{why}"));
    for lies in &found[1..] {
        assert!(lies.as_ref().is_err_and(|why| why.contains("key")), "{lies:?}");
    }
    // An old key that is another one now.
    let mut lost = old.clone();
    lost[OLD / 2] += 1;
    let found = one_order(&bed.kv_socket(), 3, &lost, Seen::new());
    assert!(found.as_ref().is_err_and(|why| why.contains(&key(0, KEYS + OLD / 2))), "{found:?}");
}

#[test]
fn no_acknowledged_write_is_lost_when_annexd_is_killed_again_and_again() {
    let mut bed = Testbed::builder().donor(Donor::tcp()).donor(Donor::shm()).seal(true).kv(",cache=1M").start();
    let (socket, numbers) = (bed.kv_socket(), Arc::new(AtomicU64::new(1)));
    let old = write_old(&socket, &numbers);
    let mut answers = 0;
    for round in 0..rounds(12) {
        let seen = clients(&socket, round, &numbers, || {
            std::thread::sleep(BEFORE);
            bed.start_again(None);
            let mut probe = Client::new(&socket);
            wait_for("keys are served again", WHOLE, || {
                probe.ask(&["GET", "none"]).is_some_and(|r| r.starts_with(b"$-1"))
            });
            std::thread::sleep(AFTER);
        });
        answers += assert_one_order(&socket, round, &old, seen);
        // What was written in rounds before is there still.
        let mut client = Client::new(&socket);
        for before in 0..round {
            let kept = client.ask(&["EXISTS", &key(before, 0)]);
            assert!(kept.is_some(), "no answer");
        }
    }
    println!("{answers} answers, none of them wrong");
    assert!(answers > 1000, "{answers} answers are too few to prove anything");
    assert!(!bed.annexd_logs().contains("are lost"), "{}", bed.annexd_logs());
}

#[test]
fn what_clients_see_has_one_order_whatever_befalls_donors() {
    let donor = || Donor::tcp().lease_ttl("2s").capacity("1G");
    let slow = donor().faults("delay=1/97:20ms,seed=3");
    let mut bed = Testbed::builder().donor(donor().wired()).donor(slow).donor(donor()).kv("").start();
    let (socket, numbers) = (bed.kv_socket(), Arc::new(AtomicU64::new(1)));
    let old = write_old(&socket, &numbers);
    let mut answers = 0;
    for round in 0..rounds(6) {
        let seen = clients(&socket, round, &numbers, || {
            std::thread::sleep(BEFORE);
            match round % 3 {
                0 => bed.agents[2].kill(),
                1 => {
                    bed.agents[1 + round % 2].signal(Signal::SIGSTOP);
                    // Longer than its leases last.
                    std::thread::sleep(Duration::from_millis(2500));
                    bed.agents[1 + round % 2].signal(Signal::SIGCONT);
                }
                _ => {
                    let wire = bed.places[0].wire.as_ref().expect("it is wired");
                    wire.cut();
                    std::thread::sleep(Duration::from_millis(1200));
                    wire.join();
                }
            }
            std::thread::sleep(AFTER);
        });
        if round % 3 == 0 {
            bed.start_agent_again(2);
        }
        wait_whole(&bed, 3);
        answers += assert_one_order(&socket, round, &old, seen);
    }
    println!("{answers} answers, none of them wrong");
    assert!(answers > 1000, "{answers} answers are too few to prove anything");
    let log = bed.annexd_logs();
    assert!(!log.contains("no replica has them"), "{log}");
}
