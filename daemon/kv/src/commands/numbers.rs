//! Values that are numbers.

use super::super::call::{Call, Outcome};
use super::super::reply::Reply;
use super::super::spec::Spec;
use super::super::store::{Encoding, Value};
use super::super::text::extended::Extended;
use super::super::text::integer;
use super::arguments::{NOT_AN_INTEGER, integer};
use super::describe::*;
use bytes::Bytes;
use futures::future::LocalBoxFuture;

pub const INCR: Spec = command("incr", 2, FAST_GROWING_WRITE, ONE_KEY, incr).about(
    "string",
    "1.0.0",
    "O(1)",
    "Increment the integer value of a key by one",
);
pub const DECR: Spec = command("decr", 2, FAST_GROWING_WRITE, ONE_KEY, decr).about(
    "string",
    "1.0.0",
    "O(1)",
    "Decrement the integer value of a key by one",
);
pub const INCRBY: Spec = command("incrby", 3, FAST_GROWING_WRITE, ONE_KEY, incrby).about(
    "string",
    "1.0.0",
    "O(1)",
    "Increment the integer value of a key by the given amount",
);
pub const DECRBY: Spec = command("decrby", 3, FAST_GROWING_WRITE, ONE_KEY, decrby).about(
    "string",
    "1.0.0",
    "O(1)",
    "Decrement the integer value of a key by the given number",
);
pub const INCRBYFLOAT: Spec = command("incrbyfloat", 3, FAST_GROWING_WRITE, ONE_KEY, incrbyfloat).about(
    "string",
    "2.6.0",
    "O(1)",
    "Increment the float value of a key by the given amount",
);

fn incr(call: Call<'_>) -> LocalBoxFuture<'_, Outcome> {
    Box::pin(add(call, 1))
}

fn decr(call: Call<'_>) -> LocalBoxFuture<'_, Outcome> {
    Box::pin(add(call, -1))
}

fn incrby(call: Call<'_>) -> LocalBoxFuture<'_, Outcome> {
    Box::pin(async move {
        let increment = integer(&call.args[2])?;
        add(call, increment).await
    })
}

fn decrby(call: Call<'_>) -> LocalBoxFuture<'_, Outcome> {
    Box::pin(async move {
        let increment = integer(&call.args[2])?.checked_neg().ok_or("ERR decrement would overflow")?;
        add(call, increment).await
    })
}

async fn add(call: Call<'_>, increment: i64) -> Outcome {
    let key = &call.args[1];
    let (number, expires) = match call.store.read(call.db, key).await? {
        None => (0, None),
        Some(old) => (integer::parse(&old.bytes).ok_or(NOT_AN_INTEGER)?, old.expires),
    };
    let number = number.checked_add(increment).ok_or("ERR increment or decrement would overflow")?;
    call.store.write(call.db, key, Bytes::from(number.to_string()), expires).await?;
    Ok(Reply::Integer(number))
}

const NOT_A_FLOAT: &str = "ERR value is not a valid float";
const NO_SUM: &str = "ERR increment would produce NaN or Infinity";

fn incrbyfloat(call: Call<'_>) -> LocalBoxFuture<'_, Outcome> {
    Box::pin(async move {
        let key = &call.args[1];
        let (number, expires) = match call.store.read(call.db, key).await? {
            None => (Extended::ZERO, None),
            Some(old) => (Extended::parse(&old.bytes).ok_or(NOT_A_FLOAT)?, old.expires),
        };
        let increment = Extended::parse(&call.args[2]).ok_or(NOT_A_FLOAT)?;
        let sum = number.plus(increment).filter(|sum| sum.is_finite()).ok_or(NO_SUM)?;
        let text = Bytes::from(sum.to_string());
        let value = Value { bytes: text.clone(), expires, encoding: Encoding::Text };
        call.store.write_as(call.db, key, value).await?;
        Ok(Reply::Bulk(text))
    })
}
