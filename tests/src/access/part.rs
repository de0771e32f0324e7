//! A program that uses a known part of its memory again and again, and none of the rest: how well
//! its cold memory is found, and what finding it costs.

use super::now;
use crate::stress::content::PAGE;
use anyhow::ensure;
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::ftruncate;
use serde::{Deserialize, Serialize};
use std::os::fd::AsRawFd;
use std::time::Duration;

/// What the program has. In bytes.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Private and anonymous.
    pub size: u64,
    /// Used all the time.
    pub hot: u64,
    /// Not used, and locked.
    pub locked: u64,
    /// Not used, and shared.
    pub shared: u64,
    /// In huge pages as far as there are any; else in small ones.
    pub huge: bool,
    /// After each pass over what is hot.
    pub rest: Duration,
}

/// One pass over what is hot, in nanoseconds; from and to by CLOCK_MONOTONIC, which all processes
/// share.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Pass {
    pub begin: u64,
    pub end: u64,
    /// CPU time of the thread.
    pub cpu: u64,
}

/// Memory of the program that is never given back.
struct Area {
    base: *mut u64,
    pages: usize,
}

impl Area {
    /// Private memory; shared if there is a file.
    fn new(bytes: u64, file: Option<i32>) -> anyhow::Result<Area> {
        let kind = if file.is_some() { libc::MAP_SHARED } else { libc::MAP_PRIVATE | libc::MAP_ANONYMOUS };
        let (protection, pages) = (libc::PROT_READ | libc::PROT_WRITE, bytes as usize / PAGE);
        // SAFETY: no address is asked for, so no existing mapping is touched.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), pages * PAGE, protection, kind, file.unwrap_or(-1), 0) };
        ensure!(base != libc::MAP_FAILED, "mmap of {pages} pages: {}", std::io::Error::last_os_error());
        Ok(Area { base: base.cast(), pages })
    }

    fn advise(&self, advice: libc::c_int) {
        // SAFETY: advice on our own fresh mapping. Refused where there are no huge pages.
        unsafe { libc::madvise(self.base.cast(), self.pages * PAGE, advice) };
    }

    fn fill(&self) {
        for page in 0..self.pages {
            // SAFETY: the page lies in the mapping, which is this thread's.
            unsafe { self.at(page).write_volatile(page as u64) };
        }
    }

    fn at(&self, page: usize) -> *mut u64 {
        debug_assert!(page < self.pages);
        // SAFETY: the page lies in the mapping.
        unsafe { self.base.add(page * PAGE / 8) }
    }
}

fn cpu_time() -> anyhow::Result<u64> {
    let time = Duration::from(clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)?);
    Ok(time.as_nanos() as u64)
}

/// Uses memory as planned until `stop`, and returns the passes. `ready` is called once all memory
/// is there.
///
/// # Errors
/// Memory is missing, or a page holds what it should not.
pub fn watch(plan: Plan, ready: impl FnOnce(), stop: impl Fn() -> bool) -> anyhow::Result<Vec<Pass>> {
    let area = Area::new(plan.size, None)?;
    area.advise(if plan.huge { libc::MADV_HUGEPAGE } else { libc::MADV_NOHUGEPAGE });
    area.fill();
    if plan.locked > 0 {
        let locked = Area::new(plan.locked, None)?;
        locked.fill();
        // SAFETY: our own mapping.
        let done = unsafe { libc::mlock(locked.base.cast(), locked.pages * PAGE) };
        ensure!(done == 0, "mlock: {}", std::io::Error::last_os_error());
    }
    if plan.shared > 0 {
        let file = memfd_create(c"part", MFdFlags::MFD_CLOEXEC)?;
        ftruncate(&file, plan.shared as i64)?;
        Area::new(plan.shared, Some(file.as_raw_fd()))?.fill();
    }
    ready();
    let mut passes = Vec::with_capacity(1 << 16);
    while !stop() {
        let (begin, cpu) = (now(), cpu_time()?);
        for page in 0..plan.hot as usize / PAGE {
            // SAFETY: the page lies in the mapping, which is this thread's.
            let found = unsafe { area.at(page).read_volatile() };
            ensure!(found == page as u64, "WRONG CONTENT: page {page} holds {found}");
        }
        passes.push(Pass { begin, end: now(), cpu: cpu_time()?.saturating_sub(cpu) });
        std::thread::sleep(plan.rest);
    }
    Ok(passes)
}
