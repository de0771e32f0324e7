//! What of the `annex` command others use.
//!
//! - [`access`]: what `annex bench` measures with; so do the benchmarks that compare annex with
//!   others.
//! - [`command`]: the command line; man pages and completions are made of it.

pub mod access;
pub mod command;
