//! One lane's view of a donor on the same host.

use super::board::monotonic_ns;
use super::slabs::{Slab, Slabs};
use super::stream;
use crate::prepared::View;
use crate::{Arena, Completion, Endpoint, ErrorKind, Op, OpKind, QueueFull, Transport};
use annex_shared::ids::{RemoteAddr, Rkey};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::time::Duration;

const CACHE_LINE: usize = 64;
/// The rest of longer ranges the CPU prefetches by itself, once it is read.
const HINTED_LINES: usize = 16;

pub(super) struct ShmEndpoint {
    slabs: Arc<Slabs>,
    mapped: View<Arc<Slab>>,
    arena: Arc<Arena>,
    /// Done and not polled yet; never grows.
    done: Vec<Completion>,
    depth: usize,
    /// The agent was seen dead.
    is_broken: bool,
    past_caches: bool,
}

impl ShmEndpoint {
    pub(super) fn new(slabs: Arc<Slabs>, arena: Arc<Arena>, depth: usize) -> Self {
        let mapped = slabs.mapped.view();
        ShmEndpoint {
            slabs,
            mapped,
            arena,
            done: Vec::with_capacity(depth),
            depth,
            is_broken: false,
            past_caches: false,
        }
    }

    /// The 8 bytes that a COMPARE_SWAP found, else 0, and how long it took.
    fn execute(&mut self, op: &Op) -> Result<(u64, Duration), ErrorKind> {
        if !op.fits(&self.arena) {
            return Err(ErrorKind::LocalProtection);
        }
        if self.is_broken {
            return Err(ErrorKind::Flushed);
        }
        if !self.slabs.is_alive.load(Ordering::Acquire) {
            self.is_broken = true;
            return Err(ErrorKind::RetryExceeded);
        }
        let len = op.len as usize;
        let slab = self.mapped.get(op.rkey).ok_or(ErrorKind::RemoteAccess)?;
        let remote = slab.at(op.addr, len).ok_or(ErrorKind::RemoteAccess)?;
        let holds = |now| self.slabs.board.holds(slab.board_slot, op.rkey, self.slabs.incarnation, now);
        let begun = monotonic_ns();
        if !holds(begun) {
            return Err(ErrorKind::RemoteAccess);
        }
        let mut value = 0;
        match op.kind {
            // SAFETY: `remote` is good for `len` bytes (checked by `at`) while the table lives, the
            // local range too (checked by `fits`) and it belongs to this operation. They can't
            // overlap: one is the agent's memfd, the other anonymous.
            OpKind::Read => unsafe {
                std::ptr::copy_nonoverlapping(remote.cast_const(), self.arena.ptr(op.local, len), len)
            },
            // SAFETY: as for READ.
            OpKind::Write => unsafe {
                let local = self.arena.ptr(op.local, len).cast_const();
                if self.past_caches {
                    stream::copy(local, remote, len);
                } else {
                    std::ptr::copy_nonoverlapping(local, remote, len);
                }
            },
            OpKind::CompareSwap { expect, swap } => {
                if !op.addr.0.is_multiple_of(8) {
                    return Err(ErrorKind::RemoteAccess);
                }
                // SAFETY: good for 8 bytes (`fits` has checked that len is 8) and aligned, since
                // the slab is page-aligned.
                let word = unsafe { AtomicU64::from_ptr(remote.cast()) };
                let (expect, swap) = (expect.to_le(), swap.to_le());
                let (Ok(old) | Err(old)) = word.compare_exchange(expect, swap, Ordering::SeqCst, Ordering::SeqCst);
                value = u64::from_le(old);
            }
        }
        // The look at the board that follows must not be satisfied before the copy is done, in
        // either direction.
        fence(Ordering::SeqCst);
        let now = monotonic_ns();
        if holds(now) { Ok((value, Duration::from_nanos(now - begun))) } else { Err(ErrorKind::RemoteAccess) }
    }
}

impl Endpoint for ShmEndpoint {
    fn transport(&self) -> Transport {
        Transport::Shm
    }

    fn depth(&self) -> usize {
        self.depth
    }

    fn post(&mut self, op: Op) -> Result<(), QueueFull> {
        if self.done.len() == self.depth {
            return Err(QueueFull);
        }
        self.mapped.refresh(&self.slabs.mapped);
        let outcome = self.execute(&op);
        let value = outcome.map_or(0, |(value, _)| value);
        self.done.push(Completion { tag: op.tag, result: outcome.map(drop), value });
        Ok(())
    }

    fn ring(&mut self) {}

    fn read_now(&mut self, op: &Op) -> Option<Result<Duration, ErrorKind>> {
        if op.kind != OpKind::Read {
            return None;
        }
        self.mapped.refresh(&self.slabs.mapped);
        Some(self.execute(op).map(|(_, took)| took))
    }

    fn prefetch_hint(&mut self, rkey: Rkey, addr: RemoteAddr, len: u32) {
        let remote = self.mapped.get(rkey).and_then(|slab| slab.at(addr, len as usize));
        if let Some(remote) = remote {
            for line in (0..len as usize).step_by(CACHE_LINE).take(HINTED_LINES) {
                prefetch(remote.wrapping_add(line));
            }
        }
    }

    fn write_past_caches(&mut self) {
        self.past_caches = true;
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        // Also without operations: a table held here keeps returned slabs mapped.
        self.mapped.refresh(&self.slabs.mapped);
        done.append(&mut self.done);
    }

    fn arm(&mut self) -> bool {
        !self.done.is_empty()
    }

    fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn is_broken(&self) -> bool {
        self.is_broken
    }
}

/// Has the CPU fetch a cache line, without waiting for it.
fn prefetch(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint, which reads nothing and faults at no address.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(at.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}
