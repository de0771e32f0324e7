//! annex-agent: lends slabs of locked memory to clients.
//!
//! - [`config`]: the file and the flags, held against the machine.
//! - [`slab`]: one slab's memory.
//! - [`lease`]: who holds which slab until when; pure.
//! - [`lender`]: the lease book joined to slabs, keys and the lease board.
//! - [`pressure`]: what the host can spare.
//! - [`control`]: control connections.
//! - [`targets`]: data connections.
//! - [`agent`]: sockets and threads around all that.
//!
//! The library side exists so that tests can run an agent in their own process.

pub mod agent;
pub mod config;
pub mod control;
pub mod lease;
pub mod lender;
pub mod pressure;
pub mod slab;
pub mod targets;

pub use agent::{Agent, StartError};
pub use config::Config;
