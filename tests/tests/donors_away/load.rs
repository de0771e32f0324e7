//! Clients of the KV API that write and read, each at its own pace, and know what must be there.
//!
//! Each key is written by one client, with values that tell the key and a number that grows. So a
//! key must hold what was acknowledged last, or one that was refused after that: a refused write
//! may have reached some donors.

use annex_tests::kv::wire::{Wire, text};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const WRITERS: usize = 3;
const READERS: usize = 2;
/// So many are written once before anything happens, and of these a quarter never again. The others
/// come while clients write: more room is wanted all the time.
const FIRST: usize = 3000;
const KEYS: usize = 30_000;
/// Of so many writes one is to a key that there is.
const OVERWRITES: u32 = 6;
/// Between two requests of a client: the machine is not to be what slows them.
const PACE: Duration = Duration::from_millis(2);
/// Bytes of a value.
const LENGTHS: std::ops::RangeInclusive<usize> = 100..=16 << 10;

fn name(key: usize) -> String {
    format!("key:{key}")
}

fn value(key: usize, number: u64) -> String {
    let mut random = StdRng::seed_from_u64(number * KEYS as u64 + key as u64);
    let length = random.random_range(LENGTHS);
    let head = format!("{key}:{number}:");
    let filler = char::from(b'a' + random.random_range(0..26u8));
    head.chars().chain(std::iter::repeat(filler)).take(length).collect()
}

/// The number of a key's value.
fn number(key: usize, bytes: &[u8]) -> Result<u64, String> {
    let told = std::str::from_utf8(bytes).ok().and_then(|text| text.split(':').nth(1)?.parse().ok());
    let wrong = || format!("{} has wrong bytes: {:.60}", name(key), String::from_utf8_lossy(bytes));
    let number = told.ok_or_else(wrong)?;
    if value(key, number).as_bytes() == bytes { Ok(number) } else { Err(wrong()) }
}

/// What is known of a key. Zero: it was never written.
#[derive(Default)]
struct Known {
    acknowledged: AtomicU64,
    /// Refused since.
    refused: Mutex<Vec<u64>>,
}

/// What clients met.
#[derive(Clone, Debug, Default)]
pub struct Met {
    pub writes: u64,
    /// How long the slowest write took, and when it began.
    pub slowest: Duration,
    pub slowest_at: Duration,
    pub slow: u64,
    /// How much longer than asked for somebody slept who did nothing else: for so long the machine
    /// was not ours.
    pub stall: Duration,
    pub refused: Vec<String>,
    pub reads: u64,
    pub slowest_read: Duration,
    /// Reads that were answered with an error.
    pub unreadable: Vec<String>,
    /// Keys that are not there.
    pub gone: Vec<String>,
    /// Keys that hold what was written before what was acknowledged last.
    pub stale: Vec<String>,
    pub wrong: Vec<String>,
}

/// A write that takes longer is a failure.
pub const BOUND: Duration = Duration::from_secs(1);

impl Met {
    fn add(&mut self, other: Met) {
        self.writes += other.writes;
        if other.slowest > self.slowest {
            (self.slowest, self.slowest_at) = (other.slowest, other.slowest_at);
        }
        self.slow += other.slow;
        self.stall = self.stall.max(other.stall);
        self.reads += other.reads;
        self.slowest_read = self.slowest_read.max(other.slowest_read);
        self.refused.extend(other.refused);
        self.unreadable.extend(other.unreadable);
        self.gone.extend(other.gone);
        self.stale.extend(other.stale);
        self.wrong.extend(other.wrong);
    }

    fn read(&mut self, key: usize, least: u64, refused: &[u64], reply: &[u8]) {
        self.reads += 1;
        let bytes = match text(reply) {
            Ok(Some(bytes)) => bytes,
            // It was never written.
            Ok(None) if least == 0 => return,
            Ok(None) => {
                self.gone.push(format!("{} is not there, {least} was acknowledged", name(key)));
                return;
            }
            Err(error) => {
                self.unreadable.push(error);
                return;
            }
        };
        match number(key, &bytes) {
            Ok(number) if number >= least || refused.contains(&number) => {}
            Ok(number) => self.stale.push(format!("{} has {number}, {least} was acknowledged", name(key))),
            Err(wrong) => self.wrong.push(wrong),
        }
    }
}

/// See the module's header.
pub struct Load {
    socket: PathBuf,
    known: Arc<Vec<Known>>,
    over: Arc<AtomicBool>,
    clients: Vec<JoinHandle<Met>>,
    began: Instant,
}

impl Load {
    /// Writes the first keys once.
    pub fn fill(socket: &Path) -> Load {
        let known: Vec<Known> = (0..KEYS).map(|_| Known::default()).collect();
        let mut wire = Wire::unix(socket).expect("the KV API listens");
        for at in (0..FIRST).step_by(100) {
            let keys = at..at + 100;
            let sets: Vec<Vec<String>> = keys.clone().map(|key| vec!["SET".into(), name(key), value(key, 1)]).collect();
            let replies = wire.ask_all(&sets).expect("answers");
            assert!(replies.iter().all(|reply| reply == b"+OK\r\n"), "a write was refused before anything happened");
            keys.for_each(|key| known[key].acknowledged.store(1, Ordering::Release));
        }
        Load {
            socket: socket.into(),
            known: Arc::new(known),
            over: Arc::default(),
            clients: Vec::new(),
            began: Instant::now(),
        }
    }

    pub fn start(&mut self) {
        self.began = Instant::now();
        for nth in 0..WRITERS + READERS {
            let (known, over, began) = (self.known.clone(), self.over.clone(), self.began);
            let wire = Wire::unix(&self.socket).expect("the KV API listens");
            let random = StdRng::seed_from_u64(nth as u64);
            self.clients.push(std::thread::spawn(move || match nth < WRITERS {
                true => write(nth, &known, &over, began, wire, random),
                false => read(&known, &over, wire, random),
            }));
        }
        let over = self.over.clone();
        self.clients.push(std::thread::spawn(move || Met { stall: longest_stall(&over), ..Met::default() }));
    }

    /// Ends the clients, and has all keys read once more.
    pub fn end(self) -> Met {
        self.over.store(true, Ordering::Relaxed);
        let mut met = Met::default();
        self.clients.into_iter().for_each(|client| met.add(client.join().expect("a client")));
        let mut wire = Wire::unix(&self.socket).expect("the KV API listens");
        for (key, known) in self.known.iter().enumerate() {
            let refused = known.refused.lock().expect("no client panicked");
            let least = known.acknowledged.load(Ordering::Acquire);
            if least > 0 || !refused.is_empty() {
                let reply = wire.ask(&["GET", &name(key)]).expect("an answer");
                met.read(key, least, &refused, &reply);
            }
        }
        met
    }
}

fn write(nth: usize, known: &[Known], over: &AtomicBool, began: Instant, mut wire: Wire, mut random: StdRng) -> Met {
    let mut met = Met::default();
    let mut mine: Vec<usize> = (0..FIRST).filter(|key| key % 4 != 3 && key % WRITERS == nth).collect();
    let mut new = (FIRST..KEYS).filter(|key| key % WRITERS == nth);
    let mut next = 2;
    while !over.load(Ordering::Relaxed) {
        let overwrites = random.random_ratio(1, OVERWRITES);
        mine.extend(new.next().filter(|_| !overwrites));
        let at = if overwrites { random.random_range(0..mine.len()) } else { mine.len() - 1 };
        let key = mine[at];
        let called = Instant::now();
        let reply = wire.ask(&["SET", &name(key), &value(key, next)]).expect("an answer to SET");
        let took = called.elapsed();
        met.writes += 1;
        met.slow += u64::from(took > BOUND);
        if took > met.slowest {
            (met.slowest, met.slowest_at) = (took, called - began);
        }
        if reply.starts_with(b"+OK") {
            known[key].acknowledged.store(next, Ordering::Release);
            known[key].refused.lock().expect("no client panicked").clear();
        } else {
            let said = String::from_utf8_lossy(&reply).trim_end().to_owned();
            met.refused.push(format!("{said} (begun at {:.1?}, took {took:.1?})", called - began));
            known[key].refused.lock().expect("no client panicked").push(next);
        }
        next += 1;
        std::thread::sleep(PACE);
    }
    met
}

fn longest_stall(over: &AtomicBool) -> Duration {
    let mut longest = Duration::ZERO;
    while !over.load(Ordering::Relaxed) {
        let began = Instant::now();
        std::thread::sleep(PACE);
        longest = longest.max(began.elapsed() - PACE);
    }
    longest
}

fn read(known: &[Known], over: &AtomicBool, mut wire: Wire, mut random: StdRng) -> Met {
    let mut met = Met::default();
    while !over.load(Ordering::Relaxed) {
        let key = random.random_range(0..2 * FIRST);
        let least = known[key].acknowledged.load(Ordering::Acquire);
        let called = Instant::now();
        let reply = wire.ask(&["GET", &name(key)]).expect("an answer to GET");
        met.slowest_read = met.slowest_read.max(called.elapsed());
        met.read(key, least, &[], &reply);
        std::thread::sleep(PACE);
    }
    met
}
