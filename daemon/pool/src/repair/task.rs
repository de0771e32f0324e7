//! What the repair thread is asked.

use annex_shared::ids::{ExtentId, SlotIdx};

/// What the repair thread is asked.
pub(crate) enum Task {
    /// Copy to a syncing replica what it lacks.
    Fill { extent: ExtentId, index: u8, generation: u16, live: usize },
    /// A live replica gave wrong bytes for this page.
    Heal { slot: SlotIdx, index: u8, generation: u16 },
}
