//! What a program does to its mappings, followed: FORK, REMAP, REMOVE and UNMAP, and what no
//! message tells.
//!
//! Layers, each of which uses those above it:
//! 1. [`window`], [`ambiguous_unmap`]: the changes that were read since it was last known that none
//!    is unread, and what stayed ambiguous among them. Pure.
//! 2. [`transaction`], [`changes`]: one change is applied to the records, all of it or nothing.
//! 3. [`messages`]: what a userfaultfd has to say is read.
//! 4. [`young`]: what a forked child has of its parent's changes.
//! 5. [`settle`]: the window closes. Nothing is served, installed or evicted before.
//! 6. [`guard_regions`]: guards come and go without a word, and are looked for.

mod ambiguous_unmap;
mod changes;
mod fork_exclusions;
mod guard_regions;
mod messages;
mod settle;
mod transaction;
mod window;
mod young;

pub use changes::change;
pub use guard_regions::{drop_guarded, heed_guards, look_for_guards};
pub use settle::{drain, grows_up, is_told_all, settle_changes};
pub use window::Window;
pub use young::bequeath;
