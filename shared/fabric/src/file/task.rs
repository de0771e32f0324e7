//! What endpoints and the threads of a disk share: operations on their way, the line in which they
//! wait, and the desk where both meet.

use crate::{Arena, ErrorKind, OpKind};
use annex_shared::ids::Rkey;
use crossbeam::queue::ArrayQueue;
use nix::errno::Errno;
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicU8;
use std::sync::atomic::Ordering::{AcqRel, Acquire};

/// Operations that may wait for a thread: more than all lanes together can have outstanding.
const LINE: usize = 4096;
/// One operation on its way.
#[derive(Debug)]
pub(super) struct Task {
    pub desk: Arc<Desk>,
    pub ticket: u32,
    pub kind: OpKind,
    /// Where its bytes lie in the desk's arena.
    pub local: usize,
    pub len: u32,
    /// Where in the file.
    pub at: u64,
    pub region: u32,
    pub rkey: Rkey,
}

/// What waits for a thread, and what the threads wait on: a count of what waits.
#[derive(Debug)]
pub(super) struct Lineup {
    queue: ArrayQueue<Task>,
    bell: EventFd,
}

impl Lineup {
    pub fn new() -> io::Result<Lineup> {
        let bell = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_SEMAPHORE)?;
        Ok(Lineup { queue: ArrayQueue::new(LINE), bell })
    }

    pub fn push(&self, task: Task) -> Result<(), Task> {
        self.queue.push(task)
    }

    /// So many were pushed since the last ring.
    pub fn ring(&self, pushed: u64) {
        // Blocks only at 2^64: one count for each place in the line.
        let _ = self.bell.write(pushed);
    }

    /// The next one, when there is one.
    pub fn wait(&self) -> Option<Task> {
        while let Err(Errno::EINTR) = self.bell.read() {}
        self.queue.pop()
    }
}

/// Where an endpoint and the threads meet.
#[derive(Debug)]
pub(super) struct Desk {
    pub arena: Arc<Arena>,
    tickets: Box<[AtomicU8]>,
    /// Tickets of operations that are completed, with how they ended.
    pub completed: ArrayQueue<(u32, Result<(), ErrorKind>)>,
    pub event: EventFd,
}

/// Nobody touches its bytes now, and who wants to may claim it.
const IDLE: u8 = 0;
/// A thread copies its bytes.
const CLAIMED: u8 = 1;
/// It was given up: its bytes are not the threads' any more.
const GIVEN_UP: u8 = 2;
/// It is on the list of those that are completed.
const COMPLETED: u8 = 3;

impl Desk {
    pub fn new(arena: Arc<Arena>, tickets: usize) -> io::Result<Desk> {
        Ok(Desk {
            arena,
            tickets: (0..tickets).map(|_| AtomicU8::new(IDLE)).collect(),
            completed: ArrayQueue::new(tickets),
            event: EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?,
        })
    }

    /// A ticket is used anew.
    pub fn renew(&self, ticket: u32) {
        self.turn(ticket, COMPLETED, IDLE);
    }

    /// Takes an operation from the threads for good. False: not now, one of them copies its bytes,
    /// or it is completed.
    pub fn give_up(&self, ticket: u32) -> bool {
        self.turn(ticket, IDLE, GIVEN_UP)
    }

    pub fn is_completed(&self, ticket: u32) -> bool {
        self.tickets[ticket as usize].load(Acquire) == COMPLETED
    }

    /// The operation is completed.
    pub fn finish(&self, ticket: u32, result: Result<(), ErrorKind>) {
        if self.turn(ticket, IDLE, COMPLETED) {
            // There is a place for every ticket.
            let _ = self.completed.push((ticket, result));
            let _ = self.event.write(1);
        }
    }

    fn turn(&self, ticket: u32, from: u8, to: u8) -> bool {
        self.tickets[ticket as usize].compare_exchange(from, to, AcqRel, Acquire).is_ok()
    }

    /// Copies between the arena and a thread's buffer, unless the operation was given up.
    pub fn copy(&self, task: &Task, done: usize, buffer: &Buffer, len: usize) -> bool {
        if !self.turn(task.ticket, IDLE, CLAIMED) {
            return false;
        }
        let arena = self.arena.ptr(task.local + done, len);
        let own = buffer.0.ptr(0, len);
        let (from, to) = if task.kind == OpKind::Read { (own, arena) } else { (arena, own) };
        // SAFETY: both ranges are in bounds (`ptr` checks) and in different mappings. The arena's
        // belongs to this operation (its range was checked when it was posted) while the claim is
        // held; the buffer is this thread's.
        unsafe { std::ptr::copy_nonoverlapping(from.cast_const(), to, len) };
        self.turn(task.ticket, CLAIMED, IDLE)
    }
}

/// A thread's own memory, aligned for direct I/O.
pub(super) struct Buffer(pub Arena);

impl Buffer {
    pub fn bytes(&mut self, len: usize) -> &mut [u8] {
        // SAFETY: the thread alone has it, and hands it out by `&mut`.
        unsafe { self.0.bytes_mut(0, len) }
    }
}
