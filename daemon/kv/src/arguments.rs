//! Arguments as numbers and options, and what a caller is told who got them wrong: what all
//! commands read alike.

use super::call::Failure;
use super::store::{DATABASES, Db};
use super::text::integer;
use bytes::Bytes;

pub const SYNTAX: &str = "ERR syntax error";
pub const NOT_AN_INTEGER: &str = "ERR value is not an integer or out of range";

/// What the heap adds to an argument, at most.
const HEAP: usize = 32;

/// The memory that an argument takes: an empty one, only what it is held by.
pub fn weight(argument: &[u8]) -> usize {
    size_of::<Bytes>() + if argument.is_empty() { 0 } else { argument.len() + HEAP }
}

/// The memory of all arguments of a call, and of what holds them.
pub fn weight_of_all(args: &[Bytes]) -> usize {
    HEAP + args.iter().map(|argument| weight(argument)).sum::<usize>()
}

/// An option, in upper or lower case.
pub fn is(argument: &[u8], word: &str) -> bool {
    argument.eq_ignore_ascii_case(word.as_bytes())
}

/// A client's words as an error repeats them: up to a zero byte as in Redis, and each byte one
/// character, of which [`Reply::Error`](super::reply::Reply::Error) makes that byte again.
pub fn repeated(words: &[u8]) -> String {
    words.iter().take_while(|byte| **byte != 0).map(|byte| char::from(*byte)).collect()
}

pub fn integer(argument: &[u8]) -> Result<i64, Failure> {
    integer_or(argument, NOT_AN_INTEGER)
}

pub fn integer_or(argument: &[u8], otherwise: &'static str) -> Result<i64, Failure> {
    integer::parse(argument).ok_or_else(|| otherwise.into())
}

/// The database with this number, which must be one of C's `int`.
pub fn database(argument: &[u8], otherwise: Option<&'static str>) -> Result<Db, Failure> {
    let out_of_range = "ERR value is out of range, value must between -2147483648 and 2147483647";
    let number = integer_or(argument, otherwise.unwrap_or(NOT_AN_INTEGER))?;
    let number = i32::try_from(number).map_err(|_| otherwise.unwrap_or(out_of_range))?;
    match u8::try_from(number) {
        Ok(number) if number < DATABASES => Ok(Db(number)),
        _ => Err("ERR DB index is out of range".into()),
    }
}
