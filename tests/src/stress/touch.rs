//! Reads and writes of the working set, each verified.

use super::board::Shared;
use super::content::Dice;
use super::set::Set;
use super::{Feature, Trouble};

/// Pages verified under one hold by a scan.
pub const SCAN_STEP: usize = 32;

/// Verifies a random page and perhaps rewrites it.
pub fn random_touch(set: &Set, dice: &mut Dice, board: Shared, place: usize) -> Result<(), Trouble> {
    let Some(held) = set.hold_any(dice, 1) else { return Ok(()) };
    board.begin(place, Feature::Rw, held.first);
    match dice.below(4) {
        // A write that does not read first.
        0 => held.rewrite(0),
        1 => {
            board.checked(held.check("a random read")?);
            held.rewrite(0);
            board.checked(held.check("a write and a read back")?);
        }
        _ => board.checked(held.check("a random read")?),
    }
    Ok(())
}

/// Verifies the whole set; nobody else uses it any more.
pub fn check_all(set: &Set, board: Shared) -> Result<(), Trouble> {
    for first in (0..set.pages()).step_by(SCAN_STEP) {
        if let Some(held) = set.hold(first, SCAN_STEP.min(set.pages() - first)) {
            board.checked(held.check("the end of the run")?);
        }
    }
    Ok(())
}
