//! The way out: which pages are cold, and how a batch of them gets to the pool.
//!
//! 1. [`evictors`]: one thread at a time keeps every app below its limit.
//! 2. [`evictor`]: what comes before a batch. Can the space be evicted from, which pages go, and
//!    are there slots for them.
//! 3. [`policy`], [`clock`], [`choice`]: the hand passes pages, cools them, and gathers cold ones.
//! 4. [`thread_exit`]: what the kernel needs of ending threads is left alone.
//! 5. [`pipeline`], [`stages`]: a batch is planned, moved, read, written and done. Each stage is a
//!    type that owns what it has to give back.
//! 6. [`move_batch`]: the moves, while the stub makes them. Whoever takes the lock meanwhile
//!    settles what has moved.
//!
//! A batch that is cut short, at whatever stage, is put back by
//! [`rollback`](crate::recovery::rollback).

mod choice;
mod clock;
mod eviction_blocked;
mod evictor;
mod evictors;
mod move_batch;
mod outcome;
mod pipeline;
pub mod policy;
mod stages;
mod thread_exit;

pub use clock::{Clock, Victims};
pub use eviction_blocked::{Cause, EvictionBlocked};
pub use evictors::Evictors;
pub use move_batch::MoveBatch;
pub use outcome::Outcome;
pub use stages::{Batch, CutShort, Done, Moved, ReadError};
pub use thread_exit::ThreadExits;
