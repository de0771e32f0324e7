//! One address space: all that is known of it, and the one order in which things happen to it.
//!
//! - [`Identity`]: which address space it is, to the kernel and to this host.
//! - [`Space`]: its userfaultfd, its [`Core`], and what the evictor keeps of it.
//! - [`SpaceGuard`]: the lock of its core. Whoever has it finds records that are true.
//! - [`table`]: where each page is, in memory that outlives annexd.
//! - [`region`], [`registration`]: what may be evicted, and what the kernel tells of.
//! - [`Registry`], [`Shared`]: every space, and what work on one needs of the rest.
//!
//! The other rooms work on spaces by functions of their own, which take a [`Space`] and its guard.

mod address_space;
mod core;
mod guard;
mod identity;
mod inflight;
pub mod region;
mod registration;
mod registry;
mod shared;
mod state;
mod table;

pub use address_space::{Evicting, Space};
pub use core::{Core, GuardRegions};
pub use guard::SpaceGuard;
pub use identity::{Identity, SpaceId};
pub use registration::{forget_if_vanished, prepare};
pub use registry::Registry;
pub use shared::{Shared, Watch};
pub use table::{
    INTENT_RANGES, Intent, JOURNAL_MESSAGES, Phase, Record, StubTraces, Table, TableError, TableFull, Victim,
};
