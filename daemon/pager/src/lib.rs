//! The pager: unmodified programs whose cold memory lives in the pool.
//!
//! # The way of a page
//! - *Out*: an [`app`] grows over its limit → the evictor ([`evictors`], [`evict`]) lets its clock
//!   hand ([`policy`]) choose cold pages of a [`space`] → the [`stub`] in the app's address space
//!   moves them into its staging area → they are written to the pool → their records in the page
//!   [`table`] name their slots.
//! - *In*: a thread of the app touches one → a userfaultfd message ([`uffd`]) → a fault [`worker`]
//!   → the pool → the page is installed, with neighbours if the access is sequential ([`stream`]).
//!
//! # Threads
//! | thread | number | does |
//! | --- | --- | --- |
//! | fault worker | one per CPU, at most 4 unless configured | faults and changes of every space |
//! | evictor | 1; one more, up to 8, for each that a frozen program keeps | batches, one space at a time |
//! | manager | 1 | processes: new, grown, replaced, ended |
//! | tracer | one per injection, for its duration | ptrace, which belongs to threads; stays with stubs under seccomp |
//! | watch | 1 | says which of the others stands still ([`turns`]) |
//! | control | tokio's blocking threads | attach, detach, limits |
//!
//! What each may touch is said in [`space`]: one lock per address space orders everything that
//! decides where a page is.
//!
//! # What annex has in an app
//! Nothing but the [`stub`]'s three mappings and userfaultfd registrations of the mappings that
//! pages were evicted from. Locked, shared, file-backed, special and small mappings are left alone
//! ([`region`]).

mod app;
mod config;
pub mod control;
mod events;
mod evict;
mod fault;
mod inject;
mod kernel;
mod page;
mod pager;
mod recovery;
mod sched;
mod space;

pub use config::PagerConfig;
pub use control::{Apps, Caller};
pub use kernel::probe;
pub use pager::{Pager, StartError};
pub use recovery::takeover::{PreviousState, PreviousStateError};
pub use sched::waiting::Wait;
