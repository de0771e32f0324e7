//! What commands do with bytes, apart from fetching and keeping them: pure functions, without a
//! store, a clock or a client.
//!
//! - [`integer`]: which byte strings are numbers, and which are not;
//! - [`extended`]: numbers with a fraction, as INCRBYFLOAT adds them;
//! - [`glob`]: patterns of KEYS and SCAN;
//! - [`span`]: ranges that may count from the end;
//! - [`bits`]: single bits of a string; [`field`]: integers made of some of them;
//! - [`lcs`]: what two strings have in common.

pub mod bits;
pub mod extended;
pub mod field;
pub mod glob;
pub mod integer;
pub mod lcs;
pub mod span;
