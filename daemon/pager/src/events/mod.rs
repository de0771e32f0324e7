//! What a program does to its mappings, followed: FORK, REMAP, REMOVE and UNMAP, and what no
//! message tells.
//!
//! Messages come in another order than their changes happened. The changes that were read since it
//! was last known that none is unread are a window. When it closes, the kernel is asked about what
//! stayed ambiguous.

pub mod ambiguous_unmap;
pub mod changes;
pub mod fork_exclusions;
pub mod guard_regions;
pub mod messages;
pub mod settle;
pub mod transaction;
pub mod window;
pub mod young;
