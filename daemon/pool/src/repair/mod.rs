//! Copies of what replicas lack, made in the background.
//!
//! - `task`: what the repair thread is asked.
//! - `thread`: it fills syncing replicas, has backups follow, rewrites pages that decayed, and
//!   looks for such pages. It has a lane of its own.
//! - `fills`: which replica is filled next, and how fast. Pure.
//!
//! Why filling is right while programs write is told in `metadata::replicas`.

pub(crate) mod fills;
pub(crate) mod task;
pub(crate) mod thread;
