//! A slot table of version 2, copied into one of today. The old descriptor is only read, so that a
//! copy that was interrupted is made again.
//!
//! ```text
//! 0        CRC32C of slot 0, 1, 2, …        2^30 × u32
//! 5.5 GiB  references to slot 0, 1, 2, …    2^30 × 4 bits
//! ```

use super::layout::{COUNTS_AT, IS_CRC, SLOTS, TAGS_AT};
use annex_host::mapped::Mapped;
use annex_shared::page::PAGE_SIZE;
use std::sync::atomic::Ordering::Relaxed;

pub(super) const LEN: usize = SLOTS * 6;
const OLD_COUNTS_AT: usize = LEN - SLOTS / 2;

/// Into a fresh table.
pub(super) fn copy(old: &Mapped, new: &Mapped) {
    let used = |at, len, width| {
        let pages = old.touched(at, len).into_iter();
        pages.flat_map(move |page| (page..page + PAGE_SIZE).step_by(width))
    };
    for at in used(OLD_COUNTS_AT, SLOTS / 2, 1) {
        new.u8(COUNTS_AT + at - OLD_COUNTS_AT).store(old.u8(at).load(Relaxed), Relaxed);
    }
    for at in used(0, SLOTS * 4, 4) {
        new.u64(TAGS_AT + at * 2).store(IS_CRC | u64::from(old.u32(at).load(Relaxed)), Relaxed);
    }
}
