//! Reads and writes of slots. A *lane* is one thread's way to the pool: locked buffers, one
//! endpoint per donor, and a table of what is in flight. It belongs to its thread, takes no lock
//! and waits for nobody.
//!
//! - `request`: what a lane's owner asks and is told.
//! - `lane`: the lane itself. A read goes to the best replica and is verified; a write goes to all.
//! - `buffer`: which pages of a lane's arena are free.
//! - `inflight`: the table of jobs, parts and fabric operations.
//! - `hedging`: when a read is late, and which replica is asked. Pure.
//! - `latency`: how long a donor's reads take, and from when on one is late. Pure.
//! - `mailbox`: how other threads reach a lane.

pub(crate) mod buffer;
pub(crate) mod hedging;
pub(crate) mod inflight;
pub(crate) mod lane;
pub(crate) mod latency;
pub(crate) mod mailbox;
pub(crate) mod request;
