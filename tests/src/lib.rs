//! Workloads that check themselves, and the testbed that runs them on paged memory.
//!
//! - [`stress`]: uses memory in every way a program can (`annex-stress`).
//! - [`shapes`]: random programs of threads, forks and mappings (`annex-shapes`).
//! - [`access`]: access patterns, timed (`annex-access`).
//! - [`mod@bench`]: `make bench`.
//! - [`programs`]: the test suites of others (`make test-programs`).
//! - [`redis`]: a Redis server full of known values. [`demo`]: `make demo`.
//! - [`testbed`]: real agents and annexd on loopback. [`vm`]: the same on machines of their own,
//!   with systemd and RDMA (`make vm-test`).
//! - [`manuals`]: man pages, completions and the packages' changelog (`annex-manuals`).
//! - [`stacks`]: what a hang leaves to be read.

pub mod access;
pub mod bench;
pub mod chaos;
pub mod demo;
pub mod kv;
pub mod manuals;
pub mod programs;
pub mod redis;
pub mod shapes;
pub mod stacks;
pub mod stress;
pub mod testbed;
pub mod vm;
