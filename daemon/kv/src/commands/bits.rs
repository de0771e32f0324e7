//! Strings as rows of bits.

use super::super::blocking;
use super::super::call::{Call, Failure, Outcome};
use super::super::reply::Reply;
use super::super::spec::Spec;
use super::super::store::{Db, Encoding, Store, StoreError, Value};
use super::super::text::bits::{self, Operation};
use super::super::text::{integer, span};
use super::arguments::{SYNTAX, integer, is};
use super::describe::*;
use super::object::tells_raw;
use super::together::read_all;
use bytes::Bytes;
use futures::future::LocalBoxFuture;

pub const SETBIT: Spec = command("setbit", 4, GROWING_WRITE, ONE_KEY, setbit).about(
    "bitmap",
    "2.2.0",
    "O(1)",
    "Sets or clears the bit at offset in the string value stored at key",
);
pub const GETBIT: Spec = command("getbit", 3, FAST_READ, ONE_KEY, getbit).about(
    "bitmap",
    "2.2.0",
    "O(1)",
    "Returns the bit value at offset in the string value stored at key",
);
pub const BITCOUNT: Spec =
    command("bitcount", -2, READ, ONE_KEY, bitcount).about("bitmap", "2.6.0", "O(N)", "Count set bits in a string");
pub const BITPOS: Spec = command("bitpos", -3, READ, ONE_KEY, bitpos).about(
    "bitmap",
    "2.8.7",
    "O(N)",
    "Find first bit set or clear in a string",
);
pub const BITOP: Spec = command("bitop", -4, GROWING_WRITE, ALL_BUT_FIRST, bitop).about(
    "bitmap",
    "2.6.0",
    "O(N)",
    "Perform bitwise operations between strings",
);

pub const BAD_OFFSET: &str = "ERR bit offset is not an integer or out of range";
const BAD_BIT: &str = "ERR bit is not an integer or out of range";

/// A bit's offset, times `scale`.
///
/// `longest`: bytes of the longest string.
pub fn offset(argument: &[u8], scale: u64, longest: u64) -> Result<u64, Failure> {
    integer::parse(argument)
        .and_then(|offset| u64::try_from(offset).ok()?.checked_mul(scale))
        .filter(|offset| offset >> 3 < longest)
        .ok_or_else(|| BAD_OFFSET.into())
}

/// Bytes of a string that has this bit.
pub fn with_bit(bit: u64) -> usize {
    (bit >> 3) as usize + 1
}

fn setbit(call: Call<'_>) -> LocalBoxFuture<'_, Outcome> {
    Box::pin(async move {
        let key = &call.args[1];
        let bit = offset(&call.args[2], 1, call.longest)?;
        let set = match integer::parse(&call.args[3]) {
            Some(0) => false,
            Some(1) => true,
            _ => return Err(BAD_BIT.into()),
        };
        let old = call.store.read(call.db, key).await?;
        let mut old = old.unwrap_or_else(nothing);
        let was = bits::is_set(&old.bytes, bit);
        let mut changed = None;
        if old.bytes.len() < with_bit(bit) || was != set {
            let put = move |bytes: &mut [u8]| bits::put(bytes, bit, set);
            changed = Some(blocking::changed(std::mem::take(&mut old.bytes), with_bit(bit), put).await?.0);
        }
        write_bits(call.store, call.db, key, old, changed).await?;
        Ok(Reply::Integer(i64::from(was)))
    })
}

/// What a key that is not there stands for.
pub fn nothing() -> Value {
    Value { bytes: Bytes::new(), expires: None, encoding: Encoding::Plain }
}

/// Writes bits that have changed, or none: Redis keeps the value in another way then all the same.
pub async fn write_bits(
    store: &Store,
    db: Db,
    key: &[u8],
    old: Value,
    changed: Option<Bytes>,
) -> Result<(), StoreError> {
    match changed {
        Some(bytes) => store.write_as(db, key, Value { bytes, expires: old.expires, encoding: Encoding::Raw }).await,
        None if tells_raw(&old) => Ok(()),
        None => store.mark_raw(db, key, old).await,
    }
}

fn getbit(call: Call<'_>) -> LocalBoxFuture<'_, Outcome> {
    Box::pin(async move {
        let bit = offset(&call.args[2], 1, call.longest)?;
        let byte = bit / 8;
        let wanted = |len: u64| byte.min(len)..(byte + 1).min(len);
        let part = call.store.read_part(call.db, &call.args[1], wanted).await?;
        Ok(Reply::Integer(part.map_or(0, |part| i64::from(bits::is_set(&part, bit % 8)))))
    })
}

/// Whether the last argument of a range says that it is in bits.
fn in_bits(unit: Option<&Bytes>) -> Result<bool, Failure> {
    match unit {
        None => Ok(false),
        Some(unit) if is(unit, "BIT") => Ok(true),
        Some(unit) if is(unit, "BYTE") => Ok(false),
        Some(_) => Err(SYNTAX.into()),
    }
}

/// First and last bit of a range in bits or in bytes.
fn bits_within(start: i64, end: i64, in_bits: bool, bytes: usize) -> Option<(u64, u64)> {
    let bytes = bytes as u64;
    if in_bits {
        span::within(start, end, bytes << 3)
    } else {
        span::within(start, end, bytes).map(|(first, last)| (first << 3, last << 3 | 7))
    }
}

fn bitcount(call: Call<'_>) -> LocalBoxFuture<'_, Outcome> {
    Box::pin(async move {
        // Redis looks for the key before it looks at the range.
        if call.store.known(call.db, &call.args[1]).is_none() {
            return Ok(Reply::Integer(0));
        }
        let (start, end, unit) = match &call.args[2..] {
            [] => (0, -1, None),
            [start, end] => (integer(start)?, integer(end)?, None),
            [start, end, unit] => (integer(start)?, integer(end)?, Some(unit)),
            _ => return Err(SYNTAX.into()),
        };
        if span::is_reversed(start, end) {
            return Ok(Reply::Integer(0));
        }
        let in_bits = in_bits(unit)?;
        let Some(value) = call.store.read(call.db, &call.args[1]).await? else { return Ok(Reply::Integer(0)) };
        let within = bits_within(start, end, in_bits, value.bytes.len());
        let Some((first, last)) = within else { return Ok(Reply::Integer(0)) };
        let count = blocking::run((last - first) >> 3, move || bits::count(&value.bytes, first, last)).await?;
        Ok(Reply::Integer(count as i64))
    })
}

fn bitpos(call: Call<'_>) -> LocalBoxFuture<'_, Outcome> {
    Box::pin(async move {
        let set = match integer(&call.args[2])? {
            0 => false,
            1 => true,
            _ => return Err("ERR The bit argument must be 1 or 0.".into()),
        };
        let missing = Ok(Reply::Integer(if set { -1 } else { 0 }));
        // Redis looks for the key before it looks at the range.
        if call.store.known(call.db, &call.args[1]).is_none() {
            return missing;
        }
        let (start, end, unit) = match &call.args[3..] {
            [] => (0, None, None),
            [start] => (integer(start)?, None, None),
            [start, end] => (integer(start)?, Some(end), None),
            [start, end, unit] => (integer(start)?, Some(end), Some(unit)),
            _ => return Err(SYNTAX.into()),
        };
        let in_bits = in_bits(unit)?;
        let to = end.map_or(Ok(-1), |end| integer(end))?;
        let Some(value) = call.store.read(call.db, &call.args[1]).await? else { return missing };
        let Some((first, last)) = bits_within(start, to, in_bits, value.bytes.len()) else {
            return Ok(Reply::Integer(-1));
        };
        let found = blocking::run((last - first) >> 3, move || bits::find(&value.bytes, set, first, last)).await?;
        let found = match found {
            Some(bit) => bit as i64,
            // Zeros follow behind a string, unless the caller said where to stop.
            None if !set && end.is_none() => last as i64 + 1,
            None => -1,
        };
        Ok(Reply::Integer(found))
    })
}

fn bitop(call: Call<'_>) -> LocalBoxFuture<'_, Outcome> {
    Box::pin(async move {
        let (target, sources) = (&call.args[2], &call.args[3..]);
        let operation = match &call.args[1] {
            name if is(name, "AND") => Operation::And,
            name if is(name, "OR") => Operation::Or,
            name if is(name, "XOR") => Operation::Xor,
            name if is(name, "NOT") => Operation::Not,
            _ => return Err(SYNTAX.into()),
        };
        if operation == Operation::Not && sources.len() != 1 {
            return Err("ERR BITOP NOT must be called with a single source key.".into());
        }
        let values = read_all(call.store, call.db, sources).await?;
        let values: Vec<Bytes> = values.into_iter().map(|v| v.map_or(Bytes::new(), |v| v.bytes)).collect();
        let bytes = values.iter().map(|value| value.len() as u64).sum();
        let combine = move || blocking::shared(bits::combine(operation, &values));
        let result = blocking::run(bytes, combine).await?;
        let len = result.len() as i64;
        if result.is_empty() {
            call.store.remove(call.db, target);
        } else {
            let value = Value { bytes: result, expires: None, encoding: Encoding::Raw };
            call.store.write_as(call.db, target, value).await?;
        }
        Ok(Reply::Integer(len))
    })
}
