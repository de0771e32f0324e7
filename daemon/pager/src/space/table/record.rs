//! What a record says, and what stands in a table besides.

use super::layout::{MAX_SLOT, VERSION};
use annex_shared::ids::SlotIdx;
use serde::{Deserialize, Serialize};
use std::io;

/// Where a page is. See the module's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record {
    None,
    Removed,
    Poisoned,
    Evicted(SlotIdx),
    Clean(SlotIdx),
}

impl Record {
    pub fn encode(self) -> u32 {
        match self {
            Record::None => 0,
            Record::Removed => 1,
            Record::Poisoned => 2,
            Record::Evicted(slot) => 1 << 30 | slot.0,
            Record::Clean(slot) => 2 << 30 | slot.0,
        }
    }

    pub fn decode(word: u32) -> Record {
        let slot = SlotIdx(word & MAX_SLOT);
        match (word >> 30, slot.0) {
            (1, _) => Record::Evicted(slot),
            (2, _) => Record::Clean(slot),
            (0, 0) => Record::None,
            (0, 1) => Record::Removed,
            // Anything else was never written; poison fails closed.
            _ => Record::Poisoned,
        }
    }

    pub fn slot(self) -> Option<SlotIdx> {
        match self {
            Record::Evicted(slot) | Record::Clean(slot) => Some(slot),
            _ => None,
        }
    }
}

/// The table has no room for another chunk (2 TiB of scattered addresses are covered).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableFull;

/// A page table could not be made or taken over.
#[derive(Debug, thiserror::Error)]
pub enum TableError {
    #[error("failed to make or map a page table: {0}")]
    System(#[from] io::Error),
    #[error("the saved state is not a page table of annex")]
    Magic,
    #[error("the saved page table has layout version {0}, this annexd knows {VERSION}: start the annexd that wrote it")]
    Version(u32),
    #[error("the saved page table is damaged: {0}")]
    Damaged(&'static str),
}

/// Where a stub's things are, for the annexd that comes after.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StubTraces {
    pub pid: i32,
    /// Its PID in the app's namespace.
    pub pid_there: i32,
    pub staging: (u64, u64),
    pub code_at: u64,
    pub comm_at: u64,
    pub staging_map_at: u64,
    /// Descriptor numbers in the stub's table: shared page, userfaultfd.
    pub fds: [i32; 2],
    /// Of the shared page's file.
    pub inode: u64,
    /// Of the stub's code and shared page.
    pub version: u32,
}
