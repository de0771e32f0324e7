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
//! The two buffers are as large as the largest operation, but pages of them become resident only
//! when they are used.

use super::{Connections, FENCE_PATIENCE, Guest, SlabAccess};
use annex_fabric::tcp::frame::{ALL_EARLIER, ANSWER_LEN, Answer, FrameError, REQUEST_LEN, Request, Status, Verb};
use annex_fabric::{ErrorKind, MAX_OP_LEN};
use annex_host::priority::Precedence;
use annex_shared::ids::{ClientId, SessionKey};
use annex_shared::preamble::{AdmitError, Proof, write_answer};
use std::io::{self, ErrorKind as IoKind, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicU64, Ordering};

/// What one read asks of the socket, unless a request needs more.
const READ_CHUNK: usize = 256 << 10;
/// Answers waiting beyond this are sent before more requests are executed, so that the client can
/// start on them.
const SEND_CHUNK: usize = 256 << 10;
const RECEIVE_BUFFER: usize = REQUEST_LEN + MAX_OP_LEN as usize + READ_CHUNK;
const SEND_BUFFER: usize = ANSWER_LEN + MAX_OP_LEN as usize + SEND_CHUNK;

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
}

/// Answers the preamble, then serves until the connection ends. `Ok` means that the client closed
/// it between operations.
pub fn serve(
    stream: TcpStream,
    proof: &Proof,
    access: &dyn SlabAccess,
    connections: &Connections,
) -> Result<(), ServeError> {
    let mut stream = stream;
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(None)?;
    stream.set_nodelay(true)?;
    // Entered first: a session that ends while it is being admitted must find the connection.
    let admitted = connections.enter(proof, stream.try_clone()?.into());
    let guest = match admitted.and_then(|guest| access.admit(proof).map(|()| guest)) {
        Ok(guest) => guest,
        Err(reason) => {
            write_answer(&mut stream, Err(reason))?;
            return Err(reason.into());
        }
    };
    write_answer(&mut stream, Ok(guest.number()))?;
    // Somebody's program stands still until it has its page; this host's own work is what it would
    // wait behind.
    Precedence::OfAll.give(0);
    let result = Lane {
        stream: &stream,
        who: proof.client,
        session: proof.session,
        access,
        connections,
        guest: &guest,
        received: vec![0; RECEIVE_BUFFER],
        start: 0,
        end: 0,
        skip: 0,
        answers: vec![0; SEND_BUFFER],
        pending: 0,
    }
    .run();
    if guest.is_closed() { Err(ServeError::Closed) } else { result }
}

struct Lane<'a> {
    stream: &'a TcpStream,
    who: ClientId,
    session: SessionKey,
    access: &'a dyn SlabAccess,
    connections: &'a Connections,
    guest: &'a Guest<'a>,
    /// `received[start..end]` came and was not executed yet.
    received: Vec<u8>,
    start: usize,
    end: usize,
    /// Bytes still to come of a payload that is dropped.
    skip: usize,
    /// `answers[..pending]` wait to be sent.
    answers: Vec<u8>,
    pending: usize,
}

impl Lane<'_> {
    fn run(mut self) -> Result<(), ServeError> {
        loop {
            let missing = self.execute_received()?;
            self.flush()?;
            if self.receive(missing)? == 0 {
                let is_clean = self.start == self.end && self.skip == 0;
                return if is_clean { Ok(()) } else { Err(io::Error::from(IoKind::UnexpectedEof).into()) };
            }
        }
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
            let there = &self.received[self.start..self.end];
            let Some(head) = there.first_chunk::<REQUEST_LEN>() else { return Ok(REQUEST_LEN - there.len()) };
            let request = Request::parse(head)?;
            let is_too_long = request.len > MAX_OP_LEN;
            let payload = if request.verb == Verb::Write && !is_too_long { request.len as usize } else { 0 };
            if there.len() < REQUEST_LEN + payload {
                return Ok(REQUEST_LEN + payload - there.len());
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
        let to = &mut self.answers[self.pending + ANSWER_LEN..][..len];
        let result = self.access.with_slab(self.who, request.rkey, request.addr, len, &mut |from| {
            // SAFETY: `from` is good for `len` bytes while the guard is held (SlabAccess), `to` is
            // a buffer of that length outside of any slab.
            unsafe { std::ptr::copy_nonoverlapping(from.cast_const(), to.as_mut_ptr(), len) }
        });
        self.answer(request, result, 0)
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
        let is_over = match number {
            ALL_EARLIER => self.connections.fence_sessions_before(self.who, self.session, FENCE_PATIENCE),
            _ => self.connections.fence(self.who, number, FENCE_PATIENCE),
        };
        self.answer(request, if is_over { Ok(()) } else { Err(ErrorKind::RemoteOperation) }, 0)
    }

    /// Appends an answer's header; the payload of a READ that was done already lies behind it.
    fn answer(&mut self, request: &Request, result: Result<(), ErrorKind>, value: u64) -> Result<(), ServeError> {
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

    /// Sends what waits if `len` more bytes do not fit behind it, or if it has become much.
    fn make_room(&mut self, len: usize) -> Result<(), ServeError> {
        if self.pending >= SEND_CHUNK || self.pending + len > self.answers.len() { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<(), ServeError> {
        let pending = std::mem::take(&mut self.pending);
        Ok(self.stream.write_all(&self.answers[..pending])?)
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
        let room = missing.max(READ_CHUNK).min(self.received.len() - self.end);
        loop {
            match self.stream.read(&mut self.received[self.end..self.end + room]) {
                Ok(n) => {
                    self.end += n;
                    return Ok(n);
                }
                Err(e) if e.kind() == IoKind::Interrupted => {}
                Err(e) => return Err(e.into()),
            }
        }
    }
}
