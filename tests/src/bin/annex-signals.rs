//! `annex-signals`: two threads that read its mappings. One is interrupted all the time, also while
//! it waits for a page: the signal's handler unmaps a part of a mapping, maps that anew, and fills
//! it. It verifies all.
//!
//! Arguments: seconds to go on, microseconds between two signals. Prints
//! `{"checks":…,"wrong":…,"signals":…}`. Exit codes: 0 all was well, 1 wrong content.

use annex_tests::stress::content::{Content, PAGE};
use annex_tests::stress::map;
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

const MAPPINGS: usize = 32;
const PAGES: usize = 256;
/// The part that is the handler's.
const HOLE: Range<usize> = 100..140;
/// Inaccessible pages between two mappings, which would become one otherwise.
const APART: usize = 16;

struct Part {
    at: NonNull<u8>,
    /// Of all its pages that are the reader's, and of those that are the handler's.
    generations: [AtomicU64; 2],
    /// Somebody else has mapped something into its hole.
    is_taken: AtomicBool,
}

// SAFETY: each thread, and the handler, has pages of its own to write to.
unsafe impl Sync for Part {}
// SAFETY: as above.
unsafe impl Send for Part {}

static PARTS: OnceLock<Vec<Part>> = OnceLock::new();
static CHECKS: AtomicU64 = AtomicU64::new(0);
static WRONG: AtomicU64 = AtomicU64::new(0);
static SIGNALS: AtomicU64 = AtomicU64::new(0);

impl Part {
    fn content(&self, page: usize) -> Content {
        let generation = self.generations[usize::from(HOLE.contains(&page))].load(Relaxed);
        Content::of(self.at.addr().get() as u64, page as u64, generation)
    }

    fn fill(&self, pages: impl Iterator<Item = usize>) {
        // SAFETY: the page lies in this mapping and is the caller's now.
        pages.for_each(|page| unsafe { self.content(page).fill(map::page(self.at, page).as_ptr()) });
    }

    fn check(&self, pages: impl Iterator<Item = usize>) {
        for page in pages {
            // SAFETY: the page lies in this mapping and is the caller's now.
            let found = unsafe { self.content(page).check(map::page(self.at, page).as_ptr()) };
            CHECKS.fetch_add(1, Relaxed);
            WRONG.fetch_add(found.is_err().into(), Relaxed);
        }
    }
}

fn beside() -> impl Iterator<Item = usize> {
    (0..PAGES).filter(|page| !HOLE.contains(page))
}

/// Every other page of what is the handler's, so that none is moved together with one beside the
/// hole.
fn within() -> impl Iterator<Item = usize> {
    HOLE.step_by(2)
}

extern "C" fn make_anew(_signal: i32) {
    let nth = SIGNALS.fetch_add(1, Relaxed) as usize;
    let Some(part) = PARTS.get().and_then(|parts| parts.get(nth % MAPPINGS)) else { return };
    if part.is_taken.load(Relaxed) {
        return;
    }
    // Its own faults can't be taken away: where it has some, the change comes too late for what was
    // to be read as the signal came.
    if (nth / MAPPINGS).is_multiple_of(4) {
        part.check(within());
    }
    // SAFETY: within this mapping.
    let hole = unsafe { map::page(part.at, HOLE.start) };
    // SAFETY: the hole is the handler's, and no reference into it exists.
    let unmapped = unsafe { map::unmap(hole, HOLE.len() * PAGE) };
    match unmapped.and_then(|()| map::again(hole, HOLE.len() * PAGE)) {
        Ok(Some(())) => {
            part.generations[1].fetch_add(1, Relaxed);
            part.fill(within());
        }
        Ok(None) => part.is_taken.store(true, Relaxed),
        Err(_) => std::process::abort(),
    }
}

fn parts() -> std::io::Result<Vec<Part>> {
    let base = map::inaccessible(MAPPINGS * (PAGES + APART) * PAGE)?;
    (0..MAPPINGS)
        .map(|nth| {
            // SAFETY: within that range.
            let at = unsafe { map::page(base, nth * (PAGES + APART)) };
            // SAFETY: the range is ours, and nobody refers into it.
            unsafe { map::replace(at, PAGES * PAGE) }?;
            let part = Part { at, generations: Default::default(), is_taken: AtomicBool::new(false) };
            part.fill(beside().chain(within()));
            Ok(part)
        })
        .collect()
}

fn interrupt_every(interval: Duration) {
    let action = SigAction::new(SigHandler::Handler(make_anew), SaFlags::SA_RESTART, SigSet::empty());
    // SAFETY: the handler makes system calls and writes to pages and atomics that are its own.
    unsafe { sigaction(Signal::SIGALRM, &action) }.expect("handling SIGALRM");
    let time = libc::timeval { tv_sec: 0, tv_usec: interval.as_micros() as i64 };
    let timer = libc::itimerval { it_interval: time, it_value: time };
    // SAFETY: reads the timer that it is given.
    assert_eq!(unsafe { libc::setitimer(libc::ITIMER_REAL, &timer, std::ptr::null_mut()) }, 0, "setitimer");
}

fn main() {
    let mut args = std::env::args().skip(1).map(|arg| arg.parse::<u64>().expect("a number"));
    let (seconds, interval) = (args.next().expect("seconds"), args.next().expect("microseconds"));
    let parts = PARTS.get_or_init(|| parts().expect("memory"));
    let until = Instant::now() + Duration::from_secs(seconds);
    let read = |of: usize| {
        while Instant::now() < until {
            parts.iter().skip(of).step_by(2).for_each(|part| part.check(beside()));
        }
    };
    std::thread::scope(|scope| {
        SigSet::all().thread_block().expect("signals can be blocked");
        // In peace: its faults are pending when the other thread's are taken away.
        scope.spawn(|| read(1));
        SigSet::all().thread_unblock().expect("signals can be unblocked");
        interrupt_every(Duration::from_micros(interval));
        read(0);
    });
    interrupt_every(Duration::ZERO);
    parts.iter().filter(|part| !part.is_taken.load(Relaxed)).for_each(|part| part.check(within()));
    let wrong = WRONG.load(Relaxed);
    println!("{{\"checks\":{},\"wrong\":{wrong},\"signals\":{}}}", CHECKS.load(Relaxed), SIGNALS.load(Relaxed));
    std::process::exit(i32::from(wrong > 0));
}
