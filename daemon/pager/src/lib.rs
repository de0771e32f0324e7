//! The pager: unmodified programs whose cold memory lives in the pool.
//!
//! # Rooms
//! | room | subject |
//! | --- | --- |
//! | [`kernel`] | userfaultfd, the page map, /proc: what the kernel says, as decisions |
//! | [`space`] | one address space: its lock, page table, regions, registration |
//! | [`events`] | what a program does to its mappings: fork, remap, remove, unmap |
//! | [`fault`] | a message comes in, a page is installed: workers, fetch, prefetch, rings |
//! | [`sched`] | which thread runs where, and before whom |
//! | [`evict`] | which pages go, and the way of a batch to the pool |
//! | [`inject`] | the stub, and how it gets into a program |
//! | [`recovery`] | take-over, rollback, restore |
//! | [`app`] | processes that are managed as one, and their limit |
//! | [`rules`] | what is attached without anybody asking for it |
//!
//! # The way of a page
//! - *Out*: an app grows over its limit → the evictor lets its clock hand choose cold pages of a
//!   space → the stub in the app's address space moves them into its staging area → they are
//!   written to the pool → their records in the page table name their slots.
//! - *In*: a thread of the app touches one → a userfaultfd message → a fault worker → the pool →
//!   the page is installed, with neighbours if the access is sequential.
//!
//! One lock per address space orders everything that decides where a page is ([`space`]).
//! `docs/architecture.md` tells of threads and invariants.
//!
//! # What annex has in an app
//! Nothing but the stub's three mappings and userfaultfd registrations of the mappings that pages
//! were evicted from. Locked, shared, file-backed, special and small mappings are left alone.

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
mod rules;
mod sched;
mod space;

pub use config::{PagerConfig, UsersConfig};
pub use control::{Apps, Caller};
pub use kernel::probe;
pub use pager::{Pager, StartError};
pub use recovery::takeover::{PreviousState, PreviousStateError};
pub use rules::{Rule, RuleConfig, RuleError, parse as parse_rules};
pub use sched::waiting::Wait;
