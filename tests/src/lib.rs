//! Workloads that check themselves, and the testbed that runs them on paged memory.
//!
//! - [`stress`]: uses memory in every way a program can (`annex-stress`).
//! - [`access`]: access patterns, timed (`annex-access`).
//! - [`mod@bench`]: `make bench`.
//! - [`redis`]: a Redis server full of known values. [`demo`]: `make demo`.
//! - [`testbed`]: real agents and annexd on loopback.

pub mod access;
pub mod bench;
pub mod chaos;
pub mod demo;
pub mod redis;
pub mod stress;
pub mod testbed;
