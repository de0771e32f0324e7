//! Where everything lies in a slot table. The layout is told in the header of `slots`.

use crate::metadata::extents::SLOT_BITS;

/// Bytes of a key.
pub(super) const KEY: usize = 32;
pub(super) const SLOTS: usize = 1 << SLOT_BITS;
pub(super) const MAGIC: u64 = u64::from_le_bytes(*b"annexslt");
pub(super) const VOUCHING_KEY_AT: usize = 8;
pub(super) const SEALING_KEY_AT: usize = VOUCHING_KEY_AT + KEY;
pub(super) const DRAWN_AT: usize = 72;
pub(super) const SEALED_AT: usize = 80;
pub(super) const COUNTS_AT: usize = 4096;
pub(super) const TAGS_AT: usize = COUNTS_AT + SLOTS / 2;
pub(super) const VERSIONS_AT: usize = TAGS_AT + SLOTS * 8;
pub(super) const LEN: usize = VERSIONS_AT + SLOTS * 8;
/// The upper half of a tag that is a CRC32C.
pub(super) const IS_CRC: u64 = 0xffff_ffff << 32;
