//! The access-pattern workload that every contender of the benchmark runs, unchanged: all in RAM,
//! kernel swap, annex, and the bare userfaultfd floors. It is [`annex_cli::access`]; beside it are
//!
//! - [`floor`]: the least that any userfaultfd pager must pay. [`bare`]: the least that one fault,
//!   and one answer over TCP, cost.
//! - [`graph`]: PageRank, as a program by itself.
//! - [`part`]: a program that uses a part of its memory only.
//! - [`series`], [`ticks`]: what a program sees while something happens to it.

pub mod bare;
pub mod floor;
pub mod graph;
pub mod part;
pub mod series;
pub mod ticks;

pub use annex_cli::access::*;
