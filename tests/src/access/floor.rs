//! The floor: the least that any userfaultfd pager must pay. A handler in this very process answers faults from memory of
//! its own, on the CPU of the one thread that faults; no fabric, no replicas, no checksums, no other process. Eviction is
//! FIFO and safe only because the one thread that uses the memory is waiting in its fault meanwhile.

use super::{Memory, fill, map};
use crate::stress::content::PAGE;
use anyhow::Context;
use std::collections::VecDeque;
use std::ptr::NonNull;
use userfaultfd::{Event, Uffd, UffdBuilder};

/// Pages evicted at once.
const BATCH: usize = 64;
/// Pages installed by one fault at most, when faults come in order.
const WINDOW: usize = 64;

struct Pager {
    uffd: Uffd,
    base: NonNull<u8>,
    /// Where evicted pages are: the memory of "the donor".
    slab: NonNull<u8>,
    resident: Vec<bool>,
    order: VecDeque<usize>,
    limit: usize,
    /// Where the next fault comes in if pages are read in order.
    expected: usize,
    window: usize,
}

// SAFETY: both mappings live as long as the process; the handler thread alone touches `slab`.
unsafe impl Send for Pager {}

/// `pages` pages of which `limit` are resident at most. They start in the slab.
pub fn memory(pages: usize, limit: usize) -> anyhow::Result<Memory> {
    pin(0)?;
    let (base, slab) = (map(pages)?, map(pages)?);
    for page in 0..pages {
        // SAFETY: the page lies in the slab, which is ours.
        unsafe { fill(slab.as_ptr().add(page * PAGE).cast(), page) };
    }
    let uffd = UffdBuilder::new().close_on_exec(true).non_blocking(false).create().context("userfaultfd")?;
    uffd.register(base.as_ptr().cast(), pages * PAGE).context("registering the memory")?;
    let pager = Pager {
        uffd,
        base,
        slab,
        resident: vec![false; pages],
        order: VecDeque::with_capacity(limit + WINDOW),
        limit,
        expected: usize::MAX,
        window: 1,
    };
    std::thread::Builder::new().name("floor".into()).spawn(move || {
        // An error here can't be handled: the faulting thread would wait for ever.
        if let Err(error) = pager.serve() {
            eprintln!("floor: {error:#}");
            std::process::exit(1);
        }
    })?;
    Ok(Memory { base, pages })
}

impl Pager {
    fn serve(mut self) -> anyhow::Result<()> {
        pin(0)?;
        loop {
            if let Some(Event::Pagefault { addr, .. }) = self.uffd.read_event().context("reading a fault")? {
                let page = (addr as usize - self.base.as_ptr() as usize) / PAGE;
                self.fault_in(page)?;
            }
        }
    }

    fn fault_in(&mut self, page: usize) -> anyhow::Result<()> {
        self.window = if page == self.expected { (self.window * 2).min(WINDOW) } else { 1 };
        let last = (page + self.window).min(self.resident.len());
        let count = (page..last).take_while(|p| !self.resident[*p]).count();
        if self.order.len() + count > self.limit {
            self.evict(BATCH.max(count))?;
        }
        // SAFETY: the range is not resident, lies in both mappings, and the slab holds its content.
        unsafe {
            let (from, to) = (self.slab.as_ptr().add(page * PAGE), self.base.as_ptr().add(page * PAGE));
            self.uffd.copy(from.cast(), to.cast(), count * PAGE, true).context("UFFDIO_COPY")?;
        }
        for p in page..page + count {
            self.resident[p] = true;
            self.order.push_back(p);
        }
        self.expected = page + count;
        Ok(())
    }

    fn evict(&mut self, count: usize) -> anyhow::Result<()> {
        let mut victims: Vec<usize> = self.order.drain(..count.min(self.order.len())).collect();
        victims.sort_unstable();
        for run in victims.chunk_by(|a, b| a + 1 == *b) {
            let (first, len) = (run[0], run.len() * PAGE);
            // SAFETY: both ranges lie in their mappings; the thread that uses the memory waits for us.
            let dropped = unsafe {
                let (from, to) = (self.base.as_ptr().add(first * PAGE), self.slab.as_ptr().add(first * PAGE));
                std::ptr::copy_nonoverlapping(from, to, len);
                libc::madvise(from.cast(), len, libc::MADV_DONTNEED)
            };
            anyhow::ensure!(dropped == 0, "madvise: {}", std::io::Error::last_os_error());
            run.iter().for_each(|p| self.resident[*p] = false);
        }
        Ok(())
    }
}

fn pin(cpu: usize) -> anyhow::Result<()> {
    let mut set = nix::sched::CpuSet::new();
    set.set(cpu)?;
    nix::sched::sched_setaffinity(nix::unistd::Pid::from_raw(0), &set).context("pinning to a CPU")
}
