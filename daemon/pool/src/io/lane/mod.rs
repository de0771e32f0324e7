//! A lane: one thread's way into the pool. It owns an arena of page buffers and one fabric endpoint
//! per donor.
//!
//! A *read* goes to one replica, the fastest live one, and every page's CRC32C is compared with the
//! slot table before the owner may see it. A failed attempt or a wrong page makes the next
//! replica's turn, from the first page that is not verified yet; one that is slow gets company
//! (`hedge`). The spill file is asked last. Only when every live replica failed several times is
//! the read an error. A wrong page is told to the repair thread.
//!
//! A *write* goes to all live and joining replicas. One that fails in passing is tried again, on a
//! fresh endpoint if the old one broke, until the replica has it or is given up: lost by the
//! donor's own word (remote access error), away by failing too often or by the coordinator when the
//! donor is out of reach. It is done when every replica of every part is settled (`replicas` tells
//! how), and well done if each part has a live replica that took it. So a replica that is live
//! holds every write that was reported done, and of others it is known what they lack.
//!
//! Nothing here blocks or allocates once the lane is made. Broken endpoints go to the donor's
//! control thread, which sends a fresh one.

mod ends;
mod hedge;
mod now;
mod read;
pub(crate) mod silence;
mod write;

use crate::coordinator::news::News;
use crate::core::{Core, LaneEntry, lock};
use crate::error::{IoError, LaneError};
use crate::io::buffer::{Buf, FreeList};
use crate::io::inflight::{Direction, Job, NIL, PartState, Pending, Pool, Posted, Queue, ReadWork, Work, WriteWork};
use crate::io::latency;
use crate::io::mailbox::{Delivery, Mailbox};
use crate::io::request::{Busy, Done, Part};
use crate::metadata::replica::{PLACES, Replica, ReplicaState, Replicas};
use crate::metadata::slots::SlotRun;
use annex_fabric::{Arena, Completion, Endpoint, ErrorKind, MAX_OP_LEN, Op, OpKind, Transport};
use annex_shared::ids::{DonorId, ExtentId, RemoteAddr, SlotIdx};
use annex_shared::page::{PAGE_SIZE, checksum};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// The most pages one fabric operation moves.
const MAX_OP_PAGES: u32 = MAX_OP_LEN / PAGE_SIZE as u32;
/// An endpoint with nothing outstanding is looked at this often, to notice that its connection
/// closed.
const IDLE_CHECK: Duration = Duration::from_millis(10);

/// Lanes are numbered over the whole process, so that a buffer of one is never taken for another's,
/// whatever its pool.
static NEXT_LANE: AtomicU32 = AtomicU32::new(0);

/// See the module's header.
pub struct Lane {
    id: u32,
    core: Arc<Core>,
    mailbox: Arc<Mailbox>,
    ends: Vec<End>,
    arena: Arc<Arena>,
    epoll: Epoll,
    free: FreeList,
    /// Pages of the arena that nobody has but hedges may take.
    spare: u32,
    timer: hedge::Timer,
    jobs: Pool<Job>,
    parts: Pool<PartState>,
    ops: Pool<Pending>,
    finished: Vec<Done>,
    /// Writes to try again later.
    deferred: Vec<u32>,
    /// Reads for which no live replica has an endpoint now.
    stalled: Vec<u32>,
    scratch: Vec<Completion>,
    seen_changes: u64,
    idle_check: Instant,
    is_served_here: bool,
    reads: u32,
    /// Wrong bytes are told to the repair thread (which does not tell itself).
    reports: bool,
    past_caches: bool,
}

/// One donor's end, as this lane holds it.
#[derive(Default)]
struct End {
    endpoint: Option<Box<dyn Endpoint>>,
    /// A fresh one that takes over when nothing is outstanding on the old one.
    next: Option<Box<dyn Endpoint>>,
    outstanding: usize,
    /// Operations that wait for room or for an endpoint.
    waiting: Queue,
    posted: bool,
    latency_ns: u64,
    /// When something came from it last, or was posted while nothing was outstanding; and when the
    /// coordinator was told of its silence.
    heard: Option<Instant>,
    told: Option<Instant>,
    /// Reads that are posted.
    reads: Posted,
    quantile: latency::Quantile,
}

impl End {
    fn usable(&self) -> bool {
        self.next.is_none() && self.endpoint.as_ref().is_some_and(|e| !e.is_broken())
    }

    /// A read took so long.
    fn learn(&mut self, took: Duration) {
        let ns = took.as_nanos() as u64;
        self.latency_ns = self.latency_ns - self.latency_ns / 8 + ns / 8;
        self.quantile.observe(ns);
    }
}

impl Lane {
    pub(crate) fn new(core: Arc<Core>, pages: usize) -> Result<Lane, LaneError> {
        let pages = u32::try_from(pages.max(1)).map_err(|_| LaneError::TooLarge(pages))?;
        let spare = hedge::spare(pages, &core);
        let arena = Arc::new(Arena::new((pages + spare) as usize * PAGE_SIZE)?);
        let mailbox = Arc::new(Mailbox::new().map_err(|e| LaneError::Events(e.into()))?);
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(|e| LaneError::Events(e.into()))?;
        let watch = EpollEvent::new(EpollFlags::EPOLLIN, 0);
        epoll.add(mailbox.event_fd(), watch).map_err(|e| LaneError::Events(e.into()))?;
        let timer = hedge::Timer::new().map_err(|e| LaneError::Events(e.into()))?;
        epoll.add(timer.fd(), watch).map_err(|e| LaneError::Events(e.into()))?;
        let id = NEXT_LANE.fetch_add(1, Relaxed);
        let entry = LaneEntry { id, arena: arena.clone(), mailbox: mailbox.clone() };
        lock(&core.lanes).push(entry);
        core.tell(News::LaneOpened(id));
        // Every job needs a page of the arena at least, a part too, and each part a few operations.
        let per_page = u32::from(core.config.replicas) + 1;
        let (jobs, ops) = (pages, pages.saturating_mul(per_page).saturating_add(64));
        let seen_changes = core.changes();
        let ends = core.donors().map(|d| usize::from(d.id.0) + 1).max().unwrap_or(0);
        Ok(Lane {
            id,
            mailbox,
            ends: (0..ends).map(|_| End::default()).collect(),
            arena,
            epoll,
            free: FreeList::new(pages + spare),
            spare,
            timer,
            jobs: Pool::with_capacity(jobs),
            parts: Pool::with_capacity(pages.saturating_add(64)),
            ops: Pool::with_capacity(ops),
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
        })
    }

    /// A piece of the arena; `None` if no piece of this size is free.
    pub fn alloc(&mut self, pages: usize) -> Option<Buf> {
        let pages = u32::try_from(pages).ok()?;
        if pages.saturating_add(self.spare) > self.free.free_pages() {
            return None;
        }
        let page = self.free.alloc(pages)?;
        Some(Buf { lane: self.id, page, pages })
    }

    pub fn free(&mut self, buf: Buf) {
        self.own(&buf);
        self.free.free(buf.page, buf.pages);
    }

    /// A buffer's bytes.
    ///
    /// # Panics
    /// If the buffer is another lane's.
    pub fn bytes(&self, buf: &Buf) -> &[u8] {
        self.own(buf);
        // SAFETY: the Buf exists outside the lane, so no operation on its range is in flight
        // (operations take it by value), ranges of distinct Bufs are disjoint (FreeList), and a
        // mutable view needs &mut self.
        unsafe { self.arena.bytes(buf.page as usize * PAGE_SIZE, buf.pages as usize * PAGE_SIZE) }
    }

    /// A buffer's bytes, to write.
    ///
    /// # Panics
    /// If the buffer is another lane's.
    pub fn bytes_mut(&mut self, buf: &mut Buf) -> &mut [u8] {
        self.own(buf);
        // SAFETY: as in `bytes`; &mut self keeps every other view away.
        unsafe { self.arena.bytes_mut(buf.page as usize * PAGE_SIZE, buf.pages as usize * PAGE_SIZE) }
    }

    /// Reads the slots of a run into a buffer of at least its size. The run's slots are retained
    /// until it is done. The buffer that comes back may be another one of the same size.
    pub fn read(&mut self, run: SlotRun, buf: Buf, token: u64) -> Result<(), Busy> {
        self.read_as(run, buf, token, None, None)
    }

    /// Reads one replica and no other, once.
    pub(crate) fn read_only(&mut self, run: SlotRun, place: u8, buf: Buf, token: u64) -> Result<(), Busy> {
        self.read_as(run, buf, token, Some(place), None)
    }

    /// Reads some bytes of a slot, and does not verify them: for those that carry a checksum of
    /// their own. If it is wrong, [`Lane::read`] brings the slot from a replica that has it right.
    /// The bytes lie in the buffer where they lie in the slot.
    pub fn read_piece(&mut self, slot: SlotIdx, piece: Range<u32>, buf: Buf, token: u64) -> Result<(), Busy> {
        if piece.is_empty() || piece.end > PAGE_SIZE as u32 {
            self.finished.push(Done { token, buf, result: Err(IoError::Misuse) });
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
        self.own(&buf);
        if self.jobs.room() == 0 || self.ops.room() == 0 {
            return Err(Busy(buf));
        }
        if run.count == 0 || run.count > buf.pages || self.one_extent(run).is_none() || !self.retain(run) {
            self.finished.push(Done { token, buf, result: Err(IoError::Misuse) });
            return Ok(());
        }
        let work = ReadWork { only, piece, ..ReadWork::new(run) };
        if let Some(job) = self.jobs.insert(Job { token, buf, work: Work::Read(work) }) {
            self.read_on(job, Instant::now());
        }
        Ok(())
    }

    /// Writes parts of a buffer to slots that the caller has reserved and that nobody reads yet, on
    /// all live replicas. The slots' checksums are computed and stored here; the slots are retained
    /// until it is done.
    pub fn write(&mut self, parts: &[Part], buf: Buf, token: u64) -> Result<(), Busy> {
        self.own(&buf);
        let chunks = |p: &Part| p.run.count.div_ceil(MAX_OP_PAGES) as usize;
        let needed = parts.iter().map(chunks).sum::<usize>() * (usize::from(self.core.config.replicas) + 1);
        if self.jobs.room() == 0 || self.parts.room() < parts.len() || self.ops.room() < needed {
            return Err(Busy(buf));
        }
        let fits = |p: &Part| p.run.count > 0 && p.at + p.run.count as usize <= buf.pages as usize;
        if parts.is_empty() || !parts.iter().all(|p| fits(p) && self.one_extent(p.run).is_some()) {
            self.finished.push(Done { token, buf, result: Err(IoError::Misuse) });
            return Ok(());
        }
        for (i, part) in parts.iter().enumerate() {
            if !self.retain(part.run) {
                parts[..i].iter().for_each(|p| self.core.release_run(p.run));
                self.finished.push(Done { token, buf, result: Err(IoError::Misuse) });
                return Ok(());
            }
        }
        let first_page = buf.page as usize;
        let work = WriteWork { parts: NIL, parts_left: parts.len() as u32, error: None };
        let Some(job) = self.jobs.insert(Job { token, buf, work: Work::Write(work) }) else { return Ok(()) };
        let now = Instant::now();
        for part in parts {
            self.write_part(job, part.run, (first_page + part.at) * PAGE_SIZE, now);
        }
        Ok(())
    }

    /// Writes bytes that other replicas have already to one that lacks them. The slots are retained
    /// until it is done; it is well done if the place still stands for that replica and took all.
    pub(crate) fn heal(&mut self, run: SlotRun, place: u8, generation: u16, buf: Buf, token: u64) -> Result<(), Busy> {
        self.own(&buf);
        if self.jobs.room() == 0 || self.parts.room() == 0 || self.ops.room() < 2 {
            return Err(Busy(buf));
        }
        let fits = run.count > 0 && run.count <= buf.pages.min(MAX_OP_PAGES);
        if !fits || self.one_extent(run).is_none() || !self.retain(run) {
            self.finished.push(Done { token, buf, result: Err(IoError::Misuse) });
            return Ok(());
        }
        let local = buf.page as usize * PAGE_SIZE;
        let work = WriteWork { parts: NIL, parts_left: 1, error: None };
        if let Some(job) = self.jobs.insert(Job { token, buf, work: Work::Write(work) }) {
            self.heal_part(job, run, local, place, generation, Instant::now());
        }
        Ok(())
    }

    /// Wrong bytes are not told to the repair thread: this is its own lane.
    pub(crate) fn keep_quiet(&mut self) {
        self.reports = false;
    }

    /// What this lane writes is not read back soon, nor by whoever works beside it.
    pub fn write_past_caches(&mut self) {
        self.past_caches = true;
        self.ends.iter_mut().filter_map(|end| end.endpoint.as_mut()).for_each(|endpoint| endpoint.write_past_caches());
    }

    /// Rings the doorbell of every endpoint that has something posted.
    pub fn submit(&mut self) {
        for end in &mut self.ends {
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
        if self.mailbox.has_news() {
            self.mailbox.open();
            while let Some(delivery) = self.mailbox.take() {
                self.receive(delivery);
            }
            self.unstall(now);
        }
        let idle_too = now.duration_since(self.idle_check) >= IDLE_CHECK;
        if idle_too {
            self.idle_check = now;
        }
        for at in 0..self.ends.len() {
            self.poll_end(at, idle_too, now);
        }
        if idle_too {
            // What was there and not yet looked at is no silence.
            self.listen(now);
        }
        if self.seen_changes != self.core.changes() {
            self.sweep(now);
        }
        self.hedge(now);
        if !self.deferred.is_empty() {
            self.retry_deferred(now);
        }
        for at in 0..self.ends.len() {
            self.post_waiting(at, now);
        }
        self.submit();
        done.append(&mut self.finished);
    }

    /// Prepares to sleep on [`Lane::event_fd`]; true = poll again first.
    pub fn arm(&mut self) -> bool {
        let mut again = !self.finished.is_empty() || self.mailbox.has_news();
        for end in &mut self.ends {
            if let Some(endpoint) = &mut end.endpoint {
                again |= endpoint.arm();
            }
        }
        self.set_timer();
        again
    }

    /// Readable when something that concerns the lane has happened.
    pub fn event_fd(&self) -> BorrowedFd<'_> {
        self.epoll.0.as_fd()
    }

    /// Jobs under way. While it is not 0 the owner polls at least every 100 ms.
    pub fn in_flight(&self) -> usize {
        self.jobs.used() + self.finished.len()
    }

    /// Operations are over as soon as they are submitted: all donors are reached through shared
    /// memory.
    pub fn is_instant(&self) -> bool {
        let mut open = self.ends.iter().filter_map(|end| end.endpoint.as_ref()).peekable();
        open.peek().is_some() && open.all(|endpoint| endpoint.event_fd().is_none())
    }

    /// Threads of donors on this very host do its operations, and need a CPU for that.
    pub fn is_served_here(&self) -> bool {
        self.is_served_here
    }

    /// How long operations usually take on the quickest of the donors that have some to do; `None`
    /// if none has.
    pub fn usual_wait(&self) -> Option<Duration> {
        let busy = self.ends.iter().filter(|e| e.outstanding > 0);
        busy.map(|e| Duration::from_nanos(e.latency_ns)).min()
    }

    /// Donors this lane has a working endpoint to.
    pub fn connected(&self) -> usize {
        self.ends.iter().filter(|e| e.usable()).count()
    }

    /// Pages of the arena that late answers may still write to.
    pub fn pages_out(&self) -> u32 {
        hedge::spare((self.jobs.used() + self.jobs.room()) as u32, &self.core) - self.spare
    }

    fn own(&self, buf: &Buf) {
        assert_eq!(buf.lane, self.id, "a buffer of lane {} was given to lane {}", buf.lane, self.id);
    }

    /// The extent that holds all of a run.
    fn one_extent(&self, run: SlotRun) -> Option<(ExtentId, u32)> {
        let (extent, place) = self.core.extents.locate(run.first)?;
        let slots = self.core.extents.slots_per_extent()?;
        (run.count <= slots - place).then_some((extent, place))
    }

    /// Retains a whole run or nothing of it.
    fn retain(&self, run: SlotRun) -> bool {
        let got = run.slots().take_while(|s| self.core.retain(*s)).count() as u32;
        if got < run.count {
            tracing::error!("an operation on {} + {got}, which is free", run.first);
            self.core.release_run(SlotRun { first: run.first, count: got });
        }
        got == run.count
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        lock(&self.core.lanes).retain(|l| l.id != self.id);
        // The endpoints go first: after that nothing moves bytes in the arena or out of it.
        for (at, end) in std::mem::take(&mut self.ends).into_iter().enumerate() {
            if let (Some(endpoint), Some(donor)) = (end.endpoint, self.core.donor(DonorId(at as u16))) {
                donor.traffic.disconnected(endpoint.transport());
            }
        }
        for job in self.jobs.drain() {
            if let Work::Read(read) = job.work {
                self.core.release_run(read.run);
            }
        }
        for part in self.parts.drain() {
            self.core.tell(News::Quarantine(part.run));
        }
    }
}
