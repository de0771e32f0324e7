//! The way out: which pages are cold, and how a batch of them gets to the pool.

pub mod choice;
pub mod clock;
pub mod eviction_blocked;
pub mod evictor;
pub mod evictors;
pub mod move_batch;
pub mod outcome;
pub mod policy;
pub mod thread_exit;
