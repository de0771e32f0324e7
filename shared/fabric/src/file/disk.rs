//! The file and its regions: who has which under which key, and whether the disk still answers.

use super::task::{Lineup, Task};
use crate::{ErrorKind, OpKind};
use annex_host::repeated;
use annex_shared::ids::{RemoteAddr, Rkey, SlabId};
use nix::fcntl::{FallocateFlags, fallocate};
use nix::sys::eventfd::{EfdFlags, EventFd};
use parking_lot::Mutex;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize};
use std::time::{Duration, Instant};

/// A file of which regions are lent. See the module's header.
#[derive(Debug)]
pub struct Disk {
    pub(super) file: OwnedFd,
    /// For messages.
    name: String,
    /// Where region 0 begins, and how long each is.
    first: u64,
    region_len: u64,
    regions: Box<[Region]>,
    patience: Duration,
    base: Instant,
    pub(super) reads: Lineup,
    pub(super) writes: Lineup,
    /// For each thread: nanoseconds after `base` at which its present I/O began, plus one; 0 = it
    /// is in none.
    since: Box<[AtomicU64]>,
    /// Operations handed over and not back from the kernel.
    in_flight: AtomicUsize,
    /// Grows when the disk is cut off: endpoints of an earlier era are broken.
    era: AtomicU64,
    is_cut: AtomicBool,
    /// Readable while it is cut off.
    cut: EventFd,
    stopping: AtomicBool,
    /// The region after the one that was lent last: a bad place on the disk is not tried again at
    /// once.
    next: AtomicU32,
    /// When an operation failed last, and what the kernel said.
    trouble: Mutex<Option<(Instant, String)>>,
    /// A test that holds it makes the disk hang.
    #[cfg(test)]
    pub(super) gate: Mutex<()>,
}

#[derive(Debug, Default)]
struct Region {
    /// 0 = not lent.
    rkey: AtomicU64,
    /// Operations on it that are not completed.
    busy: AtomicU32,
}

impl Disk {
    /// Without its threads: so many that read, so many that write.
    pub(super) fn new(
        file: OwnedFd,
        name: &str,
        (first, region_len, regions): (u64, u64, u32),
        patience: Duration,
        (readers, writers): (usize, usize),
    ) -> io::Result<Disk> {
        Ok(Disk {
            file,
            name: name.to_owned(),
            first,
            region_len,
            regions: (0..regions).map(|_| Region::default()).collect(),
            patience,
            base: Instant::now(),
            reads: Lineup::new()?,
            writes: Lineup::new()?,
            since: (0..readers + writers).map(|_| AtomicU64::new(0)).collect(),
            in_flight: AtomicUsize::new(0),
            era: AtomicU64::new(0),
            is_cut: AtomicBool::new(false),
            cut: EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?,
            stopping: AtomicBool::new(false),
            next: AtomicU32::new(0),
            trouble: Mutex::default(),
            #[cfg(test)]
            gate: Mutex::default(),
        })
    }

    /// Has the threads end, each when it is back from the kernel. Operations are refused from now
    /// on.
    pub fn stop(&self) {
        self.stopping.store(true, SeqCst);
        self.era.fetch_add(1, SeqCst);
        self.reads.ring(self.since.len() as u64);
        self.writes.ring(self.since.len() as u64);
    }

    // ---- regions ----

    /// Lends a region below `limit`, with its room on the disk reserved if the file system can do
    /// that; `None` if none is free.
    pub fn lend(&self, limit: u32) -> io::Result<Option<(SlabId, Rkey)>> {
        let count = limit.min(self.regions.len() as u32);
        if count == 0 || self.is_cut_off() {
            return Ok(None);
        }
        let from = self.next.load(Relaxed) % count;
        let Some(region) = (0..count).map(|n| (from + n) % count).find(|n| self.is_free(*n)) else { return Ok(None) };
        self.reserve(region)?;
        let rkey = Rkey(u64::from(rand::random::<u32>() | 1) << 32 | u64::from(region));
        self.regions[region as usize].rkey.store(rkey.0, SeqCst);
        self.next.store(region + 1, Relaxed);
        Ok(Some((SlabId(region), rkey)))
    }

    /// A region that was lent before this annexd is lent as it was. False if that can't be.
    pub fn adopt(&self, slab: SlabId, rkey: Rkey) -> bool {
        let known = self.regions.get(slab.0 as usize).filter(|_| rkey.0 as u32 == slab.0 && rkey.0 >> 32 != 0);
        known.is_some_and(|r| r.rkey.compare_exchange(0, rkey.0, SeqCst, SeqCst).is_ok())
    }

    /// Ends a loan: no operation under its key begins from now on. The room on the disk is given
    /// back.
    pub fn take_back(&self, slab: SlabId) {
        let Some(region) = self.regions.get(slab.0 as usize) else { return };
        region.rkey.store(0, SeqCst);
        self.punch(slab.0, 1);
    }

    /// Gives the room of everything that is not lent back to the file system.
    pub fn punch_unlent(&self) {
        for region in (0..self.regions.len() as u32).filter(|n| self.is_free(*n)) {
            self.punch(region, 1);
        }
    }

    /// What is lent.
    pub fn lent(&self) -> Vec<(SlabId, Rkey)> {
        let keys = self.regions.iter().map(|r| r.rkey.load(Acquire));
        (0..).map(SlabId).zip(keys.map(Rkey)).filter(|(_, rkey)| rkey.0 != 0).collect()
    }

    /// Regions below `limit` that could be lent.
    pub fn free(&self, limit: u32) -> u32 {
        (0..limit.min(self.regions.len() as u32)).filter(|n| self.is_free(*n)).count() as u32
    }

    fn is_free(&self, region: u32) -> bool {
        let region = &self.regions[region as usize];
        region.rkey.load(SeqCst) == 0 && region.busy.load(SeqCst) == 0
    }

    fn reserve(&self, region: u32) -> io::Result<()> {
        let at = self.first + u64::from(region) * self.region_len;
        match fallocate(&self.file, FallocateFlags::empty(), at as i64, self.region_len as i64) {
            Ok(()) => Ok(()),
            Err(nix::errno::Errno::EOPNOTSUPP) => {
                // Then a full file system is an error of the write that finds it so.
                let end = at + self.region_len;
                let stat = nix::sys::stat::fstat(&self.file)?;
                if (stat.st_size as u64) < end {
                    nix::unistd::ftruncate(&self.file, end as i64)?;
                }
                Ok(())
            }
            Err(errno) => Err(errno.into()),
        }
    }

    fn punch(&self, region: u32, count: u32) {
        let at = self.first + u64::from(region) * self.region_len;
        let flags = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
        if let Err(errno) = fallocate(&self.file, flags, at as i64, (u64::from(count) * self.region_len) as i64) {
            tracing::debug!("{}: the room of a region can't be given back to the file system: {errno}", self.name);
        }
    }

    // ---- operations ----

    /// Where the bytes of an operation lie in the file, and its region; the region is busy from
    /// then on.
    pub(super) fn begin(&self, era: u64, rkey: Rkey, addr: RemoteAddr, len: u32) -> Result<(u64, u32), ErrorKind> {
        let index = rkey.0 as u32;
        let region = self.regions.get(index as usize).ok_or(ErrorKind::RemoteAccess)?;
        let inside = addr.0.checked_add(u64::from(len)).is_some_and(|end| end <= self.region_len);
        if !inside || !addr.0.is_multiple_of(annex_shared::page::PAGE_SIZE as u64) {
            return Err(ErrorKind::RemoteAccess);
        }
        // Counted first, looked at afterwards: whoever ends the loan or cuts the disk off does it
        // in the other order, so that one of both sees the other.
        self.in_flight.fetch_add(1, SeqCst);
        region.busy.fetch_add(1, SeqCst);
        let refused = if self.era.load(SeqCst) != era {
            Some(ErrorKind::Flushed)
        } else if region.rkey.load(SeqCst) != rkey.0 {
            Some(ErrorKind::RemoteAccess)
        } else {
            None
        };
        match refused {
            None => Ok((self.first + u64::from(index) * self.region_len + addr.0, index)),
            Some(kind) => {
                self.end(index);
                Err(kind)
            }
        }
    }

    /// The operation is back from the kernel.
    pub(super) fn end(&self, region: u32) {
        if let Some(region) = self.regions.get(region as usize) {
            region.busy.fetch_sub(1, SeqCst);
        }
        self.in_flight.fetch_sub(1, SeqCst);
    }

    pub(super) fn hand_over(&self, task: Task) -> Result<(), Task> {
        match task.kind {
            OpKind::Read => self.reads.push(task),
            _ => self.writes.push(task),
        }
    }

    /// Still lent under that key.
    pub(super) fn holds(&self, rkey: Rkey) -> bool {
        self.regions.get(rkey.0 as u32 as usize).is_some_and(|r| r.rkey.load(SeqCst) == rkey.0)
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.stopping.load(SeqCst)
    }

    // ---- does it answer? ----

    /// A thread goes into the kernel, or is back (`false`).
    pub(super) fn clock(&self, thread: usize, goes: bool) {
        let now = if goes { self.base.elapsed().as_nanos() as u64 + 1 } else { 0 };
        self.since[thread].store(now, Relaxed);
    }

    /// How long the longest I/O under way has taken.
    fn slowest(&self) -> Duration {
        let now = self.base.elapsed().as_nanos() as u64 + 1;
        let taken = self.since.iter().map(|s| s.load(Relaxed)).filter(|s| *s != 0).map(|s| now.saturating_sub(s));
        Duration::from_nanos(taken.max().unwrap_or(0))
    }

    /// Cuts the disk off if an I/O takes too long. To be called now and then while something is
    /// under way.
    pub fn look(&self) {
        if !self.is_cut.load(Relaxed) && self.slowest() > self.patience {
            self.cut_off();
        }
    }

    fn cut_off(&self) {
        if !self.is_cut.swap(true, SeqCst) {
            self.era.fetch_add(1, SeqCst);
            self.in_trouble(format!(
                "an operation has taken longer than {:?}: it is not used meanwhile",
                self.patience
            ));
            let _ = self.cut.write(1);
        }
    }

    /// True while the disk is cut off. It ends here, once everything is back from the kernel.
    pub fn is_cut_off(&self) -> bool {
        if self.is_cut.load(SeqCst) && self.in_flight.load(SeqCst) == 0 {
            let _ = self.cut.read();
            self.is_cut.store(false, SeqCst);
        }
        self.is_cut.load(SeqCst)
    }

    /// Grows when it is cut off: what was opened in an earlier era is broken.
    pub fn era(&self) -> u64 {
        self.era.load(SeqCst)
    }

    /// Readable while it is cut off.
    pub fn cut_fd(&self) -> BorrowedFd<'_> {
        self.cut.as_fd()
    }

    /// For messages.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn patience(&self) -> Duration {
        self.patience
    }

    /// Logs an I/O error, the first of many, and remembers it.
    pub(super) fn complain(&self, task: &Task, error: &io::Error) {
        let (Task { kind, len, at, .. }, name) = (task, &self.name);
        repeated!(WARN, "an operation failed" of name, "{name}: {kind} of {len} bytes at {at} failed: {error}");
        self.in_trouble(format!("a {kind} of {len} bytes failed: {error}"));
    }

    /// Something was not to be had of the file, for this reason.
    pub fn in_trouble(&self, why: String) {
        *self.trouble.lock() = Some((Instant::now(), why));
    }

    /// When the disk gave an error last, and which.
    pub fn trouble(&self) -> Option<(Instant, String)> {
        self.trouble.lock().clone()
    }
}
