//! The store's way to the pool: a lane that tasks share. Each task that reads waits for its own
//! answer; what all of them have posted goes to the fabric together, when none of them can go on.

use annex_pool::{Buf, Busy, Done, IoError, Lane, Part, SlotRun};
use annex_shared::ids::SlotIdx;
use slab::Slab;
use std::cell::{Cell, RefCell};
use std::future::Future;
use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::io::unix::AsyncFd;
use tokio::sync::Notify;

/// A lane with something under way is looked at this often at least.
const LOOK: Duration = Duration::from_millis(50);
const IDLE_LOOK: Duration = Duration::from_secs(1);

enum Waiting {
    Reader(Option<Waker>),
    Answered(Done),
    /// Who asked is not there any more.
    Nobody,
    /// A write of the log's.
    Flight,
}

/// Nothing was posted, and the buffer comes back.
enum NotPosted {
    Busy(Busy),
    /// What was to be read is nowhere any more.
    NoSlot(Buf),
}

impl From<Busy> for NotPosted {
    fn from(busy: Busy) -> NotPosted {
        NotPosted::Busy(busy)
    }
}

/// See the module's header.
pub struct PoolIo {
    lane: RefCell<Lane>,
    waiting: RefCell<Slab<Waiting>>,
    /// Something was posted, or is to be.
    posted: Notify,
    /// Buffers were given back.
    buffers_freed: Notify,
    /// Over, and not told to whoever waits for it.
    done: RefCell<Vec<Done>>,
    reads: Cell<u64>,
}

impl PoolIo {
    pub fn new(lane: Lane) -> PoolIo {
        PoolIo {
            lane: RefCell::new(lane),
            waiting: RefCell::new(Slab::new()),
            posted: Notify::new(),
            buffers_freed: Notify::new(),
            done: RefCell::new(Vec::new()),
            reads: Cell::new(0),
        }
    }

    /// Reads that are over.
    pub fn reads(&self) -> u64 {
        self.reads.get()
    }

    /// Reads a run within one extent, and has `take` look at its verified bytes.
    pub async fn read<T>(&self, run: SlotRun, take: impl FnOnce(&[u8]) -> T) -> Result<T, IoError> {
        let read =
            self.read_where(run.count as usize, |lane, buf, token| Ok(lane.read(run, buf, token)?), take).await?;
        read.ok_or(IoError::Misuse)
    }

    /// Reads one slot, which is looked up when nothing has to be waited for any more. `None`: there
    /// is none.
    pub async fn read_slot<T>(
        &self,
        slot: impl Fn() -> Option<SlotIdx>,
        take: impl FnOnce(&[u8]) -> T,
    ) -> Result<Option<T>, IoError> {
        let post = |lane: &mut Lane, buf, token| match slot() {
            Some(first) => Ok(lane.read(SlotRun { first, count: 1 }, buf, token)?),
            None => Err(NotPosted::NoSlot(buf)),
        };
        self.read_where(1, post, take).await
    }

    /// The same with some bytes of a slot. They are not verified.
    pub async fn read_piece<T>(
        &self,
        slot: impl Fn() -> Option<SlotIdx>,
        piece: Range<u32>,
        take: impl FnOnce(&[u8]) -> T,
    ) -> Result<Option<T>, IoError> {
        let bytes = piece.start as usize..piece.end as usize;
        let post = |lane: &mut Lane, buf, token| match slot() {
            Some(slot) => Ok(lane.read_piece(slot, piece.clone(), buf, token)?),
            None => Err(NotPosted::NoSlot(buf)),
        };
        self.read_where(1, post, |page| take(&page[bytes])).await
    }

    async fn read_where<T>(
        &self,
        pages: usize,
        post: impl Fn(&mut Lane, Buf, u64) -> Result<(), NotPosted>,
        take: impl FnOnce(&[u8]) -> T,
    ) -> Result<Option<T>, IoError> {
        let buf = self.buffer(pages).await;
        let done = match self.post(buf, post).await {
            Ok(done) => done,
            Err(buf) => {
                self.free(buf);
                return Ok(None);
            }
        };
        self.reads.set(self.reads.get() + 1);
        let taken = done.result.map(|()| take(self.lane.borrow().bytes(&done.buf)));
        self.free(done.buf);
        taken.map(Some)
    }

    /// Reads some bytes of a slot if that takes no waiting, and has `take` look at them. They are
    /// not verified. The slot stays what it is meanwhile, since nothing else runs. `None`: it takes
    /// waiting, or `take` does not want what came.
    pub fn read_now<T>(&self, slot: SlotIdx, piece: Range<u32>, take: impl FnOnce(&[u8]) -> Option<T>) -> Option<T> {
        let taken = self.lane.borrow_mut().read_now(slot, piece, take)?;
        self.reads.set(self.reads.get() + 1);
        Some(taken)
    }

    /// Says that [`PoolIo::read_now`] will be asked for these bytes soon.
    pub fn prefetch_hint(&self, slot: SlotIdx, piece: &Range<u32>) {
        self.lane.borrow_mut().prefetch_hint(slot, piece);
    }

    /// The end of what was just posted, if that comes at once. What else is over waits for
    /// [`PoolIo::step`].
    fn at_once(&self, token: usize) -> Option<Done> {
        let mut lane = self.lane.borrow_mut();
        if !lane.is_instant() {
            return None;
        }
        let mut done = self.done.borrow_mut();
        lane.submit();
        lane.poll(&mut done);
        let nth = done.iter().rposition(|done| done.token == token as u64)?;
        self.waiting.borrow_mut().remove(token);
        let ours = done.swap_remove(nth);
        if !done.is_empty() {
            self.posted.notify_one();
        }
        Some(ours)
    }

    /// A piece of the arena, as soon as there is one.
    pub async fn buffer(&self, pages: usize) -> Buf {
        loop {
            if let Some(buf) = self.try_buffer(pages) {
                return buf;
            }
            self.buffers_freed.notified().await;
        }
    }

    pub fn try_buffer(&self, pages: usize) -> Option<Buf> {
        self.lane.borrow_mut().alloc(pages)
    }

    pub fn free(&self, buf: Buf) {
        self.lane.borrow_mut().free(buf);
        self.buffers_freed.notify_waiters();
    }

    /// Lets the caller fill a buffer.
    pub fn fill(&self, buf: &mut Buf, fill: impl FnOnce(&mut [u8])) {
        fill(self.lane.borrow_mut().bytes_mut(buf));
    }

    /// Posts a write of the log's; [`PoolIo::step`] tells its end under the token returned here.
    /// Gives the buffer back if the lane has too much under way.
    pub fn post_flight(&self, parts: &[Part], buf: Buf) -> Result<u64, Buf> {
        let token = self.waiting.borrow_mut().insert(Waiting::Flight) as u64;
        match self.lane.borrow_mut().write(parts, buf, token) {
            Ok(()) => Ok(token),
            Err(busy) => {
                self.waiting.borrow_mut().remove(token as usize);
                Err(busy.0)
            }
        }
    }

    /// Writes parts of a buffer and waits until all replicas have them.
    pub async fn write(&self, parts: &[Part], buf: Buf) -> Result<(), IoError> {
        match self.post(buf, |lane, buf, token| Ok(lane.write(parts, buf, token)?)).await {
            Ok(done) => {
                self.free(done.buf);
                done.result
            }
            Err(buf) => {
                self.free(buf);
                Err(IoError::Misuse)
            }
        }
    }

    /// Posts something as soon as the lane has room for it, and waits for its end. Gives the buffer
    /// back if there is nothing to post it to.
    async fn post(
        &self,
        mut buf: Buf,
        post: impl Fn(&mut Lane, Buf, u64) -> Result<(), NotPosted>,
    ) -> Result<Done, Buf> {
        let token = loop {
            let token = self.waiting.borrow_mut().insert(Waiting::Reader(None));
            let refused = match post(&mut self.lane.borrow_mut(), buf, token as u64) {
                Ok(()) => break token,
                Err(refused) => refused,
            };
            self.waiting.borrow_mut().remove(token);
            match refused {
                NotPosted::NoSlot(buf) => return Err(buf),
                NotPosted::Busy(busy) => buf = busy.0,
            }
            self.buffers_freed.notified().await;
        };
        if let Some(done) = self.at_once(token) {
            return Ok(done);
        }
        self.posted.notify_one();
        Ok(Answer { pool_io: self, token }.await)
    }

    /// What is posted is over as soon as it is handed to the fabric.
    pub fn is_instant(&self) -> bool {
        self.lane.borrow().is_instant()
    }

    /// Has the driver look.
    pub fn wake(&self) {
        self.posted.notify_one();
    }

    /// Hands everything posted to the fabric, gives answers out, and tells of each of the log's
    /// writes that is over. True if anything was. One that failed gives its buffer to `landed`.
    pub fn step(&self, mut landed: impl FnMut(u64, Result<(), (IoError, Buf)>)) -> bool {
        let mut done = std::mem::take(&mut *self.done.borrow_mut());
        {
            let mut lane = self.lane.borrow_mut();
            lane.submit();
            lane.poll(&mut done);
        }
        let any = !done.is_empty();
        for done in done.drain(..) {
            let token = done.token;
            let mut waiting = self.waiting.borrow_mut();
            match waiting.get_mut(token as usize) {
                Some(Waiting::Flight) => {
                    waiting.remove(token as usize);
                    drop(waiting);
                    match done.result {
                        Ok(()) => {
                            self.free(done.buf);
                            landed(token, Ok(()));
                        }
                        Err(error) => landed(token, Err((error, done.buf))),
                    }
                }
                Some(entry @ Waiting::Reader(_)) => {
                    if let Waiting::Reader(Some(waker)) = std::mem::replace(entry, Waiting::Answered(done)) {
                        waker.wake();
                    }
                }
                _ => {
                    waiting.try_remove(token as usize);
                    drop(waiting);
                    self.free(done.buf);
                }
            }
        }
        *self.done.borrow_mut() = done;
        any
    }

    /// Waits until there is something to do for [`PoolIo::step`].
    pub async fn rest(&self, events: &AsyncFd<OwnedFd>) {
        let look = if self.lane.borrow().in_flight() == 0 { IDLE_LOOK } else { LOOK };
        if self.lane.borrow_mut().arm() {
            return tokio::task::yield_now().await;
        }
        tokio::select! {
            biased;
            () = self.posted.notified() => {}
            ready = events.readable() => {
                if let Ok(mut ready) = ready {
                    ready.clear_ready();
                }
            }
            () = tokio::time::sleep(look) => {}
        }
    }

    /// The lane's events, for [`PoolIo::rest`].
    pub fn events(&self) -> io::Result<AsyncFd<OwnedFd>> {
        let fd = self.lane.borrow().event_fd().try_clone_to_owned()?;
        // SAFETY: the descriptor is open, ours alone, and stays what it is: nobody else has it, and
        // AsyncFd owns it until it is dropped.
        Ok(unsafe { AsyncFd::register_with_interest(fd, tokio::io::Interest::READABLE) }?)
    }
}

struct Answer<'a> {
    pool_io: &'a PoolIo,
    token: usize,
}

impl Future for Answer<'_> {
    type Output = Done;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Done> {
        let mut waiting = self.pool_io.waiting.borrow_mut();
        match &mut waiting[self.token] {
            Waiting::Reader(waker) => {
                *waker = Some(context.waker().clone());
                Poll::Pending
            }
            entry => match std::mem::replace(entry, Waiting::Nobody) {
                Waiting::Answered(done) => Poll::Ready(done),
                _ => Poll::Pending,
            },
        }
    }
}

impl Drop for Answer<'_> {
    fn drop(&mut self) {
        let mut waiting = self.pool_io.waiting.borrow_mut();
        let place = std::mem::replace(&mut waiting[self.token], Waiting::Nobody);
        match place {
            // It is under way: its end frees the entry.
            Waiting::Reader(_) => {}
            Waiting::Answered(done) => {
                waiting.remove(self.token);
                drop(waiting);
                self.pool_io.free(done.buf);
            }
            Waiting::Nobody | Waiting::Flight => drop(waiting.remove(self.token)),
        }
    }
}
