//! A lane: one thread's way into the pool. It owns an arena of page buffers and one fabric endpoint
//! per donor.
//!
//! A *read* goes to one replica, the fastest live one, and every page's tag is compared with the
//! slot table before the owner may see it. A failed attempt or a wrong page makes the next
//! replica's turn, from the first page that is not verified yet; one that is slow gets company
//! (`hedge`). The spill file is asked last. Only when every live replica failed several times is
//! the read an error. A wrong page is told to the repair thread.
//!
//! A *write* goes to all live and syncing replicas. One that fails in passing is tried again, on a
//! fresh endpoint if the old one broke, until the replica has it or is given up: lost by the
//! donor's own word (remote access error), stale by failing too often or by the coordinator when
//! the donor is out of reach. It is done when every replica of every part is settled (`replicas`
//! tells how), and well done if each part has a live replica that took it. So a replica that is
//! live holds every write that was reported done, and of others it is known what they lack.
//!
//! Nothing here blocks or allocates once the lane is made. Broken endpoints go to the donor's
//! control thread, which sends a fresh one.

mod end;
mod hedge;
mod now;
mod posting;
mod progress;
mod read;
mod silence;
mod spare;
mod state;
mod timer;
mod write;

#[cfg(test)]
pub(crate) use end::LATE;

use crate::coordinator::news::News;
use crate::core::{LaneEntry, PoolCore};
use crate::error::{IoError, LaneError};
use crate::io::buffer::{Buf, Buffers};
use crate::io::inflight::{Job, NIL, ReadWork, Table, Work, WriteWork};
use crate::io::mailbox::Mailbox;
use crate::io::request::{Busy, Done, Part};
use crate::metadata::slots::SlotRun;
use annex_fabric::Arena;
use annex_shared::ids::{DonorId, SlotIdx};
use annex_shared::page::PAGE_SIZE;
use end::End;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use state::{LaneState, MAX_OP_PAGES};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};
use timer::Timer;

/// An endpoint with nothing outstanding is looked at this often, to notice that its connection
/// closed.
const IDLE_CHECK: Duration = Duration::from_millis(10);

/// Lanes are numbered over the whole process, so that a buffer of one is never taken for another's,
/// whatever its pool.
static NEXT_LANE: AtomicU32 = AtomicU32::new(0);

/// See the module's header.
pub struct Lane {
    state: LaneState,
}

impl Lane {
    pub(crate) fn new(core: Arc<PoolCore>, pages: usize) -> Result<Lane, LaneError> {
        let pages = u32::try_from(pages.max(1)).map_err(|_| LaneError::TooLarge(pages))?;
        let spare = spare::spare_pages(pages, &core);
        let arena = Arc::new(Arena::new((pages + spare) as usize * PAGE_SIZE)?);
        let mailbox = Arc::new(Mailbox::new().map_err(|e| LaneError::Events(e.into()))?);
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(|e| LaneError::Events(e.into()))?;
        let watch = EpollEvent::new(EpollFlags::EPOLLIN, 0);
        epoll.add(mailbox.event_fd(), watch).map_err(|e| LaneError::Events(e.into()))?;
        let timer = Timer::new().map_err(|e| LaneError::Events(e.into()))?;
        epoll.add(timer.fd(), watch).map_err(|e| LaneError::Events(e.into()))?;
        let id = NEXT_LANE.fetch_add(1, Relaxed);
        let entry = LaneEntry { id, arena: arena.clone(), mailbox: mailbox.clone() };
        core.lanes.lock().push(entry);
        core.tell(News::LaneOpened(id));
        // Every job needs a page of the arena at least, a part too, and each part a few operations.
        let per_page = u32::from(core.config.replicas) + 1;
        let (jobs, ops) = (pages, pages.saturating_mul(per_page).saturating_add(64));
        let seen_changes = core.changes();
        let ends = core.donors().map(|d| usize::from(d.id.0) + 1).max().unwrap_or(0);
        let state = LaneState {
            id,
            mailbox,
            ends: (0..ends).map(|_| End::default()).collect(),
            epoll,
            buffers: Buffers::new(id, arena, pages + spare, spare),
            timer,
            jobs: Table::with_capacity(jobs),
            parts: Table::with_capacity(pages.saturating_add(64)),
            ops: Table::with_capacity(ops),
            finished: Vec::with_capacity(jobs as usize),
            deferred: Vec::with_capacity(ops as usize),
            stalled: Vec::with_capacity(jobs as usize),
            scratch: Vec::with_capacity(1024),
            seen_changes,
            idle_check: Instant::now(),
            is_served_here: false,
            reads: 0,
            reports: true,
            past_caches: false,
            core,
        };
        Ok(Lane { state })
    }

    /// A piece of the arena; `None` if no piece of this size is free.
    pub fn alloc(&mut self, pages: usize) -> Option<Buf> {
        self.state.buffers.alloc(pages)
    }

    pub fn free(&mut self, buf: Buf) {
        self.state.buffers.give_back(buf);
    }

    /// A buffer's bytes.
    ///
    /// # Panics
    /// If the buffer is another lane's.
    pub fn bytes(&self, buf: &Buf) -> &[u8] {
        self.state.buffers.bytes(buf)
    }

    /// A buffer's bytes, to write.
    ///
    /// # Panics
    /// If the buffer is another lane's.
    pub fn bytes_mut(&mut self, buf: &mut Buf) -> &mut [u8] {
        self.state.buffers.bytes_mut(buf)
    }

    /// Reads the slots of a run into a buffer of at least its size. The run's slots are retained
    /// until it is done. The buffer that comes back may be another one of the same size.
    pub fn read(&mut self, run: SlotRun, buf: Buf, token: u64) -> Result<(), Busy> {
        self.read_as(run, buf, token, None, None)
    }

    /// Reads one replica and no other, once.
    pub(crate) fn read_only(&mut self, run: SlotRun, index: u8, buf: Buf, token: u64) -> Result<(), Busy> {
        self.read_as(run, buf, token, Some(index), None)
    }

    /// Reads some bytes of a slot, and does not verify them unless they are sealed: for those that
    /// carry a checksum of their own. If it is wrong, [`Lane::read`] brings the slot from a replica
    /// that has it right. The bytes lie in the buffer where they lie in the slot.
    pub fn read_piece(&mut self, slot: SlotIdx, piece: Range<u32>, buf: Buf, token: u64) -> Result<(), Busy> {
        if piece.is_empty() || piece.end > PAGE_SIZE as u32 {
            self.state.finished.push(Done { token, buf, result: Err(IoError::Misuse) });
            return Ok(());
        }
        let run = SlotRun { first: slot, count: 1 };
        self.read_as(run, buf, token, None, Some((piece.start, piece.end - piece.start)))
    }

    fn read_as(
        &mut self,
        run: SlotRun,
        buf: Buf,
        token: u64,
        only: Option<u8>,
        piece: Option<(u32, u32)>,
    ) -> Result<(), Busy> {
        self.state.buffers.own(&buf);
        if self.state.jobs.room() == 0 || self.state.ops.room() == 0 {
            return Err(Busy(buf));
        }
        if run.count == 0 || run.count > buf.pages || self.state.one_extent(run).is_none() || !self.state.retain(run) {
            self.state.finished.push(Done { token, buf, result: Err(IoError::Misuse) });
            return Ok(());
        }
        let work = ReadWork { only, piece, ..ReadWork::new(run) };
        if let Some(job) = self.state.jobs.insert(Job { token, buf, work: Work::Read(work) }) {
            read::read_on(&mut self.state, job, Instant::now());
        }
        Ok(())
    }

    /// Writes parts of a buffer to slots that the caller has reserved and that nobody reads yet, on
    /// all live replicas. The slots' tags are computed and stored here; the slots are retained
    /// until it is done. If it fails, the buffer comes back as it was. If not, it may hold
    /// anything.
    pub fn write(&mut self, parts: &[Part], buf: Buf, token: u64) -> Result<(), Busy> {
        self.state.buffers.own(&buf);
        let chunks = |p: &Part| p.run.count.div_ceil(MAX_OP_PAGES) as usize;
        let needed = parts.iter().map(chunks).sum::<usize>() * (usize::from(self.state.core.config.replicas) + 1);
        if self.state.jobs.room() == 0 || self.state.parts.room() < parts.len() || self.state.ops.room() < needed {
            return Err(Busy(buf));
        }
        let fits = |p: &Part| p.run.count > 0 && p.at + p.run.count as usize <= buf.pages as usize;
        if parts.is_empty() || !parts.iter().all(|p| fits(p) && self.state.one_extent(p.run).is_some()) {
            self.state.finished.push(Done { token, buf, result: Err(IoError::Misuse) });
            return Ok(());
        }
        for (i, part) in parts.iter().enumerate() {
            if !self.state.retain(part.run) {
                parts[..i].iter().for_each(|p| self.state.core.release_run(p.run));
                self.state.finished.push(Done { token, buf, result: Err(IoError::Misuse) });
                return Ok(());
            }
        }
        let first_page = buf.page as usize;
        let work = WriteWork { parts: NIL, parts_left: parts.len() as u32, error: None };
        let Some(job) = self.state.jobs.insert(Job { token, buf, work: Work::Write(work) }) else { return Ok(()) };
        let now = Instant::now();
        for part in parts {
            write::write_part(&mut self.state, job, part.run, (first_page + part.at) * PAGE_SIZE, now);
        }
        Ok(())
    }

    /// Writes bytes that other replicas have already to one that lacks them. The slots are retained
    /// until it is done; it is well done if the entry still stands for that replica and took all.
    pub(crate) fn heal(&mut self, run: SlotRun, index: u8, generation: u16, buf: Buf, token: u64) -> Result<(), Busy> {
        self.state.buffers.own(&buf);
        if self.state.jobs.room() == 0 || self.state.parts.room() == 0 || self.state.ops.room() < 2 {
            return Err(Busy(buf));
        }
        let fits = run.count > 0 && run.count <= buf.pages.min(MAX_OP_PAGES);
        if !fits || self.state.one_extent(run).is_none() || !self.state.retain(run) {
            self.state.finished.push(Done { token, buf, result: Err(IoError::Misuse) });
            return Ok(());
        }
        let local = buf.page as usize * PAGE_SIZE;
        let work = WriteWork { parts: NIL, parts_left: 1, error: None };
        if let Some(job) = self.state.jobs.insert(Job { token, buf, work: Work::Write(work) }) {
            write::heal_part(&mut self.state, job, run, local, index, generation, Instant::now());
        }
        Ok(())
    }

    /// Wrong bytes are not told to the repair thread, nor sealed pages opened: this is its lane.
    pub(crate) fn keep_quiet(&mut self) {
        self.state.reports = false;
    }

    /// What this lane writes is not read back soon, nor by whoever works beside it.
    pub fn write_past_caches(&mut self) {
        self.state.past_caches = true;
        self.state
            .ends
            .iter_mut()
            .filter_map(|end| end.endpoint.as_mut())
            .for_each(|endpoint| endpoint.write_past_caches());
    }

    /// Rings the doorbell of every endpoint that has something posted.
    pub fn submit(&mut self) {
        for end in &mut self.state.ends {
            if std::mem::take(&mut end.posted)
                && let Some(endpoint) = &mut end.endpoint
            {
                endpoint.ring();
            }
        }
    }

    /// Moves everything forward and appends what is done.
    pub fn poll(&mut self, done: &mut Vec<Done>) {
        let now = Instant::now();
        if self.state.mailbox.has_news() {
            self.state.mailbox.open();
            while let Some(delivery) = self.state.mailbox.take() {
                progress::receive(&mut self.state, delivery);
            }
            progress::unstall(&mut self.state, now);
        }
        let idle_too = now.duration_since(self.state.idle_check) >= IDLE_CHECK;
        if idle_too {
            self.state.idle_check = now;
        }
        for at in 0..self.state.ends.len() {
            progress::poll_end(&mut self.state, at, idle_too, now);
        }
        if idle_too {
            // What was there and not yet looked at is no silence.
            silence::listen(&mut self.state, now);
        }
        if self.state.seen_changes != self.state.core.changes() {
            progress::sweep(&mut self.state, now);
        }
        hedge::hedge(&mut self.state, now);
        if !self.state.deferred.is_empty() {
            progress::retry_deferred(&mut self.state, now);
        }
        for at in 0..self.state.ends.len() {
            posting::post_waiting(&mut self.state, at, now);
        }
        self.submit();
        done.append(&mut self.state.finished);
    }

    /// Prepares to sleep on [`Lane::event_fd`]; true = poll again first.
    pub fn arm(&mut self) -> bool {
        let mut again = !self.state.finished.is_empty() || self.state.mailbox.has_news();
        for end in &mut self.state.ends {
            if let Some(endpoint) = &mut end.endpoint {
                again |= endpoint.arm();
            }
        }
        hedge::set_timer(&mut self.state);
        again
    }

    /// Readable when something that concerns the lane has happened.
    pub fn event_fd(&self) -> BorrowedFd<'_> {
        self.state.epoll.0.as_fd()
    }

    /// Jobs under way. While it is not 0 the owner polls at least every 100 ms.
    pub fn in_flight(&self) -> usize {
        self.state.jobs.used() + self.state.finished.len()
    }

    /// Operations are completed as soon as they are submitted: all donors are reached through
    /// shared memory.
    pub fn is_instant(&self) -> bool {
        let mut open = self.state.ends.iter().filter_map(|end| end.endpoint.as_ref()).peekable();
        open.peek().is_some() && open.all(|endpoint| endpoint.event_fd().is_none())
    }

    /// Threads of donors on this very host do its operations, and need a CPU for that.
    pub fn is_served_here(&self) -> bool {
        self.state.is_served_here
    }

    /// How long operations usually take on the quickest of the donors that have some to do; `None`
    /// if none has.
    pub fn usual_wait(&self) -> Option<Duration> {
        let busy = self.state.ends.iter().filter(|e| e.outstanding > 0);
        busy.map(|e| Duration::from_nanos(e.latency_ns)).min()
    }

    /// Donors this lane has a working endpoint to.
    pub fn connected(&self) -> usize {
        self.state.ends.iter().filter(|e| e.usable()).count()
    }

    /// Pages of the arena that late answers may still write to.
    pub fn pages_out(&self) -> u32 {
        spare::spare_pages((self.state.jobs.used() + self.state.jobs.room()) as u32, &self.state.core)
            - self.state.buffers.spare
    }

    /// Reads some bytes of a slot here and now, and has `take` look at them: not verified, as with
    /// [`Lane::read_piece`]. The caller holds a reference to the slot until this returns. `None`:
    /// the best replica can't be read like that or gave nothing, or `take` did not want what it
    /// gave; the ways that wait find out more, and tell whom it concerns.
    pub fn read_now<T>(
        &mut self,
        slot: SlotIdx,
        piece: Range<u32>,
        take: impl FnOnce(&[u8]) -> Option<T>,
    ) -> Option<T> {
        now::read_now(&mut self.state, slot, piece, take)
    }

    /// Reads a page here and now, and has `take` look at it if it is as it was written. Otherwise
    /// as [`Lane::read_now`].
    pub fn read_page_now<T>(&mut self, slot: SlotIdx, take: impl FnOnce(&[u8]) -> Option<T>) -> Option<T> {
        now::read_page_now(&mut self.state, slot, take)
    }

    /// Says that some bytes of a slot will be read here and now, soon: what can be brought nearer
    /// is. Nothing depends on it.
    pub fn prefetch_hint(&mut self, slot: SlotIdx, piece: &Range<u32>) {
        now::prefetch_hint(&mut self.state, slot, piece);
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        self.state.core.lanes.lock().retain(|l| l.id != self.state.id);
        // The endpoints go first: after that nothing moves bytes in the arena or out of it.
        for (at, end) in std::mem::take(&mut self.state.ends).into_iter().enumerate() {
            if let (Some(endpoint), Some(donor)) = (end.endpoint, self.state.core.donor(DonorId(at as u16))) {
                donor.traffic.disconnected(endpoint.transport());
            }
        }
        for job in self.state.jobs.drain() {
            if let Work::Read(read) = job.work {
                self.state.core.release_run(read.run);
            }
        }
        for part in self.state.parts.drain() {
            self.state.core.tell(News::Quarantine(part.run));
        }
    }
}
