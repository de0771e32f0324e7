//! Donors that lie to a real annexd, in every way that the protocols have, beside honest ones and a
//! program that is paged. It reads its own bytes, whatever is said; annexd stays as it is, and says
//! which donor is at fault.

use super::lies::{self, FORGED, Shape};
use super::scripted_donor::{Donor as Scripted, SLAB, Say, Script};
use super::{MINUTE, goes_on};
use annex_fabric::tcp::frame::{ANSWER_LEN, Request as Operation, Verb};
use annex_shared::ids::SlabId;
use annex_shared::printable::is_control;
use annex_shared::wire::{Event, Request, Welcome, encode_frame};
use annex_tests::testbed::process::own_memory;
use annex_tests::testbed::{Donor, Job, Testbed, bins, directory, port, wait_for};
use nix::sys::signal::Signal;
use std::collections::{BTreeMap, VecDeque};
use std::io::{self, Write};
use std::net::TcpStream;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tempfile::NamedTempFile;

/// What annexd may grow by, however it is lied to: with the buffers of connections to each donor.
const ALLOWANCE: u64 = 128 << 20;
/// What people read of one donor.
const READABLE: usize = 4096;

/// An annexd with honest donors and such that lie, and a program.
struct Bed {
    // Dropped in this order.
    program: Job,
    bed: Testbed,
    before: u64,
    liars: Vec<Scripted>,
    _config: NamedTempFile,
}

impl Bed {
    fn new(honest: usize, liars: usize, script: &Arc<impl Script>) -> Bed {
        let mut config = NamedTempFile::new_in(directory()).expect("the folder is ours");
        // The smaller the slabs, the more of them are asked for.
        let pool = "[pool]\nslab_size = '256K'\nop_timeout = '1s'\ncontrol_timeout = '1s'\nlost_after = '20s'\n";
        config.write_all(pool.as_bytes()).expect("it is ours");
        let mut builder = Testbed::builder().daemon_arg("--config").daemon_arg(config.path().display().to_string());
        for _ in 0..honest {
            builder = builder.donor(Donor::tcp().capacity("128M").agent_args(&["--slab-size", "256K"]));
        }
        let liar = |nth| Scripted::start(port::free(), &format!("liar{nth}"), script.clone());
        let liars: Vec<Scripted> = (0..liars).map(liar).collect();
        for liar in &liars {
            builder = builder.daemon_arg("--donor").daemon_arg(liar.addr.to_string());
        }
        let bed = builder.start();
        let before = own_memory(bed.annexd.pid()).expect("it runs");
        let mut stress = Command::new(bins::find("annex-stress"));
        stress.args(["--size", "40M", "--threads", "2", "--seconds", "0", "--features", "rw,scan", "--seed", "29"]);
        stress.arg("--dir").arg(directory());
        let mut program = bed.run("program", "12M", stress);
        program.wait_says("ready", MINUTE);
        Bed { program, bed, before, liars, _config: config }
    }

    /// The program was right, annexd has not grown, and who looks sees who is at fault.
    fn end(mut self, lines: usize) {
        goes_on("program", &self.bed);
        let grown = own_memory(self.bed.annexd.pid()).expect("it runs").saturating_sub(self.before);
        assert!(grown < ALLOWANCE, "annexd grew by {grown} bytes");
        let status = self.bed.status();
        for liar in &self.liars {
            let address = liar.addr.to_string();
            let Some(seen) = status.donors.iter().find(|donor| donor.address == address) else {
                panic!("{address} is not listed: {:?}", status.donors)
            };
            assert!(!seen.why.is_empty(), "nothing is said of {seen:?}");
            for text in [&seen.name, &seen.why] {
                assert!(!text.contains(is_control) && text.len() < READABLE, "{} bytes: {text:.300}", text.len());
            }
        }
        let listed = self.bed.ask::<&str>("donors", []).succeeded().stdout;
        assert!(!listed.contains(|c| c != '\n' && is_control(c)), "{listed:?}");
        self.program.signal(Signal::SIGTERM);
        self.program.wait(MINUTE).succeeded();
        self.bed.annexd.signal(Signal::SIGTERM);
        assert!(self.bed.annexd.wait(MINUTE).is_some_and(|status| status.success()), "{}", self.bed.annexd.log());
        let log = self.bed.annexd.stderr();
        let (said, longest) = (log.lines().count(), log.lines().map(str::len).max().unwrap_or(0));
        println!("annexd grew by {} KiB and said {said} lines, of {longest} bytes at most", grown >> 10);
        assert!(said < lines && longest < READABLE, "{said} lines, of {longest} bytes at most");
        assert!(!log.contains("panicked"), "{log}");
        assert!(!log.contains('\x1b'), "an escape sequence is in the log");
        let forged = FORGED.lines().nth(1).expect("its second line");
        assert!(!log.lines().any(|line| line.starts_with(forged.trim_end_matches('\u{202e}').trim_end())), "{log}");
    }
}

/// Which question, and which event answers it.
fn question(request: &Request) -> (&'static str, &'static str) {
    match request {
        Request::Hello { .. } => ("Hello", "Welcome"),
        Request::Lease { .. } => ("Lease", "Leased"),
        Request::Renew => ("Renew", "Renewed"),
        Request::Return { .. } => ("Return", "Returned"),
    }
}

/// Lies, each told once.
struct Untold(Mutex<BTreeMap<&'static str, VecDeque<Told>>>);

/// What is odd about it, and its bytes.
type Told = (String, Vec<u8>);

impl Untold {
    fn take(&self, of: &'static str) -> Option<Told> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let next = all.get_mut(of)?.pop_front();
        all.retain(|_, left| !left.is_empty());
        next
    }

    fn has(&self, of: &'static str) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).contains_key(of)
    }

    fn left(&self) -> String {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.iter().map(|(of, left)| format!("{} of {of}, ", left.len())).collect()
    }
}

/// In place of every answer, every event with every odd value. Of events that can't be the answer
/// one of each kind will do.
struct EveryAnswer(Untold);

impl EveryAnswer {
    fn new() -> EveryAnswer {
        let numbers = |field: &str| match field {
            "version" => 4,
            "slab_size" => u128::from(SLAB),
            "lease_ttl_ms" => 300,
            "free_slabs" | "capacity_slabs" => 1000,
            _ => 9999,
        };
        let events: Vec<Shape> = lies::shapes::<Event>(&numbers).into_iter().map(|(shape, _)| shape).collect();
        let kind = |shape: &Shape| shape.name.split('/').next().unwrap_or_default().to_owned();
        let mut all = BTreeMap::new();
        for request in lies::shapes::<Request>(&numbers).into_iter().map(|(_, request)| request) {
            let (name, answer) = question(&request);
            let mut of_it = VecDeque::new();
            for (nth, shape) in events.iter().enumerate() {
                of_it.push_back((shape.name.clone(), lies::frame(&lies::encode(&shape.tokens))));
                // Of the answer itself the way with everything in it is attacked.
                let is_first = nth == 0 || kind(&events[nth - 1]) != kind(shape);
                if kind(shape) == answer && is_first {
                    of_it.extend(lies::lies(shape));
                } else if name == "Hello" && kind(shape) == "Refused" {
                    of_it.extend(lies::values(shape));
                }
            }
            all.insert(name, of_it);
        }
        EveryAnswer(Untold(Mutex::new(all)))
    }
}

impl Script for EveryAnswer {
    fn control(&self, asked: &Request, _honest: &Event) -> Say {
        match self.0.take(question(asked).0) {
            Some((_, lie)) => Say::Instead(lie),
            // One whose lie was taken for an answer: it comes again for the next one.
            None if matches!(asked, Request::Renew) && self.0.has("Hello") => Say::Last(Vec::new()),
            None => Say::Honestly,
        }
    }
}

#[test]
fn no_answer_of_a_donor_costs_a_program_a_byte() {
    let script = Arc::new(EveryAnswer::new());
    let lies = script.0.left();
    let bed = Bed::new(2, 64, &script);
    wait_for("all lies to be told", 2 * MINUTE, || script.0.left().is_empty());
    println!("told {lies}");
    bed.end(20_000);
}

/// In place of every answer on a data connection, and before it, after it and late: each field of
/// it with every odd value, and less or more than it.
struct EveryOperation {
    asked: AtomicU64,
    untold: Mutex<Vec<Lie>>,
}

type Lie = fn(&[u8]) -> Say;

fn with(honest: &[u8], at: usize, value: u8) -> Say {
    let mut odd = honest.to_vec();
    odd[at] ^= value;
    Say::Instead(odd)
}

const OPERATIONS: &[Lie] = &[
    // The status, the operation, the zeros, the length, the number, the value.
    |h| with(h, 0, 1),
    |h| with(h, 0, 2),
    |h| with(h, 0, 3),
    |h| with(h, 0, 0xff),
    |h| with(h, 1, 1),
    |h| with(h, 1, 3),
    |h| with(h, 1, 0xf0),
    |h| with(h, 2, 1),
    |h| with(h, 3, 0x80),
    |h| with(h, 4, 1),
    |h| with(h, 5, 0x10),
    |h| with(h, 7, 0xff),
    |h| with(h, 8, 1),
    |h| with(h, 15, 0x80),
    |h| with(h, 16, 0xff),
    // Its last byte: of a READ, one of the page.
    |h| with(h, h.len() - 1, 0x10),
    |h| Say::Before(h.to_vec()),
    |h| Say::After(h.to_vec()),
    |_| Say::After(vec![0]),
    |_| Say::After(vec![0xff; 5000]),
    |_| Say::Before(vec![0; ANSWER_LEN]),
    |_| Say::Instead(vec![0; 1 << 20]),
    |_| Say::Last(Vec::new()),
    |h| Say::Last(h[..ANSWER_LEN / 2].to_vec()),
    |h| Say::Last(h[..h.len() - 1].to_vec()),
    |h| Say::Instead(h[..h.len() - 1].to_vec()),
    |_| Say::Instead(Vec::new()),
    |_| Say::Late(Duration::from_millis(300)),
    |_| Say::Late(Duration::from_millis(1500)),
    // All of it is well but the bytes that lie there.
    |h| Say::Instead([&h[..ANSWER_LEN], &vec![0; h.len() - ANSWER_LEN]].concat()),
];

impl Script for EveryOperation {
    fn data(&self, asked: &Operation, honest: &[u8]) -> Say {
        // In between it is honest, so that it is used.
        if self.asked.fetch_add(1, Ordering::Relaxed) % 5 != 4 {
            return Say::Honestly;
        }
        // A new operation does not compile until it is lied about.
        match asked.verb {
            Verb::Read | Verb::Write | Verb::CompareSwap | Verb::Fence => {}
        }
        let lie = self.untold.lock().unwrap_or_else(PoisonError::into_inner).pop();
        lie.map_or(Say::Honestly, |lie| lie(honest))
    }
}

#[test]
fn no_answer_to_an_operation_costs_a_program_a_byte() {
    // Each is told of WRITEs as well as of READs, as they come.
    let untold = Mutex::new([OPERATIONS, OPERATIONS, OPERATIONS].concat());
    let script = Arc::new(EveryOperation { asked: AtomicU64::new(0), untold });
    let bed = Bed::new(1, 1, &script);
    let left = || script.untold.lock().unwrap_or_else(PoisonError::into_inner).len();
    wait_for("all lies to be told", 2 * MINUTE, || left() == 0);
    // A replica that comes and goes is told of: the longer it takes, the oftener.
    bed.end(20_000);
}

/// Its name is what it likes.
struct Called(String);

impl Script for Called {
    fn control(&self, _asked: &Request, honest: &Event) -> Say {
        match honest {
            Event::Welcome(welcome) => {
                let welcome = Event::Welcome(Welcome { name: self.0.clone(), ..welcome.clone() });
                Say::Instead(encode_frame(&welcome).expect("a valid message"))
            }
            _ => Say::Honestly,
        }
    }
}

/// It was the first that had the name or the address: one that called itself by another's address
/// was removed in its place, or the other way round.
#[test]
fn a_donor_that_goes_by_anothers_name_or_address_is_not_taken_for_it() {
    let (first, second) = (port::free(), port::free());
    let start = |addr, name: String| Scripted::start(addr, "", Arc::new(Called(name)));
    let liars = [start(first, second.to_string()), start(second, "twin".into()), start(port::free(), "twin".into())];
    let mut builder = Testbed::builder();
    for liar in &liars {
        builder = builder.daemon_arg("--donor").daemon_arg(liar.addr.to_string());
    }
    let mut bed = builder.start();
    bed.wait_ready(liars.len());
    let refused = bed.ask("donors", ["remove", "twin"]);
    assert!(refused.stderr.contains("several donors call themselves twin"), "{refused}");
    bed.ask("donors", ["remove", &second.to_string()]).succeeded();
    let leaving: Vec<String> = bed.status().donors.into_iter().filter(|d| d.draining).map(|d| d.address).collect();
    assert!(leaving.is_empty() || leaving == [second.to_string()], "{leaving:?}");
    let there = || bed.status().donors.iter().map(|d| d.address.clone()).collect::<Vec<_>>();
    wait_for("the second to be removed", MINUTE, || !there().contains(&second.to_string()));
    assert!(there().contains(&first.to_string()), "{:?}", there());
}

/// Says what nobody asked for, for as long as it is let.
struct Chatter {
    said: Vec<u8>,
    cut_off: AtomicU64,
}

impl Script for Chatter {
    fn unasked(&self, to: &mut TcpStream) -> io::Result<()> {
        let many = self.said.repeat(100);
        loop {
            if let Err(error) = to.write_all(&many) {
                self.cut_off.fetch_add(1, Ordering::Relaxed);
                return Err(error);
            }
        }
    }
}

/// Each message was a line in the log, and what could not be worked off so fast was kept.
#[test]
fn a_donor_that_talks_without_end_is_cut_off() {
    let recall = Event::Recall { slabs: (0..1000).map(SlabId).collect(), deadline_ms: 1 };
    let said = encode_frame(&recall).expect("a valid message");
    let script = Arc::new(Chatter { said, cut_off: AtomicU64::new(0) });
    let bed = Bed::new(2, 1, &script);
    wait_for("it to be cut off", MINUTE, || script.cut_off.load(Ordering::Relaxed) >= 4);
    bed.end(400);
}
