//! What the pool knows of every slot, in two memfds that outlive annexd. The next annexd takes them
//! over.
//!
//! - `extents`: the extent table, which names the slabs of each extent's replicas.
//! - `replica`: one replica as a value, and its states.
//! - `replicas`: how a replica changes its state, and what each one lacks. The invariants that keep
//!   a page from being lost are here.
//! - `slots`: the slot table: what vouches for each slot's bytes, and its references.
//! - `recount`: references counted anew at a take-over.
//!
//! Everybody reads both tables without a lock.

pub(crate) mod extents;
pub(crate) mod recount;
pub(crate) mod replica;
pub(crate) mod replicas;
pub(crate) mod slots;
