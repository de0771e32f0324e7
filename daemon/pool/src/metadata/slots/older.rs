//! A slot table of version 2, copied into one of today. The old descriptor is only read, so that a
//! copy that was interrupted is made again.
//!
//! ```text
//! 0        CRC32C of slot 0, 1, 2, …        2^30 × u32
//! 5.5 GiB  references to slot 0, 1, 2, …    2^30 × 4 bits
//! ```

use super::{COUNTS_AT, IS_CRC, SLOTS, SlotTable};
use crate::metadata::extents::TableError;
use annex_host::mapped::Mapped;
use annex_shared::ids::SlotIdx;
use annex_shared::page::PAGE_SIZE;
use std::sync::atomic::Ordering::Relaxed;

pub(super) const LEN: usize = SLOTS * 6;
const OLD_COUNTS_AT: usize = LEN - SLOTS / 2;

pub(super) fn copy(old: &Mapped) -> Result<SlotTable, TableError> {
    let table = SlotTable::create()?;
    let used = |at, len, width| {
        let pages = old.touched(at, len).into_iter();
        pages.flat_map(move |page| (page..page + PAGE_SIZE).step_by(width))
    };
    for at in used(OLD_COUNTS_AT, SLOTS / 2, 1) {
        table.map.u8(COUNTS_AT + at - OLD_COUNTS_AT).store(old.u8(at).load(Relaxed), Relaxed);
    }
    for at in used(0, SLOTS * 4, 4) {
        table.tag(SlotIdx((at / 4) as u32)).store(IS_CRC | u64::from(old.u32(at).load(Relaxed)), Relaxed);
    }
    Ok(table)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metadata::slots::SlotRun;
    use annex_shared::ids::ExtentId;
    use annex_shared::page::checksum;

    #[test]
    fn a_table_of_version_2_is_copied_and_its_pages_are_right_until_they_are_written_anew() {
        const PER_EXTENT: u32 = 512;
        let old = Mapped::create("test", LEN).unwrap();
        let page = [3; PAGE_SIZE];
        for slot in [512, 513] {
            old.u8(OLD_COUNTS_AT + slot / 2).fetch_or(if slot == 512 { 1 } else { 15 << 4 }, Relaxed);
            old.u32(slot * 4).store(checksum(&page), Relaxed);
        }
        let table = SlotTable::open(old.fd().try_clone_to_owned().unwrap()).unwrap();
        table.adopt(ExtentId(1), PER_EXTENT);
        let [first, second] = [512, 513].map(SlotIdx);
        assert_eq!([first, second].map(|slot| table.references(slot)), [1, 15]);
        assert_eq!(table.free_count(ExtentId(1)), PER_EXTENT - 2);
        assert!(table.is_right(first, &page) && !table.is_right(first, &[4; PAGE_SIZE]));

        table.prepare(SlotRun { first, count: 1 }, &mut [4; PAGE_SIZE]);
        assert!(table.is_right(first, &[4; PAGE_SIZE]) && !table.is_right(first, &page));
        assert!(table.is_right(second, &page));
        assert_eq!(old.u32(512 * 4).load(Relaxed), checksum(&page), "the old table is only read");
    }
}
