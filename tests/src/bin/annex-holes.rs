//! `annex-holes`: a program whose threads unmap a part of each of its mappings again and again,
//! wait for a moment, and map that part anew, while another one reads the rest. It verifies all of
//! it. Its mappings are replaced all the time, so that a pager meets each for the first time at any
//! moment of this; or else, if its threads rest before each hole, never, so that a pager knows them
//! well.
//!
//! Arguments: seconds to go on, microseconds for which a hole stays open, milliseconds of rest
//! before each hole (0 if it is left out). Prints `{"checks":…,"wrong":…,"taken":…}`: pages, pages,
//! and mappings that are left alone because something else (a thread's signal stack, what a pager
//! maps) came to lie in their holes. Exit codes: 0 all was well, 1 wrong content.

use annex_tests::stress::content::{Content, PAGE};
use annex_tests::stress::map;
use std::ptr::NonNull;
use std::sync::RwLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

const MAPPINGS: usize = 32;
const PAGES: usize = 256;
/// Threads that punch holes, each into mappings of its own.
const PUNCHERS: usize = 4;
/// The part that comes and goes: only every other page of it is used, so that no page is moved
/// together with one beside the hole.
const HOLE: std::ops::Range<usize> = 100..140;
/// Inaccessible pages between two mappings, which would become one otherwise.
const APART: usize = 16;

/// One thread changes the mapping, another one its hole.
struct Part {
    at: NonNull<u8>,
    generations: [AtomicU64; PAGES],
    /// Somebody else has mapped something into its hole.
    is_taken: AtomicBool,
}

// SAFETY: who touches which page when is ordered by `Holes::turn`, and by the hole's being one
// thread's alone.
unsafe impl Sync for Part {}

struct Holes {
    parts: Vec<Part>,
    /// Held for writing while mappings are replaced.
    turn: RwLock<()>,
    checks: AtomicU64,
    wrong: AtomicU64,
    over: AtomicBool,
    open: Duration,
    rest: Duration,
}

fn beside() -> impl Iterator<Item = usize> {
    (0..PAGES).filter(|page| !HOLE.contains(page))
}

fn within() -> impl Iterator<Item = usize> {
    HOLE.step_by(2)
}

impl Part {
    fn content(&self, page: usize) -> Content {
        Content::of(self.at.addr().get() as u64, page as u64, self.generations[page].load(Relaxed))
    }

    fn fill(&self, pages: impl Iterator<Item = usize>) {
        for page in pages {
            self.generations[page].fetch_add(1, Relaxed);
            // SAFETY: the page lies in this mapping and is the caller's now.
            unsafe { self.content(page).fill(map::page(self.at, page).as_ptr()) };
        }
    }
}

impl Holes {
    fn new(open: Duration, rest: Duration) -> Holes {
        let base = map::inaccessible(MAPPINGS * (PAGES + APART) * PAGE).expect("mmap");
        // SAFETY: within that range.
        let at = |nth| unsafe { map::page(base, nth * (PAGES + APART)) };
        let generations = || std::array::from_fn(|_| AtomicU64::new(0));
        let part = |nth| Part { at: at(nth), generations: generations(), is_taken: AtomicBool::new(false) };
        let parts = (0..MAPPINGS).map(part).collect();
        let (checks, wrong) = (AtomicU64::new(0), AtomicU64::new(0));
        Holes { parts, turn: RwLock::new(()), checks, wrong, over: AtomicBool::new(false), open, rest }
    }

    fn check(&self, part: &Part, pages: impl Iterator<Item = usize>) {
        for page in pages {
            // SAFETY: the page lies in this mapping and is the caller's now.
            let found = unsafe { part.content(page).check(map::page(part.at, page).as_ptr()) };
            self.checks.fetch_add(1, Relaxed);
            if let Err(mismatch) = found
                && self.wrong.fetch_add(1, Relaxed) < 5
            {
                eprintln!("page {page}: {mismatch}");
            }
        }
    }

    fn renew(&self, part: &Part) {
        // SAFETY: the range is this mapping's, and no reference into it exists.
        unsafe { map::replace(part.at, PAGES * PAGE) }.expect("mmap(MAP_FIXED)");
        part.fill(beside().chain(within()));
    }

    /// Reads what lies beside the holes, and replaces half of the mappings after every few rounds
    /// unless there is to be rest.
    fn read(&self, until: Instant) {
        for round in 0.. {
            if Instant::now() > until {
                break;
            }
            for _ in 0..4 {
                self.parts.iter().for_each(|part| self.check(part, beside()));
            }
            if !self.rest.is_zero() {
                continue;
            }
            let _alone = self.turn.write().expect("nobody panics with it");
            for part in self.parts.iter().skip(round % 2).step_by(2).filter(|part| !part.is_taken.load(Relaxed)) {
                self.check(part, beside().chain(within()));
                self.renew(part);
            }
        }
    }

    fn punch(&self, parts: &[Part]) {
        while !self.over.load(Relaxed) {
            let _turn = self.turn.read().expect("nobody panics with it");
            for part in parts.iter().filter(|part| !part.is_taken.load(Relaxed)) {
                std::thread::sleep(self.rest);
                self.check(part, within());
                // SAFETY: within this mapping.
                let hole = unsafe { map::page(part.at, HOLE.start) };
                // SAFETY: the hole is this thread's, and no reference into it exists.
                unsafe { map::unmap(hole, HOLE.len() * PAGE) }.expect("munmap");
                std::thread::sleep(self.open);
                match map::again(hole, HOLE.len() * PAGE).expect("mmap") {
                    Some(()) => part.fill(within()),
                    None => part.is_taken.store(true, Relaxed),
                }
            }
        }
    }
}

fn main() {
    let mut args = std::env::args().skip(1).map(|arg| arg.parse::<u64>().expect("a number"));
    let (seconds, open) = (args.next().expect("seconds"), args.next().expect("microseconds"));
    let rest = args.next().unwrap_or(0);
    let holes = Holes::new(Duration::from_micros(open), Duration::from_millis(rest));
    holes.parts.iter().for_each(|part| holes.renew(part));
    std::thread::scope(|scope| {
        for parts in holes.parts.chunks(MAPPINGS / PUNCHERS) {
            scope.spawn(|| holes.punch(parts));
        }
        holes.read(Instant::now() + Duration::from_secs(seconds));
        holes.over.store(true, Relaxed);
    });
    let wrong = holes.wrong.load(Relaxed);
    let taken = holes.parts.iter().filter(|part| part.is_taken.load(Relaxed)).count();
    println!("{{\"checks\":{},\"wrong\":{wrong},\"taken\":{taken}}}", holes.checks.load(Relaxed));
    std::process::exit(i32::from(wrong > 0));
}
