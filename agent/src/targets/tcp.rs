//! Serves one data connection of `fabric::tcp`, on the thread that calls [`serve`].
//!
//! Read what has come, execute every complete request in order, send all their answers in one
//! write, and again. A thread that blocks in its socket is the right tool here: the connection is
//! one lane of one client, in order by definition, and the fallback for machines without an RNIC.
//!
//! A payload passes through this thread's buffers and is copied to or from the slab under the
//! slab's guard. The guard is so never held while a socket is waited for, and a peer that stops
//! reading can't keep a slab from being revoked.
//!
//! The two buffers grow with what comes, as far as [`super::buffers`] allows it. An operation that
//! fits none is executed in parts, each under the guard: a lease that ends in between ends a WRITE
//! with an error, as an RDMA device would, and a READ with the connection, since its answer is
//! under way. A connection that is idle has no buffers. One that leaves half a request, or its
//! answers, lying for long is ended.

use super::buffers::Buffer;
use super::turns::Turn;
use super::{Caller, Connections, FENCE_PATIENCE, Guest, SlabAccess};
use annex_fabric::tcp::frame::{ALL_EARLIER, ANSWER_LEN, Answer, FrameError, REQUEST_LEN, Request, Status, Verb};
use annex_fabric::{ErrorKind, MAX_OP_LEN};
use annex_identity::stream::Stream;
use annex_shared::ids::{ClientId, SessionKey};
use annex_shared::preamble::{AdmitError, write_answer};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::io::{self, ErrorKind as IoKind, Read, Write};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// What one read asks of the socket, unless a request needs more.
const READ_CHUNK: usize = 256 << 10;
/// Answers waiting beyond this are sent before more requests are executed, so that the client can
/// start on them.
const SEND_CHUNK: usize = 256 << 10;
/// A connection without work for this long gives its buffers back.
const IDLE: Duration = Duration::from_secs(2);
/// How long the rest of a request may take to come, and answers to be read.
const STALLED: Duration = Duration::from_secs(30);

/// Why a data connection ended other than by its client closing it.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error("refused: {0}")]
    Refused(#[from] AdmitError),
    #[error("failed to use the data connection: {0}")]
    Io(#[from] io::Error),
    #[error("the data connection was closed: {0}")]
    Frame(#[from] FrameError),
    #[error("the data connection was closed: its session is over or it was fenced")]
    Closed,
    #[error("the data connection was closed: half a request, or its answers, lay there for {} s", STALLED.as_secs())]
    Stalled,
    #[error("the data connection was closed: a lease ended while its slab was read")]
    LeaseEnded,
}

/// Answers the preamble, then serves until the connection ends. `Ok` means that the client closed
/// it between operations.
pub fn serve(
    stream: impl Into<Stream>,
    caller: &Caller,
    access: &dyn SlabAccess,
    connections: &Connections,
) -> Result<(), ServeError> {
    let (mut stream, proof) = (stream.into(), &caller.proof);
    let socket = stream.socket();
    socket.set_nonblocking(false)?;
    socket.set_read_timeout(Some(IDLE))?;
    socket.set_write_timeout(Some(STALLED))?;
    socket.set_nodelay(true)?;
    // Entered first: a session that ends while it is being admitted must find the connection.
    let admitted = connections.enter(proof, socket.try_clone()?.into());
    let guest = match admitted.and_then(|guest| access.admit(proof).map(|()| guest)) {
        Ok(guest) => guest,
        Err(reason) => {
            write_answer(&mut stream, Err(reason))?;
            return Err(reason.into());
        }
    };
    caller.welcome(&mut stream, guest.number())?;
    let result = Lane {
        stream: &stream,
        who: proof.client,
        session: proof.session,
        access,
        connections,
        guest: &guest,
        received: Buffer::none(connections.budget(), proof.client),
        start: 0,
        end: 0,
        skip: 0,
        writing: None,
        answers: Buffer::none(connections.budget(), proof.client),
        pending: 0,
        turn: connections.turns().join(),
        unfinished: None,
    }
    .run();
    if guest.is_closed() { Err(ServeError::Closed) } else { result }
}

struct Lane<'a> {
    stream: &'a Stream,
    who: ClientId,
    session: SessionKey,
    access: &'a dyn SlabAccess,
    connections: &'a Connections,
    guest: &'a Guest<'a>,
    /// `received[start..end]` came and was not executed yet.
    received: Buffer<'a>,
    start: usize,
    end: usize,
    /// Bytes still to come of a payload that is dropped.
    skip: usize,
    /// A WRITE that is executed in parts.
    writing: Option<Writing>,
    /// `answers[..pending]` wait to be sent.
    answers: Buffer<'a>,
    pending: usize,
    /// Somebody's program stands still until it has its page; this host's own work is what it would
    /// wait behind.
    turn: Turn<'a>,
    /// When the first bytes of a request came whose rest did not.
    unfinished: Option<Instant>,
}

/// A WRITE whose payload is larger than the buffer.
struct Writing {
    request: Request,
    done: usize,
    result: Result<(), ErrorKind>,
}

impl Lane<'_> {
    fn run(mut self) -> Result<(), ServeError> {
        loop {
            let missing = self.execute_received()?;
            self.flush()?;
            if self.receive(missing)? == 0 {
                let is_clean = !self.is_amid_request();
                return if is_clean { Ok(()) } else { Err(io::Error::from(IoKind::UnexpectedEof).into()) };
            }
        }
    }

    fn is_amid_request(&self) -> bool {
        self.start < self.end || self.skip > 0 || self.writing.is_some()
    }

    /// Executes every request that is there whole; how many bytes at least are missing for the next
    /// one.
    fn execute_received(&mut self) -> Result<usize, ServeError> {
        loop {
            let dropped = self.skip.min(self.end - self.start);
            self.start += dropped;
            self.skip -= dropped;
            if self.skip > 0 {
                return Ok(1);
            }
            if self.writing.is_some() && !self.go_on_writing()? {
                return Ok(1);
            }
            let there = &self.received[self.start..self.end];
            let Some(head) = there.first_chunk::<REQUEST_LEN>() else { return Ok(REQUEST_LEN - there.len()) };
            let request = Request::parse(head)?;
            let is_too_long = request.len > MAX_OP_LEN;
            let payload = if request.verb == Verb::Write && !is_too_long { request.len as usize } else { 0 };
            let missing = (REQUEST_LEN + payload).saturating_sub(there.len());
            if missing > 0 && self.has_room(REQUEST_LEN + payload) {
                return Ok(missing);
            }
            if missing > 0 {
                self.start += REQUEST_LEN;
                self.writing = Some(Writing { request, done: 0, result: Ok(()) });
                continue;
            }
            if self.guest.is_closed() {
                return Err(ServeError::Closed);
            }
            let at = self.start + REQUEST_LEN;
            self.start = at + payload;
            match request.verb {
                Verb::Write if is_too_long => {
                    self.skip = request.len as usize;
                    self.answer(&request, Err(ErrorKind::RemoteAccess), 0)?;
                }
                Verb::Read if is_too_long => self.answer(&request, Err(ErrorKind::RemoteAccess), 0)?,
                Verb::Read => self.read(&request)?,
                Verb::Write => self.write(&request, at)?,
                Verb::CompareSwap => self.compare_swap(&request)?,
                Verb::Fence => self.fence(&request)?,
            }
        }
    }

    fn read(&mut self, request: &Request) -> Result<(), ServeError> {
        let len = request.len as usize;
        self.make_room(ANSWER_LEN + len)?;
        if self.pending + ANSWER_LEN + len > self.answers.len() {
            return self.read_in_parts(request);
        }
        let to = &mut self.answers[self.pending + ANSWER_LEN..][..len];
        let result = self.access.with_slab(self.who, request.rkey, request.addr, len, &mut |from| {
            // SAFETY: `from` is good for `len` bytes while the guard is held (SlabAccess), `to` is
            // a buffer of that length outside of any slab.
            unsafe { std::ptr::copy_nonoverlapping(from.cast_const(), to.as_mut_ptr(), len) }
        });
        self.answer(request, result, 0)
    }

    /// Answers with what the buffer has room for, and again. Nothing waits in it.
    fn read_in_parts(&mut self, request: &Request) -> Result<(), ServeError> {
        let (whole, mut done, mut head) = (request.len as usize, 0, ANSWER_LEN);
        while done < whole {
            if self.guest.is_closed() {
                return Err(ServeError::Closed);
            }
            let len = (whole - done).min(self.answers.len() - head);
            let to = &mut self.answers[head..][..len];
            let result = self.access.with_slab(self.who, request.rkey, request.addr, whole, &mut |from| {
                // SAFETY: `from` is good for `whole` bytes while the guard is held (SlabAccess), of
                // which `len` from `done` on are a part. `to` is a buffer of that length outside of
                // any slab.
                unsafe { std::ptr::copy_nonoverlapping(from.cast_const().add(done), to.as_mut_ptr(), len) }
            });
            match result {
                Err(_) if done == 0 => return self.answer(request, result, 0),
                Err(_) => return Err(ServeError::LeaseEnded),
                Ok(()) if done == 0 => self.answer(request, result, 0)?,
                Ok(()) => {}
            }
            self.pending = head + len;
            self.flush()?;
            (done, head) = (done + len, 0);
        }
        Ok(())
    }

    /// Writes what has come of a payload that is larger than the buffer. False if more is to come.
    fn go_on_writing(&mut self) -> Result<bool, ServeError> {
        let Some(Writing { request, done, mut result }) = self.writing.take() else { return Ok(true) };
        if self.guest.is_closed() {
            return Err(ServeError::Closed);
        }
        let whole = request.len as usize;
        let len = (whole - done).min(self.end - self.start);
        if len > 0 && result.is_ok() {
            let from = &self.received[self.start..][..len];
            result = self.access.with_slab(self.who, request.rkey, request.addr, whole, &mut |to| {
                // SAFETY: `to` is good for `whole` bytes while the guard is held (SlabAccess), of
                // which `len` from `done` on are a part. `from` is a buffer of that length outside
                // of any slab.
                unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to.add(done), len) }
            });
        }
        self.start += len;
        if done + len < whole {
            self.writing = Some(Writing { request, done: done + len, result });
            return Ok(false);
        }
        self.answer(&request, result, 0)?;
        Ok(true)
    }

    fn write(&mut self, request: &Request, at: usize) -> Result<(), ServeError> {
        let len = request.len as usize;
        let from = &self.received[at..][..len];
        let result = self.access.with_slab(self.who, request.rkey, request.addr, len, &mut |to| {
            // SAFETY: `to` is good for `len` bytes while the guard is held (SlabAccess), `from` is
            // a buffer of that length outside of any slab.
            unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to, len) }
        });
        self.answer(request, result, 0)
    }

    fn compare_swap(&mut self, request: &Request) -> Result<(), ServeError> {
        if request.len != 8 || !request.addr.0.is_multiple_of(8) {
            return self.answer(request, Err(ErrorKind::RemoteAccess), 0);
        }
        let mut found = 0;
        let result = self.access.with_slab(self.who, request.rkey, request.addr, 8, &mut |at| {
            // SAFETY: `at` is good for 8 bytes while the guard is held, and aligned, since slabs
            // are page-aligned and the address is a multiple of 8. Other agents use atomics or
            // copies, never references.
            let word = unsafe { AtomicU64::from_ptr(at.cast()) };
            let (expect, swap) = (request.expect.to_le(), request.swap.to_le());
            let (Ok(old) | Err(old)) = word.compare_exchange(expect, swap, Ordering::SeqCst, Ordering::SeqCst);
            found = u64::from_le(old);
        });
        self.answer(request, result, found)
    }

    fn fence(&mut self, request: &Request) -> Result<(), ServeError> {
        let number = request.addr.0;
        if number == self.guest.number() {
            return self.answer(request, Err(ErrorKind::RemoteAccess), 0);
        }
        // It waits for others.
        self.turn.end();
        let is_over = match number {
            ALL_EARLIER => self.connections.fence_sessions_before(self.who, self.session, FENCE_PATIENCE),
            _ => self.connections.fence(self.who, number, FENCE_PATIENCE),
        };
        self.turn.begin();
        self.answer(request, if is_over { Ok(()) } else { Err(ErrorKind::RemoteOperation) }, 0)
    }

    /// Appends an answer's header; the payload of a READ that was done already lies behind it.
    fn answer(&mut self, request: &Request, result: Result<(), ErrorKind>, value: u64) -> Result<(), ServeError> {
        self.unfinished = None;
        if request.verb != Verb::Fence {
            self.turn.deserves(result.is_ok());
        }
        let len = if request.verb == Verb::Read && result.is_ok() { request.len } else { 0 };
        if len == 0 {
            self.make_room(ANSWER_LEN)?;
        }
        let value = if result.is_ok() { value } else { 0 };
        let answer = Answer { status: Status::from(result), verb: request.verb, len, seq: request.seq, value };
        let Some(head) = self.answers[self.pending..].first_chunk_mut::<ANSWER_LEN>() else {
            return Err(io::Error::from(IoKind::OutOfMemory).into());
        };
        answer.encode(head);
        self.pending += ANSWER_LEN + len as usize;
        Ok(())
    }

    /// Makes room for `len` more bytes behind what waits: in a larger buffer if there is one, else
    /// by sending. Sends also if much waits. What is larger than the buffer then does not fit.
    fn make_room(&mut self, len: usize) -> Result<(), ServeError> {
        let fits = self.pending + len <= self.answers.len();
        if self.pending >= SEND_CHUNK || !fits && !self.answers.grow(self.pending + len, 0..self.pending) {
            self.flush()?;
        }
        if len > self.answers.len() {
            self.answers.grow(len, 0..0);
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), ServeError> {
        let pending = std::mem::take(&mut self.pending);
        let waiting = &self.answers[..pending];
        if waiting.is_empty() {
            return Ok(());
        }
        let sent = self.stream.send_now(waiting)?;
        if sent < pending || self.stream.is_pending() {
            self.turn.end();
            let mut stream = self.stream;
            let rest = stream.write_all(&waiting[sent..]).and_then(|()| stream.flush());
            self.turn.begin();
            return rest.map_err(|e| match e.kind() {
                IoKind::WouldBlock | IoKind::TimedOut => ServeError::Stalled,
                _ => e.into(),
            });
        }
        Ok(())
    }

    /// True if a request of so many bytes fits into the buffer, perhaps a larger one.
    fn has_room(&mut self, len: usize) -> bool {
        if len > self.received.len() && self.received.grow(len, self.start..self.end) {
            (self.start, self.end) = (0, self.end - self.start);
        }
        len <= self.received.len()
    }

    /// Reads what has come, waiting for something; 0 = the client has closed. Makes room for at
    /// least `missing` bytes, which fit since a request does.
    fn receive(&mut self, missing: usize) -> Result<usize, ServeError> {
        if self.start > 0 {
            // What is left over is part of one request. Moving it keeps the buffer's working set
            // small.
            self.received.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        self.unfinished = self.is_amid_request().then(|| self.unfinished.unwrap_or_else(Instant::now));
        if self.unfinished.is_some_and(|since| since.elapsed() >= STALLED) {
            return Err(ServeError::Stalled);
        }
        self.turn.end();
        let read = self.wait_and_read(missing);
        self.turn.begin();
        read
    }

    fn wait_and_read(&mut self, missing: usize) -> Result<usize, ServeError> {
        loop {
            self.received.have_least()?;
            self.answers.have_least()?;
            let room = missing.max(READ_CHUNK).min(self.received.len() - self.end);
            let mut stream = self.stream;
            match stream.read(&mut self.received[self.end..self.end + room]) {
                Ok(n) => {
                    self.end += n;
                    // More may wait than there was room for.
                    if n == room && self.received.len() < 2 * READ_CHUNK {
                        self.received.grow(2 * READ_CHUNK, 0..self.end);
                    }
                    return Ok(n);
                }
                Err(e) if e.kind() == IoKind::Interrupted => {}
                Err(e) if matches!(e.kind(), IoKind::WouldBlock | IoKind::TimedOut) => self.idle()?,
                Err(e) => return Err(e.into()),
            }
        }
    }

    /// Nothing has come for a while.
    fn idle(&mut self) -> Result<(), ServeError> {
        match self.unfinished {
            Some(since) if since.elapsed() >= STALLED => Err(ServeError::Stalled),
            Some(_) => Ok(()),
            None => {
                self.received.clear();
                self.answers.clear();
                match poll(&mut [PollFd::new(self.stream.socket().as_fd(), PollFlags::POLLIN)], PollTimeout::NONE) {
                    Ok(_) | Err(nix::errno::Errno::EINTR) => Ok(()),
                    Err(e) => Err(io::Error::from(e).into()),
                }
            }
        }
    }
}
