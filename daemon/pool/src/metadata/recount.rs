//! References counted anew from those who hold them: what the annexd before had not written down
//! (operations under way, reservations, a count it was about to change) died with it.

use crate::error::PoolError;
use crate::metadata::extents::ExtentTable;
use crate::metadata::slots::{SlotRun, SlotTable};
use annex_shared::ids::SlotIdx;
use std::collections::BTreeMap;

/// Tells each reference to a slot to whom it is given.
pub type References<'a> = &'a dyn Fn(&mut dyn FnMut(SlotIdx));

/// Sets every count to what `references` tells. Returns the slots that were in use and that nobody
/// refers to, each left with one reference: their WRITEs may still be under way.
pub(crate) fn recount(
    extents: &ExtentTable,
    slots: &SlotTable,
    references: References<'_>,
) -> Result<Vec<SlotRun>, PoolError> {
    let per_extent = extents.slots_per_extent().unwrap_or(0);
    let mut counts: BTreeMap<_, Vec<u32>> =
        extents.live().map(|(extent, _)| (extent, vec![0u32; per_extent as usize])).collect();
    let mut stray = None;
    references(&mut |slot| {
        let count = extents.locate(slot).and_then(|(extent, offset)| counts.get_mut(&extent)?.get_mut(offset as usize));
        match count {
            Some(count) => *count += 1,
            None => stray = Some(slot),
        }
    });
    if let Some(slot) = stray {
        return Err(PoolError::Reference(slot));
    }
    let mut unsettled: Vec<SlotRun> = Vec::new();
    for (extent, counts) in counts {
        for (offset, count) in (0..).zip(counts) {
            let slot = SlotIdx(extent.0 * per_extent + offset);
            let in_doubt = count == 0 && slots.references(slot) > 0;
            slots.set_references(slot, if in_doubt { 1 } else { count });
            match unsettled.last_mut() {
                _ if !in_doubt => {}
                Some(run) if run.first.0 + run.count == slot.0 && offset != 0 => run.count += 1,
                _ => unsettled.push(SlotRun { first: slot, count: 1 }),
            }
        }
    }
    Ok(unsettled)
}
