//! BITFIELD: a list of operations on integers of any width within one string.
//!
//! All operations are parsed before the first is done, so that a mistake in the last leaves nothing
//! half done; then they work one after the other on one copy of the string, which is written once.

use super::super::blocking;
use super::super::call::{Call, Failure, Outcome};
use super::super::reply::Reply;
use super::super::spec::Spec;
use super::super::text::field::{Kind, Overflow};
use super::arguments::{SYNTAX, integer, is};
use super::bits::{nothing, offset, with_bit, write_bits};
use super::describe::*;
use bytes::Bytes;
use futures::future::LocalBoxFuture;

pub const BITFIELD: Spec = command("bitfield", -2, GROWING_WRITE, ONE_KEY, bitfield).about(
    "bitmap",
    "3.2.0",
    "O(1) for each subcommand specified",
    "Perform arbitrary bitfield integer operations on strings",
);
pub const BITFIELD_RO: Spec = command("bitfield_ro", -2, FAST_READ, ONE_KEY, bitfield_ro).about(
    "bitmap",
    "6.0.0",
    "O(1) for each subcommand specified",
    "Perform arbitrary bitfield integer operations on strings. Read-only variant of BITFIELD",
);

const BAD_KIND: &str =
    "ERR Invalid bitfield type. Use something like i16 u8. Note that u64 is not supported but i64 is.";

enum Action {
    Read,
    Set(i64, Overflow),
    Add(i64, Overflow),
}

struct Operation {
    kind: Kind,
    offset: u64,
    action: Action,
}

impl Operation {
    fn last_bit(&self) -> u64 {
        self.offset + self.kind.bits() - 1
    }

    fn writes(&self) -> bool {
        !matches!(self.action, Action::Read)
    }
}

fn parse(mut arguments: &[Bytes], longest: u64) -> Result<Vec<Operation>, Failure> {
    let mut operations = Vec::new();
    let mut overflow = Overflow::Wrap;
    while let [name, rest @ ..] = arguments {
        arguments = match rest {
            [how, rest @ ..] if is(name, "OVERFLOW") => {
                overflow = parse_overflow(how)?;
                rest
            }
            [kind, at, rest @ ..] if is(name, "GET") => {
                let (kind, offset) = parse_position(kind, at, longest)?;
                operations.push(Operation { kind, offset, action: Action::Read });
                rest
            }
            [kind, at, number, rest @ ..] if is(name, "SET") => {
                let (kind, offset) = parse_position(kind, at, longest)?;
                operations.push(Operation { kind, offset, action: Action::Set(integer(number)?, overflow) });
                rest
            }
            [kind, at, number, rest @ ..] if is(name, "INCRBY") => {
                let (kind, offset) = parse_position(kind, at, longest)?;
                operations.push(Operation { kind, offset, action: Action::Add(integer(number)?, overflow) });
                rest
            }
            _ => return Err(SYNTAX.into()),
        };
    }
    Ok(operations)
}

/// Whether this call of BITFIELD may change the key, for those who ask without calling it. One with
/// a mistake may.
pub fn may_write(call: &[Bytes]) -> bool {
    let mut arguments = call.get(2..).unwrap_or_default();
    while let [name, rest @ ..] = arguments {
        arguments = match rest {
            [_, _, rest @ ..] if is(name, "GET") => rest,
            [_, rest @ ..] if is(name, "OVERFLOW") => rest,
            _ => return true,
        };
    }
    false
}

fn parse_overflow(how: &[u8]) -> Result<Overflow, Failure> {
    match how {
        how if is(how, "WRAP") => Ok(Overflow::Wrap),
        how if is(how, "SAT") => Ok(Overflow::Saturate),
        how if is(how, "FAIL") => Ok(Overflow::Fail),
        _ => Err("ERR Invalid OVERFLOW type specified".into()),
    }
}

/// `#` before an offset: it counts integers of this kind instead of bits.
fn parse_position(kind: &[u8], at: &[u8], longest: u64) -> Result<(Kind, u64), Failure> {
    let kind = Kind::parse(kind).ok_or(BAD_KIND)?;
    let offset = match at {
        [b'#', index @ ..] => offset(index, kind.bits(), longest)?,
        bit => offset(bit, 1, longest)?,
    };
    Ok((kind, offset))
}

fn bitfield_ro(call: Call<'_>) -> LocalBoxFuture<'_, Outcome> {
    Box::pin(async move {
        let operations = parse(&call.args[2..], call.longest)?;
        if operations.iter().any(Operation::writes) {
            return Err("ERR BITFIELD_RO only supports the GET subcommand".into());
        }
        read_only(&call, &operations).await
    })
}

fn bitfield(call: Call<'_>) -> LocalBoxFuture<'_, Outcome> {
    Box::pin(async move {
        let key = &call.args[1];
        let operations = parse(&call.args[2..], call.longest)?;
        let Some(last) = operations.iter().filter(|o| o.writes()).map(Operation::last_bit).max() else {
            return read_only(&call, &operations).await;
        };
        let old = call.store.read(call.db, key).await?;
        let old = old.unwrap_or_else(nothing);
        // Even if all operations fail, the string has grown.
        let mut changed = old.bytes.len() < with_bit(last);
        let apply_all = move |bytes: &mut [u8]| {
            let replies = operations.iter().map(|operation| apply(operation, bytes, &mut changed)).collect();
            (replies, changed)
        };
        let (bytes, (replies, changed)) = blocking::changed(old.bytes.clone(), with_bit(last), apply_all).await?;
        write_bits(call.store, call.db, key, old, changed.then_some(bytes)).await?;
        Ok(Reply::Array(replies))
    })
}

async fn read_only(call: &Call<'_>, operations: &[Operation]) -> Outcome {
    let value = call.store.read(call.db, &call.args[1]).await?;
    let bytes = value.map_or(Bytes::new(), |value| value.bytes);
    Ok(Reply::Array(operations.iter().map(|o| Reply::Integer(o.kind.read(&bytes, o.offset))).collect()))
}

fn apply(operation: &Operation, bytes: &mut [u8], changed: &mut bool) -> Reply {
    let Operation { kind, offset, action } = operation;
    let old = kind.read(bytes, *offset);
    let (fitted, answer_old) = match action {
        Action::Read => return Reply::Integer(old),
        Action::Set(number, overflow) => (kind.fit(kind.meant(*number), *overflow), true),
        Action::Add(number, overflow) => (kind.fit(i128::from(old) + i128::from(*number), *overflow), false),
    };
    let Some(new) = fitted else { return Reply::Null };
    *changed |= new != old;
    kind.write(bytes, *offset, new);
    Reply::Integer(if answer_old { old } else { new })
}
