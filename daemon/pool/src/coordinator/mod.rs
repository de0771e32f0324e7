//! The coordinator decides: which donors a new extent goes to, when one is given back, when a
//! donor's replicas are stale or lost, and where others are made.
//!
//! - `incidents`: what the pool as a whole goes through, as events.
//! - `news`: what the other threads tell it.
//! - `book`: every decision. Pure: what happened and the time go in, actions come out.
//! - `placement`: which donors are chosen. Pure.
//! - `thread`: one thread that takes news, asks the book, and carries its actions out. It never
//!   waits for the network.

pub(crate) mod book;
mod incidents;
pub(crate) mod news;
pub(crate) mod placement;
pub(crate) mod thread;
