//! Keys as such: are they there, away with them, under another name, in another database.

use super::super::call::{Call, Failure, Outcome};
use super::super::reply::Reply;
use super::super::spec::Spec;
use super::super::turn;
use super::arguments::{SAME_OBJECTS, SYNTAX, database, is};
use super::describe::*;
use futures::future::LocalBoxFuture;

pub const DEL: Spec = command("del", -2, WRITE, ALL_KEYS, del).about(
    "generic",
    "1.0.0",
    "O(N) where N is the number of keys that will be removed. When a key to remove holds a value other than a string, \
     the individual complexity for this key is O(M) where M is the number of elements in the list, set, sorted set or \
     hash. Removing a single key that holds a string value is O(1).",
    "Delete a key",
);
pub const UNLINK: Spec = command("unlink", -2, FAST_WRITE, ALL_KEYS, del).about(
    "generic",
    "4.0.0",
    "O(1) for each key removed regardless of its size. Then the command does O(N) work in a different thread in order \
     to reclaim memory, where N is the number of allocations the deleted objects where composed of.",
    "Delete a key asynchronously in another thread. Otherwise it is just as DEL, but non blocking.",
);
pub const EXISTS: Spec = command("exists", -2, FAST_READ, ALL_KEYS, exists).about(
    "generic",
    "1.0.0",
    "O(N) where N is the number of keys to check.",
    "Determine if a key exists",
);
pub const TYPE: Spec =
    command("type", 2, FAST_READ, ONE_KEY, kind).about("generic", "1.0.0", "O(1)", "Determine the type stored at key");
pub const TOUCH: Spec = command("touch", -2, FAST_READ, ALL_KEYS, touch).about(
    "generic",
    "3.2.1",
    "O(N) where N is the number of keys that will be touched.",
    "Alters the last access time of a key(s). Returns the number of existing keys specified.",
);
pub const RANDOMKEY: Spec = command("randomkey", 1, READ, NO_KEY, randomkey).about(
    "generic",
    "1.0.0",
    "O(1)",
    "Return a random key from the keyspace",
);
pub const RENAME: Spec =
    command("rename", 3, WRITE, TWO_KEYS, rename).about("generic", "1.0.0", "O(1)", "Rename a key");
pub const RENAMENX: Spec = command("renamenx", 3, FAST_WRITE, TWO_KEYS, renamenx).about(
    "generic",
    "1.0.0",
    "O(1)",
    "Rename a key, only if the new key does not exist",
);
pub const COPY: Spec = command("copy", -3, GROWING_WRITE, TWO_KEYS, copy).about(
    "generic",
    "6.2.0",
    "O(N) worst case for collections, where N is the number of nested items. O(1) for string values.",
    "Copy a key",
);
pub const MOVE: Spec = command("move", 3, FAST_WRITE, ONE_KEY, move_away).about(
    "generic",
    "1.0.0",
    "O(1)",
    "Move a key to another database",
);

/// The number of the keys after the name for which this holds, one after the other.
fn count<'a>(call: Call<'a>, holds: impl Fn(&Call<'a>, &[u8]) -> bool + 'a) -> LocalBoxFuture<'a, Outcome> {
    Box::pin(async move {
        let mut count = 0;
        for key in &call.args[1..] {
            count += i64::from(holds(&call, key));
            turn::pause().await;
        }
        Ok(Reply::Integer(count))
    })
}

fn del(call: Call<'_>) -> LocalBoxFuture<'_, Outcome> {
    count(call, |call, key| call.store.remove(call.db, key))
}

fn exists(call: Call<'_>) -> LocalBoxFuture<'_, Outcome> {
    count(call, |call, key| call.store.known(call.db, key).is_some())
}

fn touch(call: Call<'_>) -> LocalBoxFuture<'_, Outcome> {
    count(call, |call, key| call.store.touch(call.db, key))
}

fn kind(call: Call<'_>) -> LocalBoxFuture<'_, Outcome> {
    Box::pin(async move {
        let known = call.store.known(call.db, &call.args[1]);
        Ok(Reply::Simple(if known.is_some() { "string" } else { "none" }.into()))
    })
}

fn randomkey(call: Call<'_>) -> LocalBoxFuture<'_, Outcome> {
    Box::pin(async move { Ok(call.store.random_key(call.db).await?.map_or(Reply::Null, Reply::Bulk)) })
}

fn rename(call: Call<'_>) -> LocalBoxFuture<'_, Outcome> {
    Box::pin(async move { rename_to(&call, true).await.map(|_| Reply::OK) })
}

fn renamenx(call: Call<'_>) -> LocalBoxFuture<'_, Outcome> {
    Box::pin(async move { rename_to(&call, false).await.map(|renamed| Reply::Integer(i64::from(renamed))) })
}

/// False: nothing was renamed, since both names are the same or the new one is taken and may not
/// be.
async fn rename_to(call: &Call<'_>, overwrites: bool) -> Result<bool, Failure> {
    let (old, new) = (&call.args[1], &call.args[2]);
    if call.store.known(call.db, old).is_none() {
        return Err(NO_SUCH_KEY.into());
    }
    if old == new || (!overwrites && call.store.known(call.db, new).is_some()) {
        return Ok(false);
    }
    // It may have expired since.
    let value = call.store.read(call.db, old).await?.ok_or(NO_SUCH_KEY)?;
    call.store.write_as(call.db, new, value).await?;
    call.store.remove(call.db, old);
    Ok(true)
}

const NO_SUCH_KEY: &str = "ERR no such key";

fn copy(call: Call<'_>) -> LocalBoxFuture<'_, Outcome> {
    Box::pin(async move {
        let (from, to) = (&call.args[1], &call.args[2]);
        let (mut db, mut replace) = (call.db, false);
        let mut options = call.args[3..].iter();
        while let Some(option) = options.next() {
            if is(option, "REPLACE") {
                replace = true;
            } else if is(option, "DB") {
                db = database(options.next().ok_or(SYNTAX)?, None)?;
            } else {
                return Err(SYNTAX.into());
            }
        }
        if db == call.db && from == to {
            return Err(SAME_OBJECTS.into());
        }
        if call.store.known(call.db, from).is_none() || (!replace && call.store.known(db, to).is_some()) {
            return Ok(Reply::Integer(0));
        }
        let Some(value) = call.store.read(call.db, from).await? else { return Ok(Reply::Integer(0)) };
        call.store.write_as(db, to, value).await?;
        Ok(Reply::Integer(1))
    })
}

fn move_away(call: Call<'_>) -> LocalBoxFuture<'_, Outcome> {
    Box::pin(async move {
        let key = &call.args[1];
        let db = database(&call.args[2], None)?;
        if db == call.db {
            return Err(SAME_OBJECTS.into());
        }
        if call.store.known(call.db, key).is_none() || call.store.known(db, key).is_some() {
            return Ok(Reply::Integer(0));
        }
        let Some(value) = call.store.read(call.db, key).await? else { return Ok(Reply::Integer(0)) };
        call.store.write_as(db, key, value).await?;
        call.store.remove(call.db, key);
        Ok(Reply::Integer(1))
    })
}
