//! Counters that threads and forked children share. They live in one `MAP_SHARED` mapping, so that
//! children add to the same numbers, and so that the watchdog can read them even when the working
//! set can't be reached.

use super::Feature;
use std::io::Write;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// Threads that can report what they are doing; more than that share the last place.
const PLACES: usize = 64;

#[repr(C)]
pub struct Board {
    /// Pages compared byte by byte.
    pub checks: AtomicU64,
    /// Grows with every finished step; the watchdog watches it.
    pub progress: AtomicU64,
    pub errors: AtomicU64,
    pub children: AtomicU64,
    /// How long the child lived that lived longest, in milliseconds.
    pub longest_child: AtomicU64,
    /// Set once the directory's filesystem took O_DIRECT (1) or refused it (2).
    pub direct: AtomicU32,
    /// Told to end: everyone finishes the step at hand.
    pub stop: AtomicU32,
    steps: [AtomicU64; Feature::COUNT],
    doing: [AtomicU64; PLACES],
}

/// The mapping; lives as long as the process.
#[derive(Clone, Copy)]
pub struct Shared(NonNull<Board>);

// SAFETY: a Board consists of atomics only, and the mapping is never unmapped.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl std::ops::Deref for Shared {
    type Target = Board;

    fn deref(&self) -> &Board {
        // SAFETY: mapped for the life of the process, zeroed, valid for every bit pattern.
        unsafe { self.0.as_ref() }
    }
}

impl Shared {
    pub fn new() -> std::io::Result<Shared> {
        let at = super::map::shared(size_of::<Board>())?;
        Ok(Shared(at.cast()))
    }
}

impl Board {
    /// Notes what a thread is at, for the watchdog's message.
    pub fn begin(&self, place: usize, feature: Feature, page: usize) {
        self.doing[place.min(PLACES - 1)].store(((feature as u64 + 1) << 48) | page as u64, Relaxed);
    }

    pub fn done(&self, feature: Feature) {
        self.steps[feature as usize].fetch_add(1, Relaxed);
        self.progress.fetch_add(1, Relaxed);
    }

    pub fn steps(&self, feature: Feature) -> u64 {
        self.steps[feature as usize].load(Relaxed)
    }

    pub fn checked(&self, pages: usize) {
        self.checks.fetch_add(pages as u64, Relaxed);
        self.progress.fetch_add(1, Relaxed);
    }

    pub fn stopping(&self) -> bool {
        self.stop.load(Relaxed) != 0
    }

    /// `thread 3: discard at page 771`, one per place in use.
    pub fn activities(&self) -> impl Iterator<Item = String> {
        self.doing.iter().enumerate().filter_map(|(place, doing)| {
            let doing = doing.load(Relaxed);
            let feature = Feature::ALL.get(((doing >> 48) as usize).checked_sub(1)?)?;
            Some(format!("thread {place}: {feature} at page {}", doing & ((1 << 48) - 1)))
        })
    }
}

/// One line on stderr that says the set is filled and the run proper begins.
pub fn announce(board: Shared) {
    let line = format!("{{\"ready\":true,\"pid\":{},\"checks\":{}}}\n", std::process::id(), board.checks.load(Relaxed));
    // A closed stderr is no reason to end the run.
    let _ = std::io::stderr().write_all(line.as_bytes());
}
