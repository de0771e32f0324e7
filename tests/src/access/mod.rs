//! The access-pattern workload that every contender of the benchmark runs, unchanged: all in RAM, kernel swap, annex, and
//! the bare userfaultfd floor ([`floor`]). One thread touches pages of one mapping in some pattern; each access is timed.
//! Every page carries its number, which is checked at each read: a fast wrong answer does not count.

pub mod floor;
pub mod series;
pub mod ticks;
pub mod zipf;

use crate::stress::content::{Dice, PAGE};
use anyhow::ensure;
use clap::ValueEnum;
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use std::ptr::NonNull;
use std::time::{Duration, Instant};
use zipf::Zipf;

/// Which page is next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Pattern {
    /// Whole pages read, each as likely as any other.
    Random,
    /// Whole pages read in order, over and over.
    Sequential,
    /// Zipf with exponent 0.99 over scattered pages; one access in ten writes.
    Zipf,
}

impl Pattern {
    pub const ALL: [Pattern; 3] = [Pattern::Random, Pattern::Sequential, Pattern::Zipf];

    pub fn name(self) -> &'static str {
        match self {
            Pattern::Random => "random",
            Pattern::Sequential => "sequential",
            Pattern::Zipf => "zipf",
        }
    }
}

/// One run's result. Times in microseconds.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Measured {
    pub ops_per_s: f64,
    pub p50_us: f64,
    pub p90_us: f64,
    pub p99_us: f64,
    pub p999_us: f64,
    pub max_us: f64,
    /// Accesses that took longer than 3 µs: those that were not in memory, nearly.
    pub slow_share: f64,
    /// Part of the set that was in memory at the end: whether the contender held it to its share.
    pub resident_share: f64,
}

/// The workload's memory, filled.
pub struct Memory {
    base: NonNull<u8>,
    pages: usize,
}

impl Memory {
    /// A plain anonymous mapping. Without huge pages, so that all contenders move 4 KiB at a time.
    pub fn plain(pages: usize) -> anyhow::Result<Memory> {
        let memory = Memory { base: map(pages)?, pages };
        for page in 0..pages {
            // SAFETY: the page lies in the mapping, which is ours.
            unsafe { fill(memory.at(page), page) };
        }
        Ok(memory)
    }

    /// Pages in memory now, as the kernel counts them.
    fn resident(&self) -> anyhow::Result<usize> {
        let mut present = vec![0u8; self.pages];
        // SAFETY: the range is our mapping, and the vector has a byte for each of its pages.
        let answer =
            unsafe { libc::mincore(self.base.as_ptr().cast(), self.pages * PAGE, present.as_mut_ptr().cast()) };
        ensure!(answer == 0, "mincore: {}", std::io::Error::last_os_error());
        Ok(present.iter().filter(|byte| *byte & 1 == 1).count())
    }

    fn at(&self, page: usize) -> *mut u64 {
        // SAFETY: callers stay below `pages`.
        unsafe { self.base.as_ptr().add(page * PAGE).cast() }
    }
}

fn map(pages: usize) -> anyhow::Result<NonNull<u8>> {
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: no address is asked for, so no existing mapping is touched.
    let base = unsafe { libc::mmap(std::ptr::null_mut(), pages * PAGE, protection, flags, -1, 0) };
    ensure!(base != libc::MAP_FAILED, "mmap of {pages} pages: {}", std::io::Error::last_os_error());
    // SAFETY: advice on our own fresh mapping. Refused where there are no huge pages, which is as well.
    unsafe { libc::madvise(base, pages * PAGE, libc::MADV_NOHUGEPAGE) };
    NonNull::new(base.cast()).ok_or_else(|| anyhow::anyhow!("mapped at address zero"))
}

/// A page's number, then content about half of which compresses well, as programs' memory does.
///
/// # Safety
/// `at` is a page of ours.
unsafe fn fill(at: *mut u64, page: usize) {
    let mut dice = Dice::new(page as u64);
    for i in 0..PAGE / 8 {
        let word = if i == 0 {
            page as u64
        } else if i % 2 == 0 {
            dice.roll()
        } else {
            (page & 0xff) as u64
        };
        // SAFETY: the caller vouches for the page.
        unsafe { at.add(i).write(word) };
    }
}

/// Runs the pattern for half of `duration` to settle, then for `duration` measured.
pub fn measure(memory: &Memory, pattern: Pattern, duration: Duration, seed: u64) -> anyhow::Result<Measured> {
    let mut walk = Walk::new(pattern, memory.pages, seed);
    run(memory, &mut walk, duration / 2, None)?;
    let mut histogram = Histogram::<u64>::new_with_bounds(1, 60_000_000_000, 3)?;
    let started = Instant::now();
    run(memory, &mut walk, duration, Some(&mut histogram))?;
    let seconds = started.elapsed().as_secs_f64();
    let micros = |quantile: f64| histogram.value_at_quantile(quantile) as f64 / 1e3;
    let slow = histogram.len() - histogram.count_between(0, 3000);
    Ok(Measured {
        ops_per_s: histogram.len() as f64 / seconds,
        p50_us: micros(0.5),
        p90_us: micros(0.9),
        p99_us: micros(0.99),
        p999_us: micros(0.999),
        max_us: histogram.max() as f64 / 1e3,
        slow_share: slow as f64 / histogram.len().max(1) as f64,
        resident_share: memory.resident()? as f64 / memory.pages as f64,
    })
}

fn run(
    memory: &Memory,
    walk: &mut Walk,
    duration: Duration,
    mut histogram: Option<&mut Histogram<u64>>,
) -> anyhow::Result<()> {
    let until = Instant::now() + duration;
    let mut sum = 0u64;
    loop {
        let (page, write) = walk.step();
        let begin = Instant::now();
        let at = memory.at(page);
        // SAFETY: the page lies in the mapping, and this is its only user.
        unsafe {
            ensure!(at.read() == page as u64, "WRONG CONTENT: page {page} holds {}", at.read());
            if write {
                (8..PAGE / 8).step_by(8).for_each(|i| at.add(i).write(page as u64));
            } else {
                (0..PAGE / 8).for_each(|i| sum = sum.wrapping_add(at.add(i).read()));
            }
        }
        let end = Instant::now();
        if let Some(histogram) = histogram.as_deref_mut() {
            histogram.saturating_record((end - begin).as_nanos() as u64);
        }
        if end >= until {
            std::hint::black_box(sum);
            return Ok(());
        }
    }
}

/// A sequence of pages.
struct Walk {
    pattern: Pattern,
    pages: usize,
    dice: Dice,
    next: usize,
    zipf: Zipf,
}

impl Walk {
    fn new(pattern: Pattern, pages: usize, seed: u64) -> Walk {
        Walk { pattern, pages, dice: Dice::new(seed), next: 0, zipf: Zipf::new(pages, 0.99) }
    }

    fn step(&mut self) -> (usize, bool) {
        match self.pattern {
            Pattern::Random => (self.dice.below(self.pages), false),
            Pattern::Sequential => {
                let page = self.next;
                self.next = (page + 1) % self.pages;
                (page, false)
            }
            Pattern::Zipf => {
                let page = self.zipf.scattered(self.dice.roll());
                (page, self.dice.one_in(10))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_page_is_noticed() {
        let memory = Memory::plain(16).unwrap();
        let short = Duration::from_millis(5);
        measure(&memory, Pattern::Random, short, 1).unwrap();
        // SAFETY: our own memory, nobody else uses it.
        unsafe { memory.at(7).write(8) };
        assert!(measure(&memory, Pattern::Sequential, short, 1).is_err());
    }
}
