//! Faults: from the message, or the question at a ring, to the page that is installed.
//!
//! A worker reads what a space has to say, asks the pool for the page and its likely neighbours,
//! and installs what comes back.

pub mod attend;
pub mod busy_poll;
pub mod completion;
pub mod fetch;
pub mod install;
pub mod next;
pub mod page_fault;
pub mod prefetch;
pub mod reading;
pub mod rings;
pub mod run;
pub mod serve;
pub mod worker;
pub mod workers;
