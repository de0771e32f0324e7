//! One lane's queue to a disk.

use super::disk::Disk;
use super::task::{Desk, Task};
use crate::{Arena, Completion, Endpoint, ErrorKind, Op, OpKind, QueueFull, Transport};
use annex_shared::page::PAGE_SIZE;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Instant;

const DEPTH: usize = 64;

pub(super) struct FileEndpoint {
    disk: Arc<Disk>,
    desk: Arc<Desk>,
    era: u64,
    /// By ticket: what is under way.
    open: Box<[Option<(u64, Instant)>]>,
    free: Vec<u32>,
    /// Refused at once, and not polled yet.
    failed: Vec<Completion>,
    /// Reads and writes since the last ring.
    posted: (u64, u64),
    is_broken: bool,
}

impl FileEndpoint {
    pub fn new(disk: Arc<Disk>, arena: Arc<Arena>, era: u64) -> io::Result<FileEndpoint> {
        Ok(FileEndpoint {
            disk,
            desk: Arc::new(Desk::new(arena, DEPTH)?),
            era,
            open: vec![None; DEPTH].into_boxed_slice(),
            free: (0..DEPTH as u32).collect(),
            failed: Vec::with_capacity(DEPTH),
            posted: (0, 0),
            is_broken: false,
        })
    }

    fn hand_over(&mut self, op: &Op, ticket: u32) -> Result<Result<(), QueueFull>, ErrorKind> {
        if self.is_broken {
            return Err(ErrorKind::Flushed);
        }
        if !op.fits(&self.desk.arena) || !(op.local | op.len as usize).is_multiple_of(PAGE_SIZE) {
            return Err(ErrorKind::LocalProtection);
        }
        if matches!(op.kind, OpKind::CompareSwap { .. }) {
            // A file has nothing atomic of 8 bytes, and the pool asks for none.
            return Err(ErrorKind::RemoteOperation);
        }
        let (at, region) = self.disk.begin(self.era, op.rkey, op.addr, op.len)?;
        let Op { kind, local, len, rkey, .. } = *op;
        let task = Task { desk: self.desk.clone(), ticket, kind, local, len, at, region, rkey };
        Ok(self.disk.hand_over(task).map_err(|task| {
            self.disk.end(task.region);
            QueueFull
        }))
    }

    fn under_way(&self) -> usize {
        DEPTH - self.free.len()
    }

    /// After the disk was cut off: what is still out is given up.
    fn give_up(&mut self, done: &mut Vec<Completion>) {
        for ticket in 0..DEPTH as u32 {
            // What a thread is just copying is completed at the next look.
            if let Some((tag, since)) = self.open[ticket as usize]
                && self.desk.give_up(ticket)
            {
                let late = since.elapsed() > self.disk.patience();
                let kind = if late { ErrorKind::RetryExceeded } else { ErrorKind::Flushed };
                self.open[ticket as usize] = None;
                self.free.push(ticket);
                done.push(Completion { tag, result: Err(kind), value: 0 });
            }
        }
    }
}

impl Endpoint for FileEndpoint {
    fn transport(&self) -> Transport {
        Transport::File
    }

    fn depth(&self) -> usize {
        DEPTH
    }

    fn post(&mut self, op: Op) -> Result<(), QueueFull> {
        if self.failed.len() == DEPTH {
            return Err(QueueFull);
        }
        let ticket = self.free.pop().ok_or(QueueFull)?;
        let posted = self.hand_over(&op, ticket);
        if let Ok(Ok(())) = posted {
            self.open[ticket as usize] = Some((op.tag, Instant::now()));
            match op.kind {
                OpKind::Read => self.posted.0 += 1,
                _ => self.posted.1 += 1,
            }
            return Ok(());
        }
        self.free.push(ticket);
        match posted {
            Err(kind) => {
                self.is_broken |= kind.is_fatal();
                self.failed.push(Completion { tag: op.tag, result: Err(kind), value: 0 });
                Ok(())
            }
            Ok(full) => full,
        }
    }

    fn ring(&mut self) {
        let (reads, writes) = std::mem::take(&mut self.posted);
        if reads > 0 {
            self.disk.reads.ring(reads);
        }
        if writes > 0 {
            self.disk.writes.ring(writes);
        }
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        done.append(&mut self.failed);
        while let Some((ticket, result)) = self.desk.completed.pop() {
            self.desk.renew(ticket);
            self.free.push(ticket);
            if let Some((tag, _)) = self.open[ticket as usize].take() {
                done.push(Completion { tag, result, value: 0 });
            }
        }
        if self.under_way() > 0 {
            self.disk.look();
        }
        self.is_broken |= self.disk.era() != self.era;
        if self.is_broken && self.under_way() > 0 {
            self.give_up(done);
        }
    }

    fn arm(&mut self) -> bool {
        // Drained before the look: what is completed after it makes the descriptor readable anew.
        let _ = self.desk.event.read();
        !self.failed.is_empty() || !self.desk.completed.is_empty()
    }

    fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.desk.event.as_fd())
    }

    fn is_broken(&self) -> bool {
        self.is_broken
    }
}

impl Drop for FileEndpoint {
    /// From here on no thread touches the arena for this endpoint.
    fn drop(&mut self) {
        // What was posted and not rung would stay in line, and in the count of what is in flight,
        // for ever.
        self.ring();
        for ticket in (0..DEPTH as u32).filter(|t| self.open[*t as usize].is_some()) {
            while !self.desk.give_up(ticket) && !self.desk.is_completed(ticket) {
                // Until a copy of at most 256 KiB is done.
                std::thread::yield_now();
            }
        }
    }
}
