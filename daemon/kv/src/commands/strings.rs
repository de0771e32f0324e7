//! Whole strings and parts of them.

use super::super::blocking;
use super::super::call::{Call, Failure, Outcome};
use super::super::reply::Reply;
use super::super::spec::{Dispatch, Spec};
use super::super::store::{Db, Encoding, Store, Value};
use super::super::text::span;
use super::super::turn;
use super::arguments::{TOO_LONG, integer, lower};
use super::describe::*;
use super::together::{read_each, write_all};
use bytes::Bytes;
use futures::future::LocalBoxFuture;
use std::collections::HashSet;

pub const GET: Spec = command("get", 2, FAST_READ, ONE_KEY, get).dispatched(Dispatch::AtOnce(get_now)).about(
    "string",
    "1.0.0",
    "O(1)",
    "Get the value of a key",
);
pub const GETDEL: Spec = command("getdel", 2, FAST_WRITE, ONE_KEY, getdel).about(
    "string",
    "6.2.0",
    "O(1)",
    "Get the value of a key and delete the key",
);
pub const STRLEN: Spec = command("strlen", 2, FAST_READ, ONE_KEY, strlen).about(
    "string",
    "2.2.0",
    "O(1)",
    "Get the length of the value stored in a key",
);
pub const APPEND: Spec = command("append", 3, FAST_GROWING_WRITE, ONE_KEY, append).about(
    "string",
    "2.0.0",
    "O(1). The amortized time complexity is O(1) assuming the appended value is small and the already present value is \
     of any size, since the dynamic string library used by Redis will double the free space available on every \
     reallocation.",
    "Append a value to a key",
);
pub const SETRANGE: Spec = command("setrange", 4, GROWING_WRITE, ONE_KEY, setrange).about(
    "string",
    "2.2.0",
    "O(1), not counting the time taken to copy the new string in place. Usually, this string is very small so the \
     amortized complexity is O(1). Otherwise, complexity is O(M) with M being the length of the value argument.",
    "Overwrite part of a string at key starting at the specified offset",
);
pub const GETRANGE: Spec = command("getrange", 4, READ, ONE_KEY, getrange).about(
    "string",
    "2.4.0",
    RANGE_COMPLEXITY,
    "Get a substring of the string stored at a key",
);
pub const SUBSTR: Spec = command("substr", 4, READ, ONE_KEY, getrange).about(
    "string",
    "1.0.0",
    RANGE_COMPLEXITY,
    "Get a substring of the string stored at a key",
);
const RANGE_COMPLEXITY: &str = "O(N) where N is the length of the returned string. The complexity is ultimately \
                                determined by the returned length, but because creating a substring from an existing \
                                string is very cheap, it can be considered O(1) for small strings.";
pub const MGET: Spec = command("mget", -2, FAST_READ, ALL_KEYS, mget).about(
    "string",
    "1.0.0",
    "O(N) where N is the number of keys to retrieve.",
    "Get the values of all the given keys",
);
pub const MSET: Spec = command("mset", -3, GROWING_WRITE, KEYS_AND_VALUES, mset).about(
    "string",
    "1.0.1",
    "O(N) where N is the number of keys to set.",
    "Set multiple keys to multiple values",
);
pub const MSETNX: Spec = command("msetnx", -3, GROWING_WRITE, KEYS_AND_VALUES, msetnx).about(
    "string",
    "1.0.1",
    "O(N) where N is the number of keys to set.",
    "Set multiple keys to multiple values, only if none of the keys exist",
);

fn get(call: Call<'_>) -> LocalBoxFuture<'_, Outcome> {
    Box::pin(async move { Ok(answer(call.store.read(call.db, &call.args[1]).await?)) })
}

fn get_now(store: &Store, db: Db, args: &[Bytes]) -> Option<Reply> {
    store.read_now(db, &args[1]).map(answer)
}

/// A value, or that there is none.
pub fn answer(value: Option<Value>) -> Reply {
    value.map_or(Reply::Null, |value| Reply::Bulk(value.bytes))
}

fn getdel(call: Call<'_>) -> LocalBoxFuture<'_, Outcome> {
    Box::pin(async move {
        let Some(value) = call.store.read(call.db, &call.args[1]).await? else { return Ok(Reply::Null) };
        call.store.remove(call.db, &call.args[1]);
        Ok(Reply::Bulk(value.bytes))
    })
}

fn strlen(call: Call<'_>) -> LocalBoxFuture<'_, Outcome> {
    Box::pin(
        async move { Ok(Reply::Integer(call.store.length(call.db, &call.args[1]).map_or(0, |length| length as i64))) },
    )
}

fn append(call: Call<'_>) -> LocalBoxFuture<'_, Outcome> {
    Box::pin(async move {
        let (key, more) = (&call.args[1], &call.args[2]);
        let value = match call.store.read(call.db, key).await? {
            None => Value { bytes: more.clone(), expires: None, encoding: Encoding::Plain },
            Some(old) => {
                let (at, more) = (old.bytes.len(), more.clone());
                let end = within_limit(&call, at as u64, more.len() as u64)? as usize;
                let append = move |bytes: &mut [u8]| bytes[at..].copy_from_slice(&more);
                let (bytes, ()) = blocking::changed(old.bytes, end, append).await?;
                Value { bytes, expires: old.expires, encoding: Encoding::Raw }
            }
        };
        let len = value.bytes.len() as i64;
        call.store.write_as(call.db, key, value).await?;
        Ok(Reply::Integer(len))
    })
}

fn setrange(call: Call<'_>) -> LocalBoxFuture<'_, Outcome> {
    Box::pin(async move {
        let (key, patch) = (&call.args[1], &call.args[3]);
        let Ok(offset) = u64::try_from(integer(&call.args[2])?) else {
            return Err("ERR offset is out of range".into());
        };
        if patch.is_empty() {
            return Ok(Reply::Integer(call.store.length(call.db, key).map_or(0, |length| length as i64)));
        }
        let old = call.store.read(call.db, key).await?;
        let end = within_limit(&call, offset, patch.len() as u64)? as usize;
        let (bytes, expires) = old.map_or((Bytes::new(), None), |old| (old.bytes, old.expires));
        let patch = patch.clone();
        let overwrite = move |bytes: &mut [u8]| bytes[offset as usize..end].copy_from_slice(&patch);
        let (bytes, ()) = blocking::changed(bytes, end, overwrite).await?;
        let len = bytes.len() as i64;
        call.store.write_as(call.db, key, Value { bytes, expires, encoding: Encoding::Raw }).await?;
        Ok(Reply::Integer(len))
    })
}

/// The sum, if a string may be as long.
fn within_limit(call: &Call<'_>, len: u64, more: u64) -> Result<u64, Failure> {
    len.checked_add(more).filter(|total| *total <= call.longest).ok_or_else(|| TOO_LONG.into())
}

fn getrange(call: Call<'_>) -> LocalBoxFuture<'_, Outcome> {
    Box::pin(async move {
        let (start, end) = (integer(&call.args[2])?, integer(&call.args[3])?);
        let nothing = Ok(Reply::Bulk(Bytes::new()));
        if span::is_reversed(start, end) {
            return nothing;
        }
        let wanted = |len| span::within(start, end, len).map_or(0..0, |(first, last)| first..last + 1);
        let part = call.store.read_part(call.db, &call.args[1], wanted).await?;
        part.map_or(nothing, |part| Ok(Reply::Bulk(part)))
    })
}

fn mget(call: Call<'_>) -> LocalBoxFuture<'_, Outcome> {
    Box::pin(async move {
        let keys = &call.args[1..];
        let mut values = Vec::with_capacity(keys.len());
        let take = |value: Option<Value>| values.push(answer(value));
        read_each(call.store, call.db, keys, take).await?;
        Ok(Reply::Array(values))
    })
}

fn mset(call: Call<'_>) -> LocalBoxFuture<'_, Outcome> {
    Box::pin(async move {
        write_all(call.store, call.db, &pairs(call.args).await?).await?;
        Ok(Reply::OK)
    })
}

fn msetnx(call: Call<'_>) -> LocalBoxFuture<'_, Outcome> {
    Box::pin(async move {
        let pairs = pairs(call.args).await?;
        for (key, _) in &pairs {
            if call.store.known(call.db, key).is_some() {
                return Ok(Reply::Integer(0));
            }
            turn::pause().await;
        }
        write_all(call.store, call.db, &pairs).await?;
        Ok(Reply::Integer(1))
    })
}

/// Keys and their values. Of a key that is named twice the last value counts: since all are written
/// at the same time, the others are left out.
async fn pairs(arguments: &[Bytes]) -> Result<Vec<(&Bytes, &Bytes)>, Failure> {
    let (pairs, []) = arguments[1..].as_chunks::<2>() else {
        return Err(Failure(format!("ERR wrong number of arguments for '{}' command", lower(&arguments[0])).into()));
    };
    let mut seen = HashSet::with_capacity(pairs.len());
    let mut wanted = Vec::with_capacity(pairs.len());
    for [key, value] in pairs.iter().rev() {
        if seen.insert(key) {
            wanted.push((key, value));
        }
        turn::pause().await;
    }
    Ok(wanted)
}
