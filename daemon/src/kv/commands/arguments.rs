//! Arguments as numbers and options, and what a caller is told who got them wrong.

use super::super::call::Failure;
use super::super::store::{DATABASES, Db};
use super::super::text::integer;
use bytes::Bytes;

pub const SYNTAX: &str = "ERR syntax error";
pub const NOT_AN_INTEGER: &str = "ERR value is not an integer or out of range";
pub const SAME_OBJECTS: &str = "ERR source and destination objects are the same";
pub const TOO_LONG: &str = "ERR string exceeds maximum allowed size (proto-max-bulk-len)";

/// Bytes of the longest string.
pub const LONGEST: u64 = 512 << 20;

/// An option, in upper or lower case.
pub fn is(argument: &[u8], word: &str) -> bool {
    argument.eq_ignore_ascii_case(word.as_bytes())
}

pub fn integer(argument: &[u8]) -> Result<i64, Failure> {
    integer::parse(argument).ok_or_else(|| NOT_AN_INTEGER.into())
}

/// The database that an argument names.
pub fn database(argument: &[u8]) -> Result<Db, Failure> {
    let index = integer(argument)?;
    if i32::try_from(index).is_err() {
        return Err("ERR value is out of range, value must between -2147483648 and 2147483647".into());
    }
    match u8::try_from(index) {
        Ok(index) if index < DATABASES => Ok(Db(index)),
        _ => Err("ERR DB index is out of range".into()),
    }
}

/// A command that was called by this argument, as error texts name it.
pub fn lower(name: &Bytes) -> String {
    String::from_utf8_lossy(name).to_ascii_lowercase()
}
