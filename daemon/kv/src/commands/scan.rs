//! KEYS and SCAN: which keys there are.
//!
//! Both go through the index in batches, however many keys are asked for at once. Others have their
//! turn meanwhile.

use super::super::call::{Call, Outcome};
use super::super::reply::Reply;
use super::super::spec::Spec;
use super::super::text::{glob, integer};
use super::super::turn;
use super::arguments::{SYNTAX, integer, is};
use super::describe::*;
use bytes::Bytes;
use futures::future::LocalBoxFuture;

pub const KEYS: Spec = command("keys", 2, READ, NO_KEY, keys).about(
    "generic",
    "1.0.0",
    "O(N) with N being the number of keys in the database, under the assumption that the key names in the database and \
     the given pattern have limited length.",
    "Find all keys matching the given pattern",
);
pub const SCAN: Spec = command("scan", -2, READ, NO_KEY, scan).about(
    "generic",
    "2.8.0",
    "O(1) for every call. O(N) for a complete iteration, including enough command calls for the cursor to return back \
     to 0. N is the number of elements inside the collection.",
    "Incrementally iterate the keys space",
);

/// Keys that are looked at in one go.
const BATCH: usize = 1000;

fn keys(call: Call<'_>) -> LocalBoxFuture<'_, Outcome> {
    Box::pin(async move {
        let pattern = &call.args[1];
        let mut cursor = 0;
        let mut found = Vec::new();
        loop {
            let (next, batch) = call.store.scan(call.db, cursor, BATCH).await?;
            found.extend(batch.into_iter().filter(|key| matches(pattern, key)).map(Reply::Bulk));
            cursor = next;
            if cursor == 0 {
                break;
            }
            turn::pause().await;
        }
        Ok(Reply::Array(found))
    })
}

/// `*` matches everything, even the empty key, which other patterns never do.
fn matches(pattern: &[u8], key: &[u8]) -> bool {
    pattern == b"*" || glob::matches(pattern, key)
}

fn scan(call: Call<'_>) -> LocalBoxFuture<'_, Outcome> {
    Box::pin(async move {
        let mut cursor = integer::parse_cursor(&call.args[1]).ok_or("ERR invalid cursor")?;
        let (mut count, mut pattern, mut kind) = (10, None, None);
        let mut options = call.args[2..].iter();
        while let Some(option) = options.next() {
            let argument = options.next();
            match argument {
                Some(argument) if is(option, "COUNT") => {
                    count = integer(argument)?;
                    if count < 1 {
                        return Err(SYNTAX.into());
                    }
                }
                Some(argument) if is(option, "MATCH") => pattern = Some(argument),
                Some(argument) if is(option, "TYPE") => kind = Some(argument),
                _ => return Err(SYNTAX.into()),
            }
        }
        let mut left = usize::try_from(count).unwrap_or(usize::MAX);
        let mut found = Vec::new();
        loop {
            let (next, batch) = call.store.scan(call.db, cursor, left.min(BATCH)).await?;
            left = left.saturating_sub(batch.len().max(1));
            let wanted = |key: &Bytes| pattern.is_none_or(|pattern| matches(pattern, key));
            found.extend(batch.into_iter().filter(wanted).map(Reply::Bulk));
            cursor = next;
            if cursor == 0 || left == 0 {
                break;
            }
            turn::pause().await;
        }
        // There is only one type: who asks for another gets nothing, but has to go all the way
        // round for it.
        if kind.is_some_and(|kind| !is(kind, "string")) {
            found.clear();
        }
        let cursor = Reply::Bulk(Bytes::from(cursor.to_string()));
        Ok(Reply::Array(vec![cursor, Reply::Array(found)]))
    })
}
