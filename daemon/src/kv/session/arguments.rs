//! Arguments of the session's commands, and what a caller is told who got them wrong.

use crate::kv::call::Failure;
use crate::kv::reply::Reply;
use crate::kv::resp::parse_integer;
use crate::kv::store::{DATABASES, Db};
use bytes::Bytes;

pub const SYNTAX: &str = "ERR syntax error";
const NOT_AN_INTEGER: &str = "ERR value is not an integer or out of range";

/// A word, in upper or lower case.
pub fn is(argument: &[u8], word: &str) -> bool {
    argument.eq_ignore_ascii_case(word.as_bytes())
}

pub fn integer(argument: &[u8]) -> Result<i64, Failure> {
    integer_or(argument, NOT_AN_INTEGER)
}

pub fn integer_or(argument: &[u8], otherwise: &'static str) -> Result<i64, Failure> {
    parse_integer(argument).ok_or_else(|| otherwise.into())
}

pub fn text(argument: &[u8]) -> String {
    String::from_utf8_lossy(argument).into_owned()
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

/// The arguments don't fit a sub-command that takes several forms.
pub fn wrong_form(args: &[Bytes]) -> Failure {
    let (parent, sub) = (text(&args[0]).to_uppercase(), text(&args[1]));
    Failure(format!("ERR unknown subcommand or wrong number of arguments for '{sub:.128}'. Try {parent} HELP.").into())
}

/// What a command's HELP answers.
pub fn help(args: &[Bytes], lines: &'static [&'static str]) -> Reply {
    let head = format!("{} <subcommand> [<arg> [value] [opt] ...]. Subcommands are:", text(&args[0]).to_uppercase());
    let lines = lines.iter().chain(&["HELP", "    Prints this help."]).map(|line| Reply::Simple((*line).into()));
    Reply::Array([Reply::Simple(head.into())].into_iter().chain(lines).collect())
}
