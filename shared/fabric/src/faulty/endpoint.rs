//! An endpoint that spoils some of the operations it passes on.
//!
//! Every operation takes a slot here, whose index is its tag on the wrapped endpoint. An
//! operation's slot goes with it until its completion is delivered, so the wrapped endpoint, which
//! is as deep, always has room for the two that follow a corrupted WRITE.

use super::plan::{Fault, Faults, scramble};
use crate::{Arena, Completion, Endpoint, ErrorKind, Op, OpKind, QueueFull, Transport};
use annex_shared::ids::{RemoteAddr, Rkey};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Where an operation stands.
#[derive(Clone, Copy, Debug)]
enum Stage {
    Free,
    /// With the wrapped endpoint.
    Under,
    /// A WRITE that was done, being corrupted: looking at a word of it.
    Peeking,
    /// And changing it, if it is still this.
    Poking(u64),
    /// Done; to be delivered then.
    Held(Instant, Completion),
    /// Never to be answered; breaks the endpoint then.
    Lost(Instant),
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    op: Op,
    number: u64,
    fault: Fault,
    stage: Stage,
    posted: Instant,
}

pub(super) struct FaultyEndpoint {
    /// `None` once broken by a dropped operation: nothing may reach the donor or the arena any
    /// more.
    inner: Option<Box<dyn Endpoint>>,
    transport: Transport,
    arena: Arc<Arena>,
    faults: Arc<Faults>,
    slots: Box<[Slot]>,
    free: Vec<usize>,
    /// Slots that are `Held` or `Lost`.
    waiting: usize,
    scratch: Vec<Completion>,
    events: Epoll,
    timer: TimerFd,
}

impl FaultyEndpoint {
    pub(super) fn new(inner: Box<dyn Endpoint>, arena: Arc<Arena>, faults: Arc<Faults>) -> io::Result<Self> {
        let events = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        let timer = TimerFd::new(ClockId::CLOCK_MONOTONIC, TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK)?;
        events.add(&timer, EpollEvent::new(EpollFlags::EPOLLIN, 0))?;
        if let Some(fd) = inner.event_fd() {
            events.add(fd, EpollEvent::new(EpollFlags::EPOLLIN, 1))?;
        }
        let op = Op { tag: 0, kind: OpKind::Read, local: 0, len: 0, rkey: Rkey(0), addr: RemoteAddr(0) };
        let slot = Slot { op, number: 0, fault: Fault::None, stage: Stage::Free, posted: Instant::now() };
        let depth = inner.depth();
        Ok(FaultyEndpoint {
            transport: inner.transport(),
            inner: Some(inner),
            arena,
            faults,
            slots: vec![slot; depth].into_boxed_slice(),
            free: (0..depth).rev().collect(),
            waiting: 0,
            scratch: Vec::with_capacity(depth),
            events,
            timer,
        })
    }

    fn deliver(&mut self, index: usize, mut completion: Completion, done: &mut Vec<Completion>) {
        completion.tag = self.slots[index].op.tag;
        self.slots[index].stage = Stage::Free;
        self.free.push(index);
        done.push(completion);
    }

    fn wait(&mut self, index: usize, stage: Stage) {
        self.slots[index].stage = stage;
        self.waiting += 1;
    }

    /// The wrapped endpoint has finished something of this slot's.
    fn on_inner(&mut self, mut completion: Completion, done: &mut Vec<Completion>) {
        let index = completion.tag as usize;
        let Slot { op, number, fault, stage, posted } = self.slots[index];
        let is_ok = completion.result.is_ok();
        match stage {
            Stage::Peeking if is_ok => {
                let swap = completion.value ^ flip(number);
                if self.swap_word(index, completion.value, swap) {
                    self.slots[index].stage = Stage::Poking(completion.value);
                    return;
                }
            }
            Stage::Poking(expected) if is_ok && completion.value == expected => add(&self.faults.corrupted_writes),
            _ => {}
        }
        if !matches!(stage, Stage::Under) {
            // The WRITE itself was done. If the endpoint broke meanwhile, that is as true.
            return self.deliver(index, Completion { tag: 0, result: Ok(()), value: 0 }, done);
        }
        match fault {
            Fault::FailDone if is_ok => {
                add(&self.faults.failed);
                completion = failure(ErrorKind::RemoteOperation);
            }
            Fault::DropDone if is_ok => {
                add(&self.faults.dropped);
                return self.wait(index, Stage::Lost(posted + self.faults.timeout()));
            }
            Fault::Delay(time) => {
                add(&self.faults.delayed);
                return self.wait(index, Stage::Held(Instant::now() + time, completion));
            }
            Fault::Corrupt if is_ok && op.kind == OpKind::Read && op.len > 0 => {
                let at = op.local + (scramble(number) % u64::from(op.len)) as usize;
                // SAFETY: in the READ's own range, which is the endpoint's until the completion is
                // delivered.
                let byte = unsafe { &mut self.arena.bytes_mut(at, 1)[0] };
                *byte ^= flip(number).to_le_bytes()[0];
                add(&self.faults.corrupted_reads);
            }
            Fault::Corrupt if is_ok && op.kind == OpKind::Write && self.swap_word(index, 0, 0) => {
                self.slots[index].stage = Stage::Peeking;
                return;
            }
            _ => {}
        }
        self.deliver(index, completion, done);
    }

    /// Posts a COMPARE_SWAP on one aligned word of what the slot's WRITE wrote; false if there is
    /// none.
    fn swap_word(&mut self, index: usize, expect: u64, swap: u64) -> bool {
        let Slot { op, number, .. } = self.slots[index];
        let word = self.faults.spoils().word(op.addr.0..op.addr.0 + u64::from(op.len), number);
        let (Some(inner), Some(word)) = (self.inner.as_mut(), word) else { return false };
        let addr = RemoteAddr(word);
        let kind = OpKind::CompareSwap { expect, swap };
        inner.post(Op { tag: index as u64, kind, local: 0, len: 8, rkey: op.rkey, addr }).is_ok()
    }

    /// Delivers what is due; breaks the endpoint if a lost operation is.
    fn on_time(&mut self, done: &mut Vec<Completion>) {
        let now = Instant::now();
        let is_broken = self.is_broken();
        for index in 0..self.slots.len() {
            match self.slots[index].stage {
                Stage::Held(due, completion) if due <= now => {
                    self.waiting -= 1;
                    self.deliver(index, completion, done);
                }
                Stage::Lost(due) if due <= now && !is_broken => return self.break_down(index, done),
                Stage::Lost(_) if is_broken => {
                    self.waiting -= 1;
                    self.deliver(index, failure(ErrorKind::Flushed), done);
                }
                _ => {}
            }
        }
    }

    fn break_down(&mut self, lost: usize, done: &mut Vec<Completion>) {
        self.inner = None;
        self.waiting = 0;
        self.deliver(lost, failure(ErrorKind::RetryExceeded), done);
        for index in 0..self.slots.len() {
            if !matches!(self.slots[index].stage, Stage::Free) {
                self.deliver(index, failure(ErrorKind::Flushed), done);
            }
        }
    }

    /// When something will be due without the wrapped endpoint's doing.
    fn next_due(&self) -> Option<Instant> {
        if self.waiting == 0 {
            return None;
        }
        let dues = self.slots.iter().filter_map(|slot| match slot.stage {
            Stage::Held(due, _) | Stage::Lost(due) => Some(due),
            _ => None,
        });
        dues.min()
    }
}

impl Endpoint for FaultyEndpoint {
    fn transport(&self) -> Transport {
        self.transport
    }

    fn is_served_here(&self) -> bool {
        self.inner.as_ref().is_some_and(|inner| inner.is_served_here())
    }

    fn depth(&self) -> usize {
        self.slots.len()
    }

    fn post(&mut self, op: Op) -> Result<(), QueueFull> {
        let Some(index) = self.free.last().copied() else { return Err(QueueFull) };
        let (number, fault) = self.faults.draw();
        let posted = Instant::now();
        self.slots[index] = Slot { op, number, fault, stage: Stage::Under, posted };
        match (&mut self.inner, fault) {
            (None, _) => self.wait(index, Stage::Held(posted, failure(ErrorKind::Flushed))),
            (Some(_), Fault::FailUndone) => {
                add(&self.faults.failed);
                self.wait(index, Stage::Held(posted, failure(ErrorKind::RemoteOperation)));
            }
            (Some(_), Fault::DropUndone) => {
                add(&self.faults.dropped);
                self.wait(index, Stage::Lost(posted + self.faults.timeout()));
            }
            (Some(inner), _) => {
                if let Err(full) = inner.post(Op { tag: index as u64, ..op }) {
                    self.slots[index].stage = Stage::Free;
                    return Err(full);
                }
            }
        }
        self.free.pop();
        Ok(())
    }

    fn ring(&mut self) {
        if let Some(inner) = &mut self.inner {
            inner.ring();
        }
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        if let Some(inner) = &mut self.inner {
            let mut finished = std::mem::take(&mut self.scratch);
            inner.poll(&mut finished);
            for completion in finished.drain(..) {
                self.on_inner(completion, done);
            }
            self.scratch = finished;
            self.ring();
        }
        if self.waiting > 0 {
            self.on_time(done);
        }
    }

    fn arm(&mut self) -> bool {
        let due = self.next_due();
        let left = due.map(|due| due.saturating_duration_since(Instant::now()));
        let set = match left {
            Some(left) => {
                let expiration = Expiration::OneShot(TimeSpec::from_duration(left.max(Duration::from_nanos(1))));
                self.timer.set(expiration, TimerSetTimeFlags::empty())
            }
            None => self.timer.unset(),
        };
        let inner = self.inner.as_mut().is_some_and(|inner| inner.arm());
        // A lost operation is flushed at the next poll once the wrapped endpoint is broken.
        let is_flushable = self.waiting > 0 && self.is_broken();
        inner || set.is_err() || left.is_some_and(|left| left.is_zero()) || is_flushable
    }

    fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.events.0.as_fd())
    }

    fn give_up(&mut self) {
        if let Some(inner) = &mut self.inner {
            inner.give_up();
        }
    }

    fn is_broken(&self) -> bool {
        self.inner.as_ref().is_none_or(|inner| inner.is_broken())
    }
}

fn failure(kind: ErrorKind) -> Completion {
    Completion { tag: 0, result: Err(kind), value: 0 }
}

/// One to eight bits to flip, all in the lowest byte.
fn flip(number: u64) -> u64 {
    (scramble(number ^ 0xf11b) & 0xff).max(1)
}

fn add(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}
