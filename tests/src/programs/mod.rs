//! Conformance: the test suites of others, natively and under annex, compared test by test (`make
//! test-programs`).
//!
//! A test that passes natively must pass under annex, with so little local memory that its
//! program is paged all the time.
//! What can't is told in docs/conformance.md, with the reason.
//!
//! - [`suites`]: which there are, and how their output is read. [`program`]: one command of a
//!   suite, and a verdict on each of its tests.
//! - [`trial`]: one run of a program, bounded in time, of which no process is left.
//!   [`comparison`]: as many runs as it takes to tell chance apart.
//! - [`known`]: what docs/conformance.md says. [`report`]: the table.

pub mod comparison;
pub mod known;
pub mod program;
pub mod report;
pub mod suites;
pub mod trial;
