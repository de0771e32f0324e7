//! What stubs and annexd agree on: the shared page, the words of the gate, sizes and names.

use crate::kernel::Mark;
use crate::kernel::uffd::MoveArg;
use crate::space::StubTraces;
use annex_shared::page::PAGE_SIZE;
use std::sync::atomic::{AtomicU32, AtomicU64};

/// Bytes of staging. 2 MiB-aligned so that a transparent huge page can be moved whole.
pub const STAGING: u64 = 8 << 20;
/// Pages of it that the spans of one batch may cover. Batches follow each other there, so that it
/// need not be emptied after each: that takes the program's CPU for as long as it takes to free the
/// pages, and interrupts.
pub const STAGING_PART: u64 = STAGING / PAGE_SIZE as u64 / 2;
/// Of the code and the shared page: a stub of another version is replaced, not adopted.
pub(super) const VERSION: u32 = 5;
pub(super) const SHARED_PAGE_MEMFD: &std::ffi::CStr = c"annex-stub-page";
/// What the stub is called in process listings.
pub const NAME: &str = "annex-stub";
/// Ranges one doorbell can move.
pub const MAX_MOVES: usize = crate::space::INTENT_RANGES;

pub(super) const HUGE: u64 = 2 << 20;
/// The shared page's layout; the assembly below knows the offsets.
#[repr(C, align(4096))]
pub(super) struct Comm {
    /// Calls to make, and the first of them.
    pub count: AtomicU32,
    pub first: AtomicU32,
    /// See `gate`.
    pub gate: AtomicU32,
    pub left: AtomicU32,
    /// How often the bell was rung, on which the stub sleeps, and which of these rings is
    /// completed, on which annexd does.
    pub rung: AtomicU32,
    pub completed: AtomicU32,
    /// Whether annexd is to be woken when this ring is completed.
    pub answers: AtomicU32,
    pad: u32,
    /// Where threads of the program write what they are asked for.
    pub answer: AtomicU64,
    unused: [u64; 3],
    pub calls: [Call; MAX_MOVES],
    pub moves: [MoveArg; MAX_MOVES],
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Call {
    pub number: i64,
    pub args: [u64; 6],
    pub result: i64,
}

const _: () = {
    assert!(std::mem::offset_of!(Comm, first) == 4);
    assert!(std::mem::offset_of!(Comm, gate) == 8);
    assert!(std::mem::offset_of!(Comm, left) == 12);
    assert!(std::mem::offset_of!(Comm, rung) == 16);
    assert!(std::mem::offset_of!(Comm, completed) == 20);
    assert!(std::mem::offset_of!(Comm, answers) == 24);
    assert!(std::mem::offset_of!(Comm, calls) == 64);
    assert!(size_of::<Call>() == 64);
};

/// A call is under way.
pub(super) const MOVING: u32 = 1;
/// No call may begin.
pub(super) const SHUT: u32 = 2;
/// No call of this doorbell will begin any more.
pub(super) const ENDED: u32 = 4;
/// Looks of a stub at a gate that is shut, with a `pause` each: some tens of microseconds.
pub(super) const LOOKS: u32 = 1 << 9;
/// What a call answers that was not made.
pub(super) const UNMADE: i64 = i64::MIN;

impl StubTraces {
    /// What tells the stub's address space from all others. What an older build wrote says less.
    pub fn mark(&self) -> Mark {
        Mark { at: self.comm_at, inode: if self.version == VERSION { self.inode } else { 0 } }
    }

    /// Everything the stub has mapped in the app, its shared page first.
    pub fn mappings(&self) -> [(u64, u64); 3] {
        [(self.comm_at, size_of::<Comm>() as u64), (self.code_at, 4096), (self.staging_map_at, STAGING + HUGE)]
    }
}
