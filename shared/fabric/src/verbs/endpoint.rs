//! One lane's queue pair, and the ring of operations that are in it.
//!
//! ```text
//!   first            rung           next
//!     │ with the device │ posted       │
//! ```
//! These are sequence numbers; a slot is the sequence number modulo the depth. A work request's id
//! is its sequence number.
//!
//! A reliable connection's send queue completes in order. So the completion of one operation says
//! that all before it are done, and WRITEs ask for one only now and then ([`QUIET_WRITES`]) and at
//! the end of each ring. READs and COMPARE_SWAPs always ask: somebody waits for each. An operation
//! that is refused on this side keeps its place, and completes when it becomes the first.
//!
//! Whatever goes wrong with the device or the peer ends the queue pair. It is destroyed at once,
//! which makes sure that no late packet is written to the arena, and then what is left in the ring
//! completes as `Flushed`.

use super::alarm::Alarm;
use super::memory::MemoryRegion;
use super::protocol::{Nonce, Window};
use super::queue::{CompletionQueue, QueuePair, ReadyToSend};
use super::status::{self, Counts, Status};
use crate::ledger::Link;
use crate::prepared::{Prepared, View};
use crate::{Arena, Completion, Endpoint, ErrorKind, Op, OpKind, QueueFull, Transport};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use nix::sys::eventfd::EventFd;
use rdma_sys::*;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Of WRITEs that are rung together, one in so many asks for its completion.
const QUIET_WRITES: u32 = 16;
/// Completions taken from the device at once.
const TAKE: usize = 32;
/// Bytes at the end of the words' arena for the proof.
pub(super) const PROOF_LEN: usize = 64;

/// What a connector and its endpoints share.
#[derive(Debug)]
pub(super) struct Shared {
    /// Who the donor is, for the log.
    pub(super) peer: String,
    pub(super) slabs: Prepared<Window>,
    /// False once the agent has hung up, or our device is gone.
    pub(super) is_alive: AtomicBool,
    /// Readable from then on, so that lanes that sleep let go of the device.
    pub(super) ended: EventFd,
    pub(super) counts: Arc<Counts>,
}

/// What an endpoint is made of.
pub(super) struct Parts {
    pub(super) shared: Arc<Shared>,
    pub(super) qp: QueuePair<ReadyToSend>,
    pub(super) link: Link,
    pub(super) cq: Arc<CompletionQueue>,
    pub(super) arena: Arc<Arena>,
    pub(super) region: Arc<MemoryRegion>,
    /// Eight bytes for each operation, where COMPARE_SWAPs put what they found; and the proof's.
    pub(super) words: Arc<Arena>,
    pub(super) words_region: MemoryRegion,
    pub(super) depth: usize,
    /// WRITEs of at most this many bytes travel in the work request.
    pub(super) inline: u32,
    pub(super) can_swap: bool,
    pub(super) timeout: Duration,
}

/// An operation in the ring.
#[derive(Clone, Copy, Debug)]
struct Slot {
    tag: u64,
    kind: OpKind,
    len: u32,
    /// Not to be sent, for this reason.
    refused: Option<ErrorKind>,
    deadline: Instant,
}

/// Why the queue pair has ended.
#[derive(Debug, thiserror::Error)]
enum Broken {
    #[error("{kind} of {len} bytes: {status}")]
    Status { kind: OpKind, len: u32, status: &'static Status },
    #[error("nothing was completed for {0:?}; the donor is down, the wire is cut, or the device hangs")]
    Timeout(Duration),
    #[error("the donor's agent is silent too")]
    GivenUp,
    #[error("the device does not take work any more: {0} (was it removed?)")]
    Device(io::Error),
    #[error("the agent has closed the connection, or the RDMA device here was removed")]
    Over,
}

pub(super) struct VerbsEndpoint {
    /// `None` once broken. The queue pair ends before its link says so.
    connection: Option<(QueuePair<ReadyToSend>, Link)>,
    cq: Arc<CompletionQueue>,
    /// Watches the completion queue and the connector's end.
    events: Epoll,
    alarm: Alarm,
    taken: [ibv_wc; TAKE],
    /// `taken[at..end]` were taken and not looked at.
    at: usize,
    end: usize,
    shared: Arc<Shared>,
    slabs: View<Window>,
    arena: Arc<Arena>,
    region: Arc<MemoryRegion>,
    words: Arc<Arena>,
    words_region: MemoryRegion,
    inline: u32,
    can_swap: bool,
    timeout: Duration,
    slots: Box<[Slot]>,
    requests: Box<[ibv_send_wr]>,
    ranges: Box<[ibv_sge]>,
    first: u64,
    rung: u64,
    next: u64,
    /// WRITEs since the last one that asked for its completion.
    quiet: u32,
    /// What the next operation completes with once broken.
    verdict: ErrorKind,
}

// SAFETY: the raw pointers in `requests` and `taken` are into this endpoint's own memory, or null.
unsafe impl Send for VerbsEndpoint {}

impl VerbsEndpoint {
    pub(super) fn new(parts: Parts) -> io::Result<VerbsEndpoint> {
        let Parts { shared, qp, link, cq, arena, region, words, words_region, depth, inline, can_swap, timeout } =
            parts;
        let idle =
            Slot { tag: 0, kind: OpKind::Read, len: 0, refused: Some(ErrorKind::Flushed), deadline: Instant::now() };
        let mut ranges = vec![ibv_sge { addr: 0, length: 0, lkey: 0 }; depth].into_boxed_slice();
        let requests = ranges.iter_mut().map(|range| {
            // SAFETY: all zeros is a valid value of these plain structures.
            ibv_send_wr { sg_list: range, num_sge: 1, ..unsafe { std::mem::zeroed() } }
        });
        let requests = requests.collect();
        let events = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        events.add(cq.fd(), EpollEvent::new(EpollFlags::EPOLLIN, 0))?;
        events.add(&shared.ended, EpollEvent::new(EpollFlags::EPOLLIN, 0))?;
        Ok(VerbsEndpoint {
            connection: Some((qp, link)),
            cq,
            events,
            alarm: Alarm::default(),
            // SAFETY: as above.
            taken: unsafe { std::mem::zeroed() },
            at: 0,
            end: 0,
            slabs: shared.slabs.view(),
            shared,
            arena,
            region,
            words,
            words_region,
            inline,
            can_swap,
            timeout,
            slots: vec![idle; depth].into_boxed_slice(),
            requests,
            ranges,
            first: 0,
            rung: 0,
            next: 0,
            quiet: 0,
            verdict: ErrorKind::RetryExceeded,
        })
    }

    /// READs the agent's proof: the first packets of this connection, and by them it is known
    /// whether the network lets RDMA through.
    pub(super) fn prove(&mut self, at: Window, nonce: &Nonce) -> io::Result<()> {
        let Some((qp, _)) = &mut self.connection else { return Err(io::ErrorKind::NotConnected.into()) };
        let local = self.words.len() - PROOF_LEN;
        let mut range = ibv_sge {
            addr: self.words.ptr(local, nonce.len()).addr() as u64,
            length: nonce.len() as u32,
            lkey: self.words_region.lkey(),
        };
        // SAFETY: all zeros is a valid value of this plain structure.
        let mut request: ibv_send_wr = unsafe { std::mem::zeroed() };
        (request.sg_list, request.num_sge) = (&mut range, 1);
        request.opcode = ibv_wr_opcode::IBV_WR_RDMA_READ;
        request.send_flags = ibv_send_flags::IBV_SEND_SIGNALED.0;
        request.wr.rdma = rdma_t { remote_addr: at.addr, rkey: at.key };
        // SAFETY: one request; its range lies in the words' arena, which is registered, and nobody
        // else uses its end.
        unsafe { qp.post(&mut request) }.map_err(|(e, _)| e)?;
        let until = Instant::now() + self.timeout;
        loop {
            if self.cq.poll(&mut self.taken[..1])? > 0 {
                break;
            }
            if Instant::now() >= until {
                let said = "the RDMA connection was set up, but no data flows (is UDP port 4791 blocked on the way?)";
                return Err(io::Error::new(io::ErrorKind::TimedOut, said));
            }
            std::thread::sleep(Duration::from_micros(100));
        }
        let code = self.taken[0].status;
        if let Some(status) = status::status(code) {
            self.shared.counts.count(code);
            return Err(io::Error::other(status.to_string()));
        }
        // SAFETY: the READ is complete, and nothing else writes there.
        if unsafe { self.words.bytes(local, nonce.len()) } != nonce {
            return Err(io::Error::other("the first READ brought other bytes than the donor's agent has put there"));
        }
        Ok(())
    }

    #[inline]
    fn index(&self, seq: u64) -> usize {
        (seq % self.slots.len() as u64) as usize
    }

    fn break_off(&mut self, why: &Broken) {
        let Some((qp, link)) = self.connection.take() else { return };
        let outstanding = self.next - self.first;
        let peer = &self.shared.peer;
        match why {
            // Sessions come and go; who opens the next one says what there is to say.
            Broken::Over => {
                tracing::debug!("an RDMA connection to {peer} has ended, {outstanding} operations under way: {why}")
            }
            _ => tracing::warn!("an RDMA connection to {peer} broke, {outstanding} operations under way: {why}"),
        }
        drop(qp);
        drop(link);
        (self.at, self.end) = (0, 0);
        let is_told = matches!(why, Broken::Status { .. }) || outstanding == 0;
        self.verdict = if is_told { ErrorKind::Flushed } else { ErrorKind::RetryExceeded };
    }

    #[inline]
    fn complete(&mut self, result: Result<(), ErrorKind>, value: u64, done: &mut Vec<Completion>) {
        done.push(Completion { tag: self.slots[self.index(self.first)].tag, result, value });
        self.first += 1;
    }

    /// Completes everything, after the queue pair is gone.
    fn flush(&mut self, done: &mut Vec<Completion>) {
        while self.first < self.next {
            let refused = self.slots[self.index(self.first)].refused;
            let error = refused.unwrap_or_else(|| std::mem::replace(&mut self.verdict, ErrorKind::Flushed));
            self.complete(Err(error), 0, done);
        }
        self.rung = self.next;
    }

    /// Completes what is refused and has nothing before it.
    fn complete_refused(&mut self, done: &mut Vec<Completion>) {
        while self.first < self.rung
            && let Some(error) = self.slots[self.index(self.first)].refused
        {
            self.complete(Err(error), 0, done);
        }
    }

    /// The device says that the operation of this sequence number is completed.
    fn completed(&mut self, seq: u64, code: u32, done: &mut Vec<Completion>) {
        if !(self.first..self.rung).contains(&seq) {
            let said = format!("it completed operation {seq}, which is not under way");
            return self.break_off(&Broken::Device(io::Error::new(io::ErrorKind::InvalidData, said)));
        }
        while self.first < seq {
            let refused = self.slots[self.index(self.first)].refused;
            self.complete(refused.map_or(Ok(()), Err), 0, done);
        }
        let (index, slot) = (self.index(seq), self.slots[self.index(seq)]);
        match status::status(code) {
            None => {
                let value = match slot.kind {
                    OpKind::CompareSwap { .. } => self.word(index),
                    OpKind::Read | OpKind::Write => 0,
                };
                self.complete(Ok(()), value, done);
            }
            Some(status) => {
                self.shared.counts.count(code);
                self.complete(Err(status.kind), 0, done);
                self.break_off(&Broken::Status { kind: slot.kind, len: slot.len, status });
            }
        }
    }

    /// What a COMPARE_SWAP found. Devices put it there in this machine's byte order; the memory
    /// holds little-endian numbers.
    fn word(&self, index: usize) -> u64 {
        let mut bytes = [0; 8];
        // SAFETY: the operation that wrote the word is complete, and the word is its slot's own.
        bytes.copy_from_slice(unsafe { self.words.bytes(index * 8, 8) });
        u64::from_le(u64::from_ne_bytes(bytes))
    }

    /// Why this operation is not to be sent; else where it goes.
    #[inline]
    fn target(&self, op: &Op) -> Result<(u32, u64), ErrorKind> {
        if !op.fits(&self.arena) {
            return Err(ErrorKind::LocalProtection);
        }
        let window = self.slabs.get(op.rkey).ok_or(ErrorKind::RemoteAccess)?;
        let addr = window.at(op.addr.0, op.len).ok_or(ErrorKind::RemoteAccess)?;
        if let OpKind::CompareSwap { .. } = op.kind {
            if !op.addr.0.is_multiple_of(8) {
                return Err(ErrorKind::RemoteAccess);
            }
            if !self.can_swap {
                return Err(ErrorKind::RemoteOperation);
            }
        }
        Ok((window.key, addr))
    }

    /// Takes completions from the device, all earlier ones having been looked at; how many there
    /// were.
    fn refill(&mut self) -> io::Result<usize> {
        (self.at, self.end) = (0, self.cq.poll(&mut self.taken)?);
        if self.end > 0 {
            self.alarm.seen();
        }
        Ok(self.end)
    }

    /// Has the next completion wake us if that is needed; how many completions are there already.
    fn set_alarm(&mut self) -> io::Result<usize> {
        if self.alarm.may_have_rung() && self.cq.quiet() {
            self.alarm.fetched();
        }
        if self.alarm.is_due(self.first < self.rung) {
            self.cq.arm()?;
            self.alarm.armed();
        }
        // What completed before the queue was armed makes nothing readable: look once more.
        if self.at < self.end { Ok(self.end - self.at) } else { self.refill() }
    }

    /// Takes completions and looks at them, until there are none.
    fn take(&mut self, done: &mut Vec<Completion>) -> Result<(), Broken> {
        loop {
            while self.at < self.end {
                let wc = &self.taken[self.at];
                let (seq, code) = (wc.wr_id, wc.status);
                self.at += 1;
                self.completed(seq, code, done);
            }
            if self.connection.is_none() {
                return Ok(());
            }
            if self.refill().map_err(Broken::Device)? == 0 {
                return Ok(());
            }
        }
    }

    fn drive(&mut self, done: &mut Vec<Completion>) -> Result<(), Broken> {
        if self.connection.is_none() {
            return Ok(());
        }
        let before = done.len();
        self.take(done)?;
        if !self.shared.is_alive.load(Ordering::Acquire) {
            return Err(Broken::Over);
        }
        let waits = done.len() == before && self.first < self.rung;
        if waits && self.slots[self.index(self.first)].deadline <= Instant::now() {
            return Err(Broken::Timeout(self.timeout));
        }
        Ok(())
    }
}

impl Endpoint for VerbsEndpoint {
    fn transport(&self) -> Transport {
        Transport::Verbs
    }

    fn depth(&self) -> usize {
        self.slots.len()
    }

    fn post(&mut self, op: Op) -> Result<(), QueueFull> {
        if self.next - self.first == self.slots.len() as u64 {
            return Err(QueueFull);
        }
        self.slabs.refresh(&self.shared.slabs);
        let index = self.index(self.next);
        let target = self.target(&op);
        let slot = &mut self.slots[index];
        (slot.tag, slot.kind, slot.len, slot.refused) = (op.tag, op.kind, op.len, target.err());
        if let Ok((key, addr)) = target {
            let (request, range) = (&mut self.requests[index], &mut self.ranges[index]);
            request.wr_id = self.next;
            let signaled = ibv_send_flags::IBV_SEND_SIGNALED.0;
            match op.kind {
                OpKind::CompareSwap { expect, swap } => {
                    request.opcode = ibv_wr_opcode::IBV_WR_ATOMIC_CMP_AND_SWP;
                    request.send_flags = signaled;
                    let (compare_add, swap) = (expect.to_le(), swap.to_le());
                    request.wr.atomic = atomic_t { remote_addr: addr, compare_add, swap, rkey: key };
                    let word = self.words.ptr(index * 8, 8).addr() as u64;
                    *range = ibv_sge { addr: word, length: 8, lkey: self.words_region.lkey() };
                }
                OpKind::Read | OpKind::Write => {
                    request.wr.rdma = rdma_t { remote_addr: addr, rkey: key };
                    let local = self.arena.ptr(op.local, op.len as usize).addr() as u64;
                    *range = ibv_sge { addr: local, length: op.len, lkey: self.region.lkey() };
                    let is_read = op.kind == OpKind::Read;
                    self.quiet = if is_read || self.quiet + 1 == QUIET_WRITES { 0 } else { self.quiet + 1 };
                    request.opcode =
                        if is_read { ibv_wr_opcode::IBV_WR_RDMA_READ } else { ibv_wr_opcode::IBV_WR_RDMA_WRITE };
                    request.send_flags = if self.quiet == 0 { signaled } else { 0 };
                    if !is_read && op.len <= self.inline {
                        request.send_flags |= ibv_send_flags::IBV_SEND_INLINE.0;
                    }
                }
            }
            // An empty range is one that some devices take for 2 GiB.
            request.num_sge = i32::from(range.length > 0);
        }
        self.next += 1;
        Ok(())
    }

    fn ring(&mut self) {
        if self.rung == self.next {
            return;
        }
        let deadline = Instant::now() + self.timeout;
        let requests = self.requests.as_mut_ptr();
        let (mut chain, mut last) = (std::ptr::null_mut(), None::<usize>);
        for seq in self.rung..self.next {
            let index = self.index(seq);
            self.slots[index].deadline = deadline;
            if self.slots[index].refused.is_some() {
                continue;
            }
            // SAFETY: an index is less than the ring's length.
            let request = unsafe { requests.add(index) };
            match last {
                // SAFETY: as above.
                Some(last) => unsafe { (*requests.add(last)).next = request },
                None => chain = request,
            }
            last = Some(index);
        }
        self.rung = self.next;
        let (Some(last), Some((qp, _))) = (last, &mut self.connection) else { return };
        // SAFETY: as above.
        unsafe {
            (*requests.add(last)).next = std::ptr::null_mut();
            (*requests.add(last)).send_flags |= ibv_send_flags::IBV_SEND_SIGNALED.0;
        }
        self.quiet = 0;
        // SAFETY: requests and ranges of these slots are whole, their local memory is registered
        // and theirs until they complete. Each is in the chain once.
        if let Err((error, _)) = unsafe { qp.post(chain) } {
            self.break_off(&Broken::Device(error));
        }
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        if let Err(why) = self.drive(done) {
            self.break_off(&why);
        }
        match self.connection {
            Some(_) => self.complete_refused(done),
            None => self.flush(done),
        }
    }

    fn arm(&mut self) -> bool {
        if self.connection.is_none() {
            return self.first < self.next;
        }
        match self.set_alarm() {
            Ok(n) => n > 0 || (self.first < self.rung && self.slots[self.index(self.first)].refused.is_some()),
            Err(error) => {
                self.break_off(&Broken::Device(error));
                true
            }
        }
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
