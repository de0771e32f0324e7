//! What `annex doctor` and `annex-agent doctor` have in common: checks of a host, and how checks
//! are reported.
//!
//! A check looks at one thing and says what is. Unless that is good it also says what to do. The
//! checks of a host are pure functions over files: [`Host`] reads `/proc`, `/sys` and `/etc`
//! beneath a root, which in a test is a folder with files made up. Nothing is changed on the host,
//! and what the caller may not read is a warning.
//!
//! - [`report`]: checks, their numbers, and how they are printed.
//! - [`host`]: the files of a host; [`all`]: all checks of one.
//! - [`kernel`], [`userfaultfd`], [`process`], [`memory`], [`rdma`], [`network`]: the checks.
//! - [`tls`]: the files of `[tls]`, and how long the certificate lasts.
//! - [`addresses`]: what is to be said of a donor's address by itself.

#![deny(unsafe_code)]

pub mod addresses;
pub mod all;
pub mod host;
pub mod kernel;
pub mod memory;
pub mod network;
pub mod process;
pub mod rdma;
pub mod report;
pub mod tls;
#[allow(unsafe_code)]
pub mod userfaultfd;

#[cfg(test)]
mod tests;

pub use all::checks;
pub use host::{Host, Role, Subject};
pub use report::{Check, Outcome, Report};

use std::time::Duration;

/// How long programs wait for the next annexd, unless `takeover_wait` says otherwise. A lease that
/// is shorter ends while they wait.
pub const TAKEOVER_WAIT: Duration = Duration::from_secs(60);
/// `lease_ttl` of an agent, unless configured.
pub const LEASE_TTL: Duration = Duration::from_secs(120);
