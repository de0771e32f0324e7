//! The stages of a batch. Each is a type that owns what the batch has to give back from there on.
//!
//! | stage | where its pages are | what it owns, beside its slots |
//! | --- | --- | --- |
//! | [`Reserved`] | in the app | |
//! | [`Planned`] | in the app or in staging, which tells | the intent; the moves, in the core |
//! | [`Moved`] | in staging; records name the slots | the intent; references to clean copies |
//! | [`Read`] | in staging, and in a buffer | the intent; the buffer |
//! | [`Written`] | in the pool | the intent |
//! | [`Done`] | in the pool, back in the app, or lost | the intent |
//!
//! [`pipeline`](super::pipeline) makes each from the one before. Where that can't be, it says so
//! by [`CutShort`], with the stage that the batch had come to, and
//! [`rollback`](crate::recovery::rollback) makes it `Done`. The intent is in the space's table, so
//! that it outlives annexd; every batch that is `Done` strikes it out.

use crate::evict::clock::Clock;
use crate::evict::move_batch::MovedPage;
use crate::evict::outcome::Outcome;
use crate::fault::Workers;
use crate::inject::stub::Stub;
use crate::kernel::Mm;
use crate::page::PageIdx;
use crate::sched::watchdog::Watched;
use crate::space::{Registry, Shared, Space};
use annex_pool::{Buf, Lane, SlotRun};
use annex_shared::ids::SlotIdx;
use std::io;
use std::sync::Arc;

/// What a batch is made of and with, for as long as it lasts.
pub struct Batch<'a> {
    pub space: &'a Arc<Space>,
    /// A task that lives in the address space.
    pub task: i32,
    pub stub: &'a mut Stub,
    pub clock: &'a mut Clock,
    pub lane: &'a mut Lane,
    pub shared: &'a Shared,
    pub registry: &'a Registry,
    pub workers: &'a Workers,
    /// Where its steps are written down.
    pub watched: &'a Watched,
}

/// Slots, with a reference to each. They are in flight: whoever meets one in a record waits.
#[must_use]
pub struct Reserved {
    pub runs: Vec<SlotRun>,
}

/// The intent is written down, and the moves are in the core, from where the stub is rung for them.
#[must_use]
pub struct Planned {
    pub slots: Reserved,
    /// Calls that the stub is to make.
    pub calls: usize,
    /// Whoever serves faults rings for some of them each time.
    pub in_chunks: bool,
    /// References that were those of records which have flipped, if the moves were interrupted.
    pub copies: Vec<SlotIdx>,
}

/// The moves are over. The record of each page that has moved has its own reference to its slot.
#[must_use]
pub struct Moved {
    pub slots: Reserved,
    pub pages: Vec<MovedPage>,
    /// Pages that stayed where the kernel said EBUSY.
    pub busy: Vec<PageIdx>,
}

/// The bytes are read, and what needs no write is sorted out.
#[must_use]
pub struct Read {
    pub slots: Reserved,
    pub busy: Vec<PageIdx>,
    /// How many pages have moved.
    pub moved: usize,
    /// The pages to write. Page i of the buffer is theirs in order.
    pub pages: Vec<ReadPage>,
    pub buf: Buf,
    pub mm: Arc<Mm>,
}

/// A page to write.
pub struct ReadPage {
    pub slot: SlotIdx,
    /// Its place in staging, in pages.
    pub at: u64,
}

/// Every replica has what there was to write.
#[must_use]
pub struct Written {
    pub slots: Reserved,
    pub busy: Vec<PageIdx>,
    /// How many pages have moved.
    pub moved: usize,
}

/// What becomes of the pages is decided. What every batch has is left to be given back.
#[must_use]
pub struct Done {
    pub slots: Reserved,
    pub busy: Vec<PageIdx>,
    pub outcome: Outcome,
}

/// A batch that can't go on, with the stage that it had come to.
#[must_use]
pub enum CutShort {
    /// Nothing was planned.
    Reserved(Reserved, Outcome),
    /// The stub died while it moved pages, or staging could not be looked at.
    Planned(Planned),
    /// Every page has stayed where it was.
    Unmoved(Moved),
    /// The bytes can't be had.
    Moved(Moved, ReadError),
    /// No replica took the bytes.
    Read(Read),
}

/// Pages have moved, and can't be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    #[error("the address space of its evicted pages is not open")]
    NoAddressSpace,
    /// The lane is the evictor's own and idle between batches.
    #[error("annexd has no transfer buffer left")]
    NoBuffer,
    #[error("evicted pages could not be read back: {0}")]
    Staging(#[source] io::Error),
}

impl Reserved {
    /// Slots that were just reserved, and that no record names yet.
    pub fn begin(runs: Vec<SlotRun>, shared: &Shared) -> Reserved {
        shared.in_flight.begin(&runs);
        Reserved { runs }
    }

    pub fn count(&self) -> usize {
        self.runs.iter().map(|run| run.count as usize).sum()
    }
}

impl Written {
    pub fn done(self) -> Done {
        let Written { slots, busy, moved } = self;
        Done { slots, busy, outcome: Outcome::Evicted(moved as u64) }
    }
}
