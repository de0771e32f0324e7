//! Arguments of the commands on keys, and what a caller is told who got them wrong.

use bytes::Bytes;

pub use super::super::arguments::{NOT_AN_INTEGER, SYNTAX, database, integer, is, repeated};

pub const SAME_OBJECTS: &str = "ERR source and destination objects are the same";
pub const TOO_LONG: &str = "ERR string exceeds maximum allowed size (proto-max-bulk-len)";

/// A command that was called by this argument, as error texts name it.
pub fn lower(name: &Bytes) -> String {
    repeated(name).to_ascii_lowercase()
}
