//! When something ends in the middle, and when an app is let go of.
//!
//! - [`staged`]: what of an eviction had moved. Staging tells, and the records are made to say so.
//! - [`rollback`]: an eviction that was cut short gives back what it has, and its pages go back
//!   into the app.
//! - [`takeover`], [`ledger`]: the next annexd goes on with what the one before has left.
//! - [`restore`], [`room`]: every page of an app is brought back, if there is room for it.

mod ledger;
pub mod restore;
pub mod rollback;
mod room;
pub mod staged;
pub mod takeover;

pub use ledger::{Ledger, LedgerError};
