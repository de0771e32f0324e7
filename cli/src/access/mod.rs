//! Access patterns: threads touch pages of one mapping in some pattern, each a part of its own;
//! each access is timed. Every page carries its number, which is checked at each read: a fast wrong
//! answer does not count. `annex bench` runs it, and the benchmarks that compare annex with others.
//!
//! - [`walk`]: the patterns. [`zipf`]: one of them. [`dice`]: what is random in them. [`measured`]:
//!   what a run came to.

pub mod dice;
pub mod measured;
pub mod walk;
pub mod zipf;

use annex_shared::page::PAGE_SIZE as PAGE;
use anyhow::{Context, ensure};
use dice::Dice;
use hdrhistogram::Histogram;
pub use measured::Measured;
use nix::libc;
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;
use std::ptr::NonNull;
use std::sync::Barrier;
use std::time::{Duration, Instant};
pub use walk::Pattern;
pub use walk::Walk;

/// The workload's memory or a part of it, filled. Unmapped by the process' end alone.
#[derive(Clone, Copy)]
pub struct Memory {
    pub base: NonNull<u8>,
    /// What the first page carries.
    first: usize,
    pub pages: usize,
}

// SAFETY: the mapping lives as long as the process, and each part of it is used by one thread
// alone.
unsafe impl Send for Memory {}

impl Memory {
    /// A plain anonymous mapping. Without huge pages, so that all contenders move 4 KiB at a time.
    pub fn plain(pages: usize) -> anyhow::Result<Memory> {
        let memory = Memory::unfilled(pages)?;
        memory.fill();
        Ok(memory)
    }

    /// The same, with no page in it yet.
    pub fn unfilled(pages: usize) -> anyhow::Result<Memory> {
        Ok(Memory { base: map(pages)?, first: 0, pages })
    }

    /// Memory of somebody's who leaves it alone from now on, filled. No huge pages either.
    ///
    /// # Safety
    /// So many pages from `base` on are readable and writable for as long as the process lives.
    pub unsafe fn over(base: NonNull<u8>, pages: usize) -> Memory {
        let memory = Memory { base, first: 0, pages };
        memory.fill();
        memory
    }

    fn fill(&self) {
        for page in 0..self.pages {
            // SAFETY: the page lies in the mapping, which is ours.
            unsafe { fill(self.at(page), self.first + page) };
        }
    }

    /// The `nth` of `count` equal parts.
    pub fn part(&self, nth: usize, count: usize) -> Memory {
        let (begin, end) = (self.pages * nth / count, self.pages * (nth + 1) / count);
        // SAFETY: the part begins within the mapping.
        let base = unsafe { self.base.add(begin * PAGE) };
        Memory { base, first: self.first + begin, pages: end - begin }
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

    pub fn at(&self, page: usize) -> *mut u64 {
        assert!(page < self.pages, "page {page} of {}", self.pages);
        // SAFETY: the page lies in the mapping.
        unsafe { self.base.as_ptr().add(page * PAGE).cast() }
    }
}

fn map(pages: usize) -> anyhow::Result<NonNull<u8>> {
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: no address is asked for, so no existing mapping is touched.
    let base = unsafe { libc::mmap(std::ptr::null_mut(), pages * PAGE, protection, flags, -1, 0) };
    ensure!(base != libc::MAP_FAILED, "mmap of {pages} pages: {}", std::io::Error::last_os_error());
    // SAFETY: advice on our own fresh mapping. Refused where there are no huge pages, which is as
    // well.
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

/// CLOCK_MONOTONIC in nanoseconds, which all processes share.
pub fn now() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is ours; the clock exists on every Linux.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// The calling thread stays on the `nth` of the CPUs it may use, if there are so many. Floors on
/// one CPU need it, and so whatever they are compared with has it.
pub fn pin(nth: usize) -> anyhow::Result<()> {
    let itself = Pid::from_raw(0);
    let allowed = sched_getaffinity(itself).context("which CPUs may be used")?;
    let cpu = (0..CpuSet::count()).filter(|cpu| allowed.is_set(*cpu).unwrap_or(false)).nth(nth);
    if let Some(cpu) = cpu {
        let mut set = CpuSet::new();
        set.set(cpu)?;
        sched_setaffinity(itself, &set).context("pinning to a CPU")?;
    }
    Ok(())
}

/// Runs the pattern on so many threads, each on its own part of the memory and its own CPU: for
/// half of `duration` to settle, then for `duration` measured.
pub fn measure(
    memory: &Memory,
    pattern: Pattern,
    threads: usize,
    duration: Duration,
    seed: u64,
) -> anyhow::Result<Measured> {
    ensure!((1..=memory.pages).contains(&threads), "{threads} threads for {} pages", memory.pages);
    let filled_ns = now();
    // All begin to measure at the same time: a thread alone on the machine would be faster than it
    // is.
    let settled = Barrier::new(threads);
    let ran: Vec<anyhow::Result<Ran>> = std::thread::scope(|scope| {
        let started: Vec<_> = (0..threads)
            .map(|nth| {
                let (part, settled, seed) = (memory.part(nth, threads), &settled, seed + nth as u64 * 1_000_003);
                scope.spawn(move || run_one(&part, nth, pattern, duration, seed, settled))
            })
            .collect();
        started.into_iter().map(|thread| thread.join().expect("the workload does not panic")).collect()
    });
    let ran = ran.into_iter().collect::<anyhow::Result<Vec<Ran>>>()?;
    let mut histogram = new_histogram()?;
    for one in &ran {
        histogram.add(&one.histogram)?;
    }
    let began_ns = ran.iter().map(|one| one.began_ns).min().unwrap_or(0);
    let ended_ns = ran.iter().map(|one| one.ended_ns).max().unwrap_or(0);
    Ok(Measured {
        threads,
        resident_share: memory.resident()? as f64 / memory.pages as f64,
        filled_ns,
        began_ns,
        ended_ns,
        ..Measured::of(&histogram, (ended_ns - began_ns) as f64 / 1e9)
    })
}

/// What one thread measured.
struct Ran {
    histogram: Histogram<u64>,
    began_ns: u64,
    ended_ns: u64,
}

fn run_one(
    part: &Memory,
    nth: usize,
    pattern: Pattern,
    duration: Duration,
    seed: u64,
    settled: &Barrier,
) -> anyhow::Result<Ran> {
    let pinned = pin(nth);
    let mut histogram = new_histogram()?;
    let mut walk = Walk::new(pattern, part.pages, seed);
    let settling = run(part, &mut walk, duration / 2, None);
    // Whatever went wrong: the others wait here.
    settled.wait();
    pinned.and(settling)?;
    let began_ns = now();
    run(part, &mut walk, duration, Some(&mut histogram))?;
    Ok(Ran { histogram, began_ns, ended_ns: now() })
}

/// Of nanoseconds, up to a minute.
pub fn new_histogram() -> anyhow::Result<Histogram<u64>> {
    Ok(Histogram::new_with_bounds(1, 60_000_000_000, 3)?)
}

/// Touches pages for so long.
pub fn run(
    memory: &Memory,
    walk: &mut Walk,
    duration: Duration,
    mut histogram: Option<&mut Histogram<u64>>,
) -> anyhow::Result<()> {
    let until = Instant::now() + duration;
    loop {
        let (page, write) = walk.step();
        let begin = Instant::now();
        memory.touch(page, write)?;
        let end = Instant::now();
        if let Some(histogram) = histogram.as_deref_mut() {
            histogram.saturating_record((end - begin).as_nanos() as u64);
        }
        if end >= until {
            return Ok(());
        }
    }
}

impl Memory {
    /// Reads the whole page, or writes a word in every 64 bytes of it.
    pub fn touch(&self, page: usize, write: bool) -> anyhow::Result<()> {
        let (at, number) = (self.at(page), (self.first + page) as u64);
        // SAFETY: the page lies in the mapping, and this thread is its only user.
        unsafe {
            ensure!(at.read() == number, "WRONG CONTENT: page {number} holds {}", at.read());
            if write {
                (8..PAGE / 8).step_by(8).for_each(|i| at.add(i).write(number));
            } else {
                std::hint::black_box((0..PAGE / 8).fold(0u64, |sum, i| sum.wrapping_add(at.add(i).read())));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_millis(5);

    #[test]
    fn a_wrong_page_is_noticed() {
        let memory = Memory::plain(16).unwrap();
        measure(&memory, Pattern::Random, 1, SHORT, 1).unwrap();
        // SAFETY: our own memory, nobody else uses it.
        unsafe { memory.at(7).write(8) };
        assert!(measure(&memory, Pattern::Sequential, 1, SHORT, 1).is_err());
    }

    #[test]
    fn each_thread_checks_pages_of_its_own() {
        let memory = Memory::plain(35).unwrap();
        for pattern in Pattern::ALL {
            let measured = measure(&memory, pattern, 2, SHORT, 1).unwrap();
            assert_eq!((measured.threads, measured.resident_share), (2, 1.0));
        }
        let parts = [memory.part(0, 2), memory.part(1, 2)].map(|part| (part.first, part.pages));
        assert_eq!(parts, [(0, 17), (17, 18)]);
        // SAFETY: our own memory, nobody else uses it.
        unsafe { memory.at(30).write(8) };
        assert!(measure(&memory, Pattern::Sequential, 2, SHORT, 1).is_err());
    }
}
