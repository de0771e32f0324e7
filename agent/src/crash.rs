//! Places where a test can have the agent die, as if by SIGKILL: `annex-agent --die-at PLACE` (hidden; nothing in the environment can set it).
//!
//! Each lies between two steps whose order matters when the agent is restarted.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// All places, in no order.
pub const PLACES: [&str; 12] = [
    "claim-saved",
    "slab-made",
    "slab-kept",
    "lease-saved",
    "lease-opened",
    "key-dead",
    "lease-ended",
    "slab-emptied",
    "slab-forgotten",
    "copy-kept",
    "copy-saved",
    "incarnation-seen",
];

static CHOSEN: OnceLock<&'static str> = OnceLock::new();
static PASSES: AtomicU32 = AtomicU32::new(0);

/// Die on reaching `place` for the `pass`-th time (counted from 1). False if there is no such place.
pub fn at(place: &str, pass: u32) -> bool {
    let Some(place) = PLACES.iter().find(|p| **p == place) else { return false };
    PASSES.store(pass.max(1), Ordering::SeqCst);
    CHOSEN.set(place).is_ok()
}

/// Marks a place.
pub(crate) fn point(place: &'static str) {
    debug_assert!(PLACES.contains(&place), "{place} is not in the list");
    if CHOSEN.get() == Some(&place) && PASSES.fetch_sub(1, Ordering::SeqCst) == 1 {
        // What SIGKILL leaves behind is what this leaves behind: nothing is unwound or flushed.
        // SAFETY: raises a signal in this process, which ends here.
        unsafe { libc::raise(libc::SIGKILL) };
    }
}
