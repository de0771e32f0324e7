//! Connections: each has a task that reads requests, has them under way together, and writes their
//! replies in order.
//!
//! - [`Listener`]: where they come in; [`serve`] takes them.
//! - `task`: what a connection's task does, round by round.
//! - `state`: what a connection is, and whether there is room for more of it.
//! - `input`, `inbox`: what the client has sent.
//! - `begin`: how a command begins. `deferred_set`: plain SETs, which need no task. `streaming`:
//!   GETs of what is large.
//! - `flights`: the commands that are under way together.
//! - `output`, `outbox`: what the client is sent, and by whom.
//!
//! The task goes round between `advance`, which begins whatever has been read and may begin, and
//! `poll_event`, which drives what is under way, writes and reads, and sleeps when there is nothing
//! to do.
//!
//! What the next requests will look at is brought near beforehand, for several together: those of a
//! pipeline, or, if there is one only, those of the connections that have something to begin as
//! well.
//!
//! A command on keys begins at once; its locks keep it behind earlier ones on the same keys. Any
//! other command is a barrier: it begins when all before it are done, and nothing behind it begins
//! before it is.
//!
//! Replies are gathered and written together: while more are about to come, those that are there
//! wait one turn of the thread. Commands that have begun are brought to their end even if the
//! client is gone: none is left half done.
//!
//! A client that does not read has nothing more begun above `MAX_OUTPUT` bytes of answers, or as
//! many as the requests that it has sent ahead: so these and their answers take no more than twice
//! the memory that the smaller of the two would. It is read from all the same, since it may be
//! about to read once it has sent all it has. What that takes is counted
//! ([`Memory`](crate::server::Memory)), and what is too much ends the connection.

mod begin;
mod deferred_set;
mod flights;
mod inbox;
mod input;
mod listen;
mod outbox;
mod output;
mod state;
mod streaming;
mod task;
#[cfg(test)]
mod tests;

pub use listen::{BindError, Listener, serve};
