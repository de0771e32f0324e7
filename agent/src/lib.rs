//! annex-agent: lends slabs of locked memory to clients.
//!
//! - [`flags`]: the command line.
//! - [`access`]: who may borrow; pure.
//! - [`config`]: the file and the flags, held against the machine.
//! - [`slab`]: one slab's memory; [`hugepages`]: its pages' size.
//! - [`lease`]: who holds which slab until when; pure.
//! - [`lender`]: the lease book joined to slabs, keys and the lease board.
//! - [`store`]: what of it outlives the agent, and where.
//! - [`pressure`]: what the host can spare.
//! - [`reload`]: the configuration read again.
//! - [`recall`]: when it wants memory back, and whose; pure.
//! - [`control`]: what is said on a control connection; [`controls`]: all that are open.
//! - [`places`]: who may have a connection; [`opening`]: until it is known what it is for.
//! - [`port`]: what the TCP port is with TLS, and hosts that join.
//! - [`local`]: the administrator's API: status, draining.
//! - [`doctor`]: what keeps this machine from lending.
//! - [`metrics`]: what Prometheus is shown.
//! - [`targets`]: data connections.
//! - [`rlimits`]: what the kernel lets the agent have.
//! - [`agent`]: sockets and threads around all that.
//!
//! The library side exists so that tests can run an agent in their own process.

pub mod access;
pub mod agent;
pub mod config;
pub mod control;
pub mod controls;
pub mod doctor;
pub mod flags;
pub mod hugepages;
pub mod lease;
pub mod lender;
pub mod local;
pub mod metrics;
pub mod opening;
pub mod places;
pub mod port;
pub mod pressure;
pub mod recall;
pub mod reload;
pub mod rlimits;
pub mod slab;
pub mod sockets;
pub mod store;
pub mod targets;

pub use agent::{Agent, StartError};
pub use config::Config;
