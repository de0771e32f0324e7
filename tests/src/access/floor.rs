//! The floor: the least that any userfaultfd pager must pay. Handlers in this very process, one for
//! each thread that faults and on the same CPU, answer faults from memory of their own; no fabric,
//! no replicas, no checksums, no other process. The memory they copy from is as large as the set
//! and so as cold as a donor's, and evicted pages are copied back to it. Eviction is FIFO and safe
//! only because the one thread that uses the memory is waiting in its fault meanwhile.

use super::{Memory, pin};
use crate::stress::content::PAGE;
use anyhow::Context;
use std::collections::VecDeque;
use userfaultfd::{Event, Uffd, UffdBuilder};

/// Pages evicted at once.
const BATCH: usize = 64;
/// Pages installed by one fault at most.
const WINDOW: usize = 64;

/// How many pages a fault brings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ahead {
    /// More and more while faults come in order.
    Guessed,
    /// Always as many as one copy is worth, and evicted pages are dropped, since the slab still has
    /// them: the best that can be done for pages that are read in order and never written, and
    /// wrong for any others.
    Known,
}

struct Pager {
    uffd: Uffd,
    memory: Memory,
    /// Where evicted pages are: the memory of "the donor".
    slab: Memory,
    ahead: Ahead,
    resident: Vec<bool>,
    order: VecDeque<usize>,
    limit: usize,
    /// Where the next fault comes in if pages are read in order.
    expected: usize,
    window: usize,
}

/// `pages` pages of which `limit` are resident at most, for so many threads. They start in the
/// slab.
pub fn memory(pages: usize, limit: usize, threads: usize, ahead: Ahead) -> anyhow::Result<Memory> {
    let (memory, slab) = (Memory::unfilled(pages)?, Memory::plain(pages)?);
    for nth in 0..threads {
        let (memory, slab) = (memory.part(nth, threads), slab.part(nth, threads));
        let uffd = registered(&memory)?;
        let limit = limit / threads;
        let pager = Pager {
            uffd,
            memory,
            slab,
            ahead,
            resident: vec![false; memory.pages],
            order: VecDeque::with_capacity(limit + WINDOW),
            limit,
            expected: usize::MAX,
            window: 1,
        };
        std::thread::Builder::new().name(format!("floor-{nth}")).spawn(move || {
            // An error here can't be handled: the faulting thread would wait for ever.
            if let Err(error) = pin(nth).and_then(|()| pager.serve()) {
                eprintln!("floor: {error:#}");
                std::process::exit(1);
            }
        })?;
    }
    Ok(memory)
}

/// A userfaultfd of its own for this part.
pub(super) fn registered(memory: &Memory) -> anyhow::Result<Uffd> {
    let uffd = UffdBuilder::new().close_on_exec(true).non_blocking(false).create().context("userfaultfd")?;
    uffd.register(memory.base.as_ptr().cast(), memory.pages * PAGE).context("registering the memory")?;
    Ok(uffd)
}

/// The page of the next fault in this part.
pub(super) fn next_fault(uffd: &Uffd, memory: &Memory) -> anyhow::Result<usize> {
    loop {
        if let Some(Event::Pagefault { addr, .. }) = uffd.read_event().context("reading a fault")? {
            return Ok((addr as usize - memory.base.as_ptr() as usize) / PAGE);
        }
    }
}

impl Pager {
    fn serve(mut self) -> anyhow::Result<()> {
        loop {
            let page = next_fault(&self.uffd, &self.memory)?;
            self.fault_in(page)?;
        }
    }

    fn fault_in(&mut self, page: usize) -> anyhow::Result<()> {
        self.window = match self.ahead {
            Ahead::Known => WINDOW,
            Ahead::Guessed if page == self.expected => (self.window * 2).min(WINDOW),
            Ahead::Guessed => 1,
        };
        let last = (page + self.window).min(self.resident.len());
        let count = (page..last).take_while(|p| !self.resident[*p]).count();
        if self.order.len() + count > self.limit {
            self.evict(BATCH.max(count))?;
        }
        // SAFETY: the range is not resident, lies in both mappings, and the slab holds its content.
        unsafe {
            let (from, to) = (self.slab.at(page), self.memory.at(page));
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
            // SAFETY: both ranges lie in their mappings; the thread that uses the memory waits for
            // us.
            let dropped = unsafe {
                let (from, to) = (self.memory.at(first), self.slab.at(first));
                if self.ahead == Ahead::Guessed {
                    std::ptr::copy_nonoverlapping(from.cast::<u8>(), to.cast::<u8>(), len);
                }
                libc::madvise(from.cast(), len, libc::MADV_DONTNEED)
            };
            anyhow::ensure!(dropped == 0, "madvise: {}", std::io::Error::last_os_error());
            run.iter().for_each(|p| self.resident[*p] = false);
        }
        Ok(())
    }
}
