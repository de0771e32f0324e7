//! The shm provider: the donor is on the same host, and an operation is a memcpy.
//!
//! A [`ShmConnector`] fetches slabs' memfds from the agent over its Unix socket ([`protocol`]),
//! maps them shared and populated, and keeps the mappings by rkey for all of its endpoints. The
//! pool *prepares* a slab when it leases it and *forgets* it when it gives it back; an operation
//! with an rkey that is not prepared is a remote access error.
//!
//! No agent is in the way of an operation, so the client itself checks the lease, on the [`Board`]
//! that the agent keeps. It is trusted to: a lease that ended costs the agent only the memfd, since
//! a slab that a client has mapped is never lent to another under the same memfd. What the check
//! guards is the client, against believing in bytes it no longer owns.
//!
//! An operation is done inside `post`; its completion comes from the next `poll`. There is nothing
//! to sleep on.

mod board;
mod client;
mod endpoint;
pub mod protocol;
mod slabs;
mod stream;

pub use board::{Board, BoardView, ENTRY_LEN, monotonic_ns};
pub use client::{PrepareError, ShmConnector};
