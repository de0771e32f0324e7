//! `--local auto`: a limit that follows what the app needs.
//!
//! - [`controller`]: one app. Measurements and the time go in, a limit comes out. Pure.
//! - [`share_out`]: all such apps on a host that is short of memory. Pure.
//! - [`governor`]: the thread that feeds them once a second, and sets the limits.
//!
//! # The measure
//! The *stall share* is what `annex top` shows: the waits of all threads for pages of the pool,
//! added up, over the time that has passed. 100 % is one thread that waits all the time; two
//! threads that do are 200 %. So it is never less than the share of time in which any thread
//! waits. A wait counts from the read of the fault message to the installed page, and when it ends.
//!
//! # What holds
//! - The limit falls step by step while the share is below half the target, and rises within one
//!   tick when the share is above the target.
//! - A size that hurt is not tried again before a pause is over. The pause doubles each time that
//!   it hurts there again: an app that does not change is disturbed ever more seldom.
//! - Whatever an app does, its average over some ten minutes above half the target stops lowering.
//! - Nothing is lowered that the pool can't take, and nothing below [`controller::LEAST`].
//! - What is learnt is not kept: a successor of annexd begins with the limit that it finds.

pub mod controller;
pub mod governor;
mod share_out;
#[cfg(test)]
mod sim;
