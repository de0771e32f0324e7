//! Random shapes of programs: threads whose main thread leaves, forks in forks, and mappings that come and go; every page is verified.
//!
//! Each thread owns a mapping and knows what each of its pages holds. A fork's child verifies what it inherited, writes to it, and may fork again.

use crate::stress::content::{Content, Dice, PAGE};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// What all threads have done together.
#[derive(Debug, Default)]
pub struct Tally {
    pub shapes: AtomicU64,
    pub checks: AtomicU64,
}

/// A thread's own memory, and what it must hold.
pub struct Owner<'a> {
    at: *mut u8,
    pages: Vec<Content>,
    dice: Dice,
    seed: u64,
    version: u64,
    tally: &'a Tally,
}

impl<'a> Owner<'a> {
    pub fn new(seed: u64, pages: usize, tally: &'a Tally) -> Result<Owner<'a>, String> {
        // SAFETY: a new mapping at an address that the kernel chooses.
        let at = unsafe {
            let rw = libc::PROT_READ | libc::PROT_WRITE;
            libc::mmap(std::ptr::null_mut(), pages * PAGE, rw, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0)
        };
        if at == libc::MAP_FAILED {
            return Err("mmap failed".into());
        }
        let mut owner =
            Owner { at: at.cast(), pages: vec![Content::Zero; pages], dice: Dice::new(seed), seed, version: 0, tally };
        (0..pages).for_each(|page| owner.write(page));
        Ok(owner)
    }

    /// Takes random steps until the time is over, and verifies everything.
    pub fn live(&mut self, time: Duration) -> Result<(), String> {
        let end = Instant::now() + time;
        while Instant::now() < end {
            let (first, count) = self.some();
            let step = self.dice.below(12);
            match step {
                0..=4 => (first..first + count).for_each(|page| self.write(page)),
                5..=7 => (first..first + count).try_for_each(|page| self.check(page))?,
                8 => self.discard(first, count)?,
                9 => self.remap()?,
                10 => self.protect(first, count)?,
                _ => self.fork(2)?,
            }
            self.tally.shapes.fetch_add(1, Relaxed);
        }
        (0..self.pages.len()).try_for_each(|page| self.check(page))
    }

    fn some(&mut self) -> (usize, usize) {
        let first = self.dice.below(self.pages.len());
        let most = (self.pages.len() - first).min(64);
        (first, 1 + self.dice.below(most))
    }

    fn page(&self, page: usize) -> *mut u8 {
        self.at.wrapping_add(page * PAGE)
    }

    fn write(&mut self, page: usize) {
        self.version += 1;
        self.pages[page] = Content::of(self.seed, page as u64, self.version);
        // SAFETY: a page of our own mapping, which is writable between steps.
        unsafe { self.pages[page].fill(self.page(page)) };
    }

    fn check(&self, page: usize) -> Result<(), String> {
        self.tally.checks.fetch_add(1, Relaxed);
        // SAFETY: a page of our own mapping, which nobody else writes.
        let seen = unsafe { self.pages[page].check(self.page(page)) };
        seen.map_err(|wrong| format!("seed {} page {page}: {wrong}", self.seed))
    }

    fn discard(&mut self, first: usize, count: usize) -> Result<(), String> {
        // SAFETY: pages of our own mapping; what they hold from now on is noted below.
        let r = unsafe { libc::madvise(self.page(first).cast(), count * PAGE, libc::MADV_DONTNEED) };
        self.pages[first..first + count].fill(Content::Zero);
        done(r, "madvise(DONTNEED)")
    }

    fn remap(&mut self) -> Result<(), String> {
        let old = self.pages.len();
        let new = (old / 2 + self.dice.below(old)).clamp(16, 1 << 16);
        // SAFETY: our own mapping, which nothing points into.
        let at = unsafe { libc::mremap(self.at.cast(), old * PAGE, new * PAGE, libc::MREMAP_MAYMOVE) };
        if at == libc::MAP_FAILED {
            return Err(format!("seed {}: mremap failed: {}", self.seed, std::io::Error::last_os_error()));
        }
        self.at = at.cast();
        self.pages.resize(new, Content::Zero);
        Ok(())
    }

    fn protect(&mut self, first: usize, count: usize) -> Result<(), String> {
        let at = self.page(first).cast();
        // SAFETY: pages of our own mapping; they are readable all the time, and nobody writes in between.
        done(unsafe { libc::mprotect(at, count * PAGE, libc::PROT_READ) }, "mprotect")?;
        (first..first + count).try_for_each(|page| self.check(page))?;
        // SAFETY: as above.
        done(unsafe { libc::mprotect(at, count * PAGE, libc::PROT_READ | libc::PROT_WRITE) }, "mprotect")
    }

    /// The child verifies all that it inherited, changes some of it, and forks again while `depth` lasts.
    fn fork(&mut self, depth: u32) -> Result<(), String> {
        // SAFETY: the child touches its own copies only, allocates nothing, and ends by _exit.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            let all = |owner: &Owner<'_>| (0..owner.pages.len()).all(|page| owner.check(page).is_ok());
            let mut right = all(self);
            let (first, count) = self.some();
            (first..first + count).for_each(|page| self.write(page));
            right = right && (depth == 0 || self.fork(depth - 1).is_ok()) && all(self);
            // SAFETY: ends this process without running anything of the parent's.
            unsafe { libc::_exit(i32::from(!right)) };
        }
        let mut status = 0;
        // SAFETY: our own child.
        let reaped = unsafe { libc::waitpid(pid, &raw mut status, 0) };
        let right = pid > 0 && reaped == pid && status == 0;
        right
            .then_some(())
            .ok_or_else(|| format!("seed {}: a child found wrong content or died: {status:#x}", self.seed))
    }
}

fn done(r: i32, what: &str) -> Result<(), String> {
    if r == 0 { Ok(()) } else { Err(format!("{what} failed: {}", std::io::Error::last_os_error())) }
}
