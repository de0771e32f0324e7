//! Which address space a space is: what names it here, and what tells it from others on this host.

use crate::kernel::{Mark, Mm, Pagemap};
use parking_lot::Mutex;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering::Relaxed};

/// Names a space among all that this annexd has had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SpaceId(pub u64);

/// An address space as others know it.
pub struct Identity {
    pub id: SpaceId,
    /// 0 while it is not known which process this is (a fork's child).
    pid: AtomicI32,
    stub_pid: AtomicI32,
    /// The address space itself, once something of it could be opened.
    mm: Mutex<Option<Arc<Mm>>>,
    /// What tells it from others, once it had a stub.
    mark: Mutex<Option<Mark>>,
}

impl Identity {
    pub fn new(id: SpaceId) -> Identity {
        let (pid, stub_pid) = (AtomicI32::new(0), AtomicI32::new(0));
        Identity { id, pid, stub_pid, mm: Mutex::default(), mark: Mutex::default() }
    }

    pub fn pid(&self) -> Option<i32> {
        Some(self.pid.load(Relaxed)).filter(|p| *p != 0)
    }

    /// The stub's PID, without waiting for whoever is using it.
    pub fn stub_pid(&self) -> Option<i32> {
        Some(self.stub_pid.load(Relaxed)).filter(|p| *p != 0)
    }

    pub fn set_pid(&self, pid: i32) {
        self.pid.store(pid, Relaxed);
    }

    pub fn set_stub_pid(&self, pid: i32) {
        self.stub_pid.store(pid, Relaxed);
    }

    pub fn set_mark(&self, mark: Option<Mark>) {
        *self.mark.lock() = mark;
    }

    pub fn set_mm(&self, mm: Option<Mm>) {
        *self.mm.lock() = mm.map(Arc::new);
    }

    /// The address space itself.
    pub fn mm(&self) -> Option<Arc<Mm>> {
        self.mm.lock().clone()
    }

    /// What tells the address space from all others.
    pub fn mark(&self) -> Option<Mark> {
        *self.mark.lock()
    }

    /// A task that lives in the address space, to look at its mappings: the stub, or else a thread
    /// of its process.
    pub fn task(&self) -> Option<i32> {
        let mark = self.mark()?;
        let stub = self.stub_pid().filter(|stub| mark.is_in(*stub) == Some(true));
        stub.or_else(|| mark.task_of(self.pid()?))
    }

    /// The page map of the address space.
    pub fn pagemap(&self) -> io::Result<Pagemap> {
        self.mm().ok_or(io::ErrorKind::NotFound)?.pagemap()
    }

    /// Whether a process, which lives, has become another program and left this address space.
    pub fn was_left_by(&self, pid: i32) -> bool {
        self.mark().is_some_and(|mark| mark.was_left_by(pid))
    }
}
