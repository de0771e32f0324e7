//! One lane's connection: a ring of operations between what was posted and what was answered.
//!
//! ```text
//!   first          sending        rung        next
//!     │ wholly sent,  │ to be sent  │ posted,   │
//!     │ not answered  │             │ not rung  │
//! ```
//! These are sequence numbers; a slot is the sequence number modulo the depth.
//!
//! The agent answers in order, so the ring needs no other index. An operation that fails before it
//! is sent keeps its place and completes when it becomes the first.

use super::frame::{ANSWER_LEN, Answer, FrameError, REQUEST_LEN, Request, Verb};
use crate::ledger::Link;
use crate::{Arena, Completion, Endpoint, ErrorKind, Op, OpKind, QueueFull, Transport};
use annex_identity::stream::Stream;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use std::io::{self, IoSlice, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Answers read ahead. A READ's payload that is not here yet goes straight to the arena.
const RECEIVE_BUFFER: usize = 128 << 10;
/// Pieces per send. 64 page WRITEs with their headers.
const PIECES: usize = 128;

const NO_PIECE: libc::iovec = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };

/// An operation in the ring.
#[derive(Clone, Copy, Debug)]
struct Slot {
    tag: u64,
    verb: Verb,
    local: usize,
    len: u32,
    /// The local range is no good: not sent.
    is_unfit: bool,
    deadline: Instant,
}

/// Why the connection has ended.
#[derive(Debug, thiserror::Error)]
enum Broken {
    #[error("the donor closed the connection")]
    Closed,
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("{0}")]
    Frame(#[from] FrameError),
    #[error("the donor answered what it was not asked")]
    OutOfStep,
    #[error("the donor did not answer within {0:?}")]
    Timeout(Duration),
    #[error("the donor's agent is silent too")]
    GivenUp,
}

pub(super) struct TcpEndpoint {
    /// `None` once broken.
    connection: Option<(Stream, Link)>,
    events: Epoll,
    /// The event descriptor also watches for room to send.
    watches_room: bool,
    /// Look at the socket in the next poll even if nothing is outstanding: the lane slept on it and
    /// must not sleep again over a connection that is dead.
    must_look: bool,
    is_served_here: bool,
    arena: Arc<Arena>,
    timeout: Duration,
    slots: Box<[Slot]>,
    headers: Box<[[u8; REQUEST_LEN]]>,
    first: u64,
    sending: u64,
    /// Bytes of the operation `sending` that are sent already.
    sent: usize,
    rung: u64,
    next: u64,
    received: Box<[u8]>,
    start: usize,
    end: usize,
    /// Bytes of the first operation's payload that have come; `None` = its answer has not.
    placed: Option<usize>,
    /// What the next operation completes with once broken.
    verdict: ErrorKind,
}

impl TcpEndpoint {
    pub(super) fn new(
        stream: Stream,
        link: Link,
        arena: Arc<Arena>,
        depth: usize,
        timeout: Duration,
    ) -> io::Result<Self> {
        let socket = stream.socket();
        socket.set_nonblocking(true)?;
        let events = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        events.add(socket, EpollEvent::new(EpollFlags::EPOLLIN | EpollFlags::EPOLLRDHUP, 0))?;
        let is_served_here = socket.peer_addr()?.ip() == socket.local_addr()?.ip();
        let idle = Slot { tag: 0, verb: Verb::Read, local: 0, len: 0, is_unfit: true, deadline: Instant::now() };
        Ok(TcpEndpoint {
            connection: Some((stream, link)),
            events,
            watches_room: false,
            must_look: false,
            is_served_here,
            arena,
            timeout,
            slots: vec![idle; depth].into_boxed_slice(),
            headers: vec![[0; REQUEST_LEN]; depth].into_boxed_slice(),
            first: 0,
            sending: 0,
            sent: 0,
            rung: 0,
            next: 0,
            received: vec![0; RECEIVE_BUFFER].into_boxed_slice(),
            start: 0,
            end: 0,
            placed: None,
            verdict: ErrorKind::RetryExceeded,
        })
    }

    #[inline]
    fn index(&self, seq: u64) -> usize {
        (seq % self.slots.len() as u64) as usize
    }

    #[inline]
    fn slot(&self, seq: u64) -> &Slot {
        &self.slots[self.index(seq)]
    }

    fn break_off(&mut self, why: &Broken) {
        let Some((stream, link)) = self.connection.take() else { return };
        tracing::debug!(connection = link.number, outstanding = self.next - self.first, "tcp endpoint broken: {why}");
        drop(stream);
        // With nothing outstanding there is none to report it on.
        self.verdict = if self.first < self.next { ErrorKind::RetryExceeded } else { ErrorKind::Flushed };
    }

    fn complete(&mut self, result: Result<(), ErrorKind>, value: u64, done: &mut Vec<Completion>) {
        done.push(Completion { tag: self.slot(self.first).tag, result, value });
        self.first += 1;
    }

    /// Completes everything, after the connection is gone.
    fn flush(&mut self, done: &mut Vec<Completion>) {
        while self.first < self.next {
            if self.slot(self.first).is_unfit {
                self.complete(Err(ErrorKind::LocalProtection), 0, done);
            } else {
                let verdict = std::mem::replace(&mut self.verdict, ErrorKind::Flushed);
                self.complete(Err(verdict), 0, done);
            }
        }
        (self.sending, self.rung, self.sent, self.placed) = (self.next, self.next, 0, None);
    }

    /// Sends what was rung, as far as the socket takes it.
    fn send(&mut self) -> Result<(), Broken> {
        self.skip_unfit();
        while self.sending < self.rung || self.is_pending() {
            let Some((stream, _)) = &self.connection else { return Ok(()) };
            let mut pieces = [NO_PIECE; PIECES];
            let (count, total) = self.gather(&mut pieces);
            let (sent, is_full) = if stream.is_tls() {
                let sent = send_tls(stream, &pieces[..count])?;
                // It takes a part at a time, and keeps what the socket has no room for.
                (sent, sent == 0 || stream.is_pending())
            } else {
                let sent = send_plain(stream, &mut pieces[..count])?;
                (sent, sent < total)
            };
            self.advance(sent);
            if is_full {
                return Ok(());
            }
        }
        Ok(())
    }

    /// TLS has bytes that the socket had no room for.
    fn is_pending(&self) -> bool {
        self.connection.as_ref().is_some_and(|(stream, _)| stream.is_pending())
    }

    /// Collects what is to be sent next: the pieces' count and total length. Headers of neighbours
    /// make one piece.
    fn gather(&self, pieces: &mut [libc::iovec; PIECES]) -> (usize, usize) {
        let (mut count, mut total, mut skip) = (0, 0, self.sent);
        let mut header_end: *const u8 = std::ptr::null();
        for seq in self.sending..self.rung {
            let (index, slot) = (self.index(seq), self.slot(seq));
            if slot.is_unfit {
                continue;
            }
            if count + 2 > PIECES {
                break;
            }
            if skip < REQUEST_LEN {
                let rest = &self.headers[index][skip..];
                if std::ptr::eq(rest.as_ptr(), header_end) {
                    pieces[count - 1].iov_len += rest.len();
                } else {
                    pieces[count] = libc::iovec { iov_base: rest.as_ptr().cast_mut().cast(), iov_len: rest.len() };
                    count += 1;
                }
                header_end = rest.as_ptr_range().end;
                total += rest.len();
            }
            let payload = slot.payload_out();
            let from = skip.saturating_sub(REQUEST_LEN);
            if from < payload {
                let base = self.arena.ptr(slot.local + from, payload - from);
                pieces[count] = libc::iovec { iov_base: base.cast(), iov_len: payload - from };
                count += 1;
                total += payload - from;
                header_end = std::ptr::null();
            }
            skip = 0;
        }
        (count, total)
    }

    /// Moves the send cursor over `sent` bytes.
    fn advance(&mut self, mut sent: usize) {
        while sent > 0 {
            self.skip_unfit();
            let left = REQUEST_LEN + self.slot(self.sending).payload_out() - self.sent;
            if sent < left {
                self.sent += sent;
                return;
            }
            sent -= left;
            self.sent = 0;
            self.sending += 1;
        }
        self.skip_unfit();
    }

    fn skip_unfit(&mut self) {
        while self.sending < self.rung && self.slot(self.sending).is_unfit {
            self.sending += 1;
        }
    }

    /// Works through what was received, then receives more, until there is nothing.
    fn receive(&mut self, done: &mut Vec<Completion>) -> Result<(), Broken> {
        loop {
            self.take_answers(done)?;
            let is_drained = self.fill()?;
            if is_drained {
                return self.take_answers(done);
            }
        }
    }

    /// Completes every operation whose answer is whole.
    fn take_answers(&mut self, done: &mut Vec<Completion>) -> Result<(), Broken> {
        loop {
            while self.first < self.sending && self.slot(self.first).is_unfit {
                self.complete(Err(ErrorKind::LocalProtection), 0, done);
            }
            if let Some(placed) = self.placed {
                let slot = *self.slot(self.first);
                let n = (slot.len as usize - placed).min(self.end - self.start);
                let to = self.arena.ptr(slot.local + placed, n);
                // SAFETY: `to` is good for n bytes (ptr checks) and the range belongs to this READ
                // until it completes; `received` is a buffer of its own.
                unsafe { std::ptr::copy_nonoverlapping(self.received[self.start..].as_ptr(), to, n) };
                self.start += n;
                if placed + n < slot.len as usize {
                    self.placed = Some(placed + n);
                    return Ok(());
                }
                self.placed = None;
                self.complete(Ok(()), 0, done);
                continue;
            }
            let Some(head) = self.received[self.start..self.end].first_chunk::<ANSWER_LEN>() else { return Ok(()) };
            let answer = Answer::parse(head)?;
            if self.first >= self.sending {
                return Err(Broken::OutOfStep);
            }
            let slot = *self.slot(self.first);
            let result = answer.status.result();
            let carries = if slot.verb == Verb::Read && result.is_ok() { slot.len } else { 0 };
            if answer.seq != self.first || answer.verb != slot.verb || answer.len != carries {
                return Err(Broken::OutOfStep);
            }
            self.start += ANSWER_LEN;
            if carries > 0 {
                self.placed = Some(0);
            } else {
                self.complete(result, answer.value, done);
            }
        }
    }

    /// One read: into the rest of the payload that is coming, and behind it into the buffer. True
    /// if the socket is empty now.
    fn fill(&mut self) -> Result<bool, Broken> {
        let Some((stream, _)) = &self.connection else { return Ok(true) };
        // What is left is less than an answer's header, or nothing while a payload is coming.
        self.received.copy_within(self.start..self.end, 0);
        self.end -= self.start;
        self.start = 0;
        if stream.is_tls() {
            // What is placed in the arena is copied there from the buffer.
            let free = &mut self.received[self.end..];
            let room = free.len();
            let mut stream = stream;
            return match stream.read(free) {
                Ok(0) => Err(Broken::Closed),
                Ok(n) => {
                    self.end += n;
                    Ok(n < room)
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => Ok(false),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(true),
                Err(e) => Err(e.into()),
            };
        }
        let mut rest = 0;
        let mut pieces = [NO_PIECE; 2];
        if let Some(placed) = self.placed {
            let slot = self.slot(self.first);
            rest = slot.len as usize - placed;
            pieces[0] = libc::iovec { iov_base: self.arena.ptr(slot.local + placed, rest).cast(), iov_len: rest };
        }
        let free = &mut self.received[self.end..];
        pieces[1] = libc::iovec { iov_base: free.as_mut_ptr().cast(), iov_len: free.len() };
        let (pieces, room) = (if rest > 0 { &pieces[..] } else { &pieces[1..] }, rest + free.len());
        // SAFETY: the pieces are in bounds of the arena and of `received`; the arena's range
        // belongs to the READ that is being answered, until it completes.
        let n = unsafe { libc::readv(stream.socket().as_raw_fd(), pieces.as_ptr(), pieces.len() as libc::c_int) };
        if n == 0 {
            return Err(Broken::Closed);
        }
        if n < 0 {
            return match io::Error::last_os_error() {
                e if e.kind() == io::ErrorKind::Interrupted => Ok(false),
                e if e.kind() == io::ErrorKind::WouldBlock => Ok(true),
                e => Err(e.into()),
            };
        }
        let n = n as usize;
        let direct = n.min(rest);
        if direct > 0 {
            self.placed = self.placed.map(|placed| placed + direct);
        }
        self.end += n - direct;
        Ok(n < room)
    }

    fn check_deadline(&self) -> Result<(), Broken> {
        if self.first < self.rung && self.slot(self.first).deadline <= Instant::now() {
            return Err(Broken::Timeout(self.timeout));
        }
        Ok(())
    }

    fn drive(&mut self, done: &mut Vec<Completion>) -> Result<(), Broken> {
        let before = done.len();
        if self.first < self.next || self.must_look {
            self.must_look = false;
            self.receive(done)?;
        }
        self.send()?;
        if done.len() == before { self.check_deadline() } else { Ok(()) }
    }
}

/// Hands the pieces to the socket; how many bytes it took.
fn send_plain(stream: &Stream, pieces: &mut [libc::iovec]) -> Result<usize, Broken> {
    // SAFETY: an all-zero msghdr is a valid empty one.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = pieces.as_mut_ptr();
    message.msg_iovlen = pieces.len();
    loop {
        // SAFETY: the pieces point into the header table and the arena, in bounds, and both outlive
        // the call.
        let sent = unsafe { libc::sendmsg(stream.socket().as_raw_fd(), &message, libc::MSG_NOSIGNAL) };
        if sent >= 0 {
            return Ok(sent as usize);
        }
        match io::Error::last_os_error() {
            e if e.kind() == io::ErrorKind::Interrupted => {}
            e if e.kind() == io::ErrorKind::WouldBlock => return Ok(0),
            e => return Err(e.into()),
        }
    }
}

/// Hands the pieces to TLS, which copies them; how many bytes it took.
fn send_tls(stream: &Stream, pieces: &[libc::iovec]) -> Result<usize, Broken> {
    let mut slices = [IoSlice::new(&[]); PIECES];
    for (slice, piece) in slices.iter_mut().zip(pieces) {
        // SAFETY: the piece lies in the header table or the arena, in bounds. Nobody changes the
        // header or the range of a WRITE that has not completed.
        *slice = IoSlice::new(unsafe { std::slice::from_raw_parts(piece.iov_base.cast(), piece.iov_len) });
    }
    Ok(stream.send_pieces_now(&slices[..pieces.len()])?)
}

impl Slot {
    /// Bytes that follow the header when it is sent.
    #[inline]
    fn payload_out(&self) -> usize {
        if self.verb == Verb::Write { self.len as usize } else { 0 }
    }
}

impl Endpoint for TcpEndpoint {
    fn transport(&self) -> Transport {
        Transport::Tcp
    }

    fn is_served_here(&self) -> bool {
        self.is_served_here
    }

    fn depth(&self) -> usize {
        self.slots.len()
    }

    fn post(&mut self, op: Op) -> Result<(), QueueFull> {
        if self.next - self.first == self.slots.len() as u64 {
            return Err(QueueFull);
        }
        let index = self.index(self.next);
        let slot = &mut self.slots[index];
        (slot.tag, slot.verb, slot.local, slot.len) = (op.tag, op.kind.into(), op.local, op.len);
        slot.is_unfit = !op.fits(&self.arena);
        let (expect, swap) = match op.kind {
            OpKind::CompareSwap { expect, swap } => (expect, swap),
            OpKind::Read | OpKind::Write => (0, 0),
        };
        let (verb, len, rkey, addr, seq) = (slot.verb, op.len, op.rkey, op.addr, self.next);
        Request { verb, len, rkey, addr, seq, expect, swap }.encode(&mut self.headers[index]);
        self.next += 1;
        Ok(())
    }

    fn ring(&mut self) {
        if self.rung == self.next {
            return;
        }
        let deadline = Instant::now() + self.timeout;
        while self.rung < self.next {
            let index = self.index(self.rung);
            self.slots[index].deadline = deadline;
            self.rung += 1;
        }
        if let Err(why) = self.send() {
            self.break_off(&why);
        }
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        if self.connection.is_some()
            && let Err(why) = self.drive(done)
        {
            self.break_off(&why);
        }
        if self.connection.is_none() {
            self.flush(done);
        }
    }

    fn arm(&mut self) -> bool {
        self.must_look = true;
        let Some((stream, _)) = &self.connection else { return self.first < self.next };
        let wants_room = self.sending < self.rung || stream.is_pending();
        if wants_room != self.watches_room {
            let mut interest = EpollFlags::EPOLLIN | EpollFlags::EPOLLRDHUP;
            interest.set(EpollFlags::EPOLLOUT, wants_room);
            match self.events.modify(stream.socket(), &mut EpollEvent::new(interest, 0)) {
                Ok(()) => self.watches_room = wants_room,
                // Without the event the lane must not sleep on it.
                Err(_) => return true,
            }
        }
        self.first < self.sending && self.slot(self.first).is_unfit
    }

    fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.events.0.as_fd())
    }

    fn give_up(&mut self) {
        self.break_off(&Broken::GivenUp);
    }

    fn is_broken(&self) -> bool {
        self.connection.is_none()
    }
}
