//! Arguments of the session's commands, and what a caller is told who got them wrong.

use crate::call::Failure;
use crate::reply::Reply;
use bytes::Bytes;

pub use crate::arguments::{SYNTAX, database, integer, integer_or, is, repeated};

pub fn text(argument: &[u8]) -> String {
    String::from_utf8_lossy(argument).into_owned()
}

/// The arguments don't fit a sub-command that takes several forms.
pub fn wrong_form(args: &[Bytes]) -> Failure {
    let (parent, sub) = (text(&args[0]).to_uppercase(), repeated(&args[1]));
    Failure(format!("ERR unknown subcommand or wrong number of arguments for '{sub:.128}'. Try {parent} HELP.").into())
}

/// What a command's HELP answers.
pub fn help(args: &[Bytes], lines: &'static [&'static str]) -> Reply {
    let head = format!("{} <subcommand> [<arg> [value] [opt] ...]. Subcommands are:", text(&args[0]).to_uppercase());
    let lines = lines.iter().chain(&["HELP", "    Prints this help."]).map(|line| Reply::Simple((*line).into()));
    Reply::Array([Reply::Simple(head.into())].into_iter().chain(lines).collect())
}
