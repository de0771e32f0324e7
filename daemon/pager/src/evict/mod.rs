//! The way out: which pages are cold, and how a batch of them gets to the pool.
//!
//! 1. [`evictors`]: one thread at a time keeps every app below its limit.
//! 2. [`policy`], [`clock`], [`choice`]: the hand passes pages, cools them, and gathers cold ones.
//! 3. [`thread_exit`]: what the kernel needs of ending threads is left alone.
//! 4. [`move_batch`]: the stub moves them. Whoever takes the lock meanwhile settles what has moved.
//! 5. [`evictor`]: the batch is read from staging and written to all replicas.
//!
//! What fails is put back by [`rollback`](crate::recovery::rollback).

mod choice;
mod clock;
mod eviction_blocked;
mod evictor;
mod evictors;
mod move_batch;
mod outcome;
pub mod policy;
mod thread_exit;

pub use clock::{Clock, Victims};
pub use eviction_blocked::EvictionBlocked;
pub use evictors::Evictors;
pub use move_batch::MoveBatch;
pub use outcome::Outcome;
pub use thread_exit::ThreadExits;
