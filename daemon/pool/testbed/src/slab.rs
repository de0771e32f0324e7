//! How large the slabs of these donors are.

use annex_shared::page::PAGE_SIZE;

/// Slots per extent of the scripted donors.
pub const SLOTS: u32 = 64;
/// In bytes.
pub const SLAB: usize = SLOTS as usize * PAGE_SIZE;
