//! Where in the file what is.

use crate::kernel::uffd::Message;

pub(super) const MAGIC: u64 = u64::from_le_bytes(*b"annexpgt");
pub(super) const VERSION: u32 = 5;
/// The oldest version that can be taken over. Until the present one windows were written otherwise.
pub(super) const OLDEST: u32 = 2;
pub(super) const JOURNAL: usize = 4096;
pub(super) const PROGRESS: usize = 48;
pub(super) const SPACE: usize = 56;
pub(super) const STUB: usize = 64;
pub(super) const INSTALL: usize = 112;
pub(super) const FLAGS: usize = 124;
pub(super) const FORKING: usize = 128;
pub(super) const WINDOW_WORDS: usize = 140;
pub(super) const CHANGES: usize = 144;
pub(super) const INHERITED: usize = 152;
pub(super) const SUSPECTS: usize = 160;
pub(super) const SUSPECT_RANGES: usize = 64;
pub(super) const INTENT: usize = 8192;
pub(super) const WINDOW: usize = 64 << 10;
/// Words the window's place holds.
pub(super) const WINDOW_ROOM: usize = (DIRECTORY - WINDOW) / 4;
pub(super) const DIRECTORY: usize = 1 << 20;
pub(super) const DIRECTORY_ENTRIES: usize = 1 << 26;
pub(super) const CHUNKS: usize = DIRECTORY + DIRECTORY_ENTRIES * 4;
pub(super) const CHUNK_PAGES: usize = 512;
/// A record of 4 bytes and a policy nibble for each page.
pub(super) const CHUNK_BYTES: usize = CHUNK_PAGES * 4 + CHUNK_PAGES / 2;
pub(super) const MAX_CHUNKS: u32 = 1 << 20;
pub(super) const UNDO: usize = CHUNKS + MAX_CHUNKS as usize * CHUNK_BYTES;
pub(super) const FILE_BYTES: usize = UNDO + UNDO_ENTRIES * 8;
pub(super) const FROZEN: u32 = 1;
pub(super) const LEAVING: u32 = 2;

/// Messages the journal holds: what one read may take.
pub const JOURNAL_MESSAGES: usize = 64;
/// Ranges one eviction may move.
pub const INTENT_RANGES: usize = 256;
/// Pages one eviction may move.
pub const INTENT_PAGES: usize = 512;

/// The highest slot a record can name.
pub const MAX_SLOT: u32 = (1 << 30) - 1;

/// Entries the log has room for: two for each page of 1 TiB that moves.
pub(super) const UNDO_ENTRIES: usize = 1 << 29;

const _: () = assert!(JOURNAL + JOURNAL_MESSAGES * size_of::<Message>() <= INTENT && INTENT_PAGES <= 512);
