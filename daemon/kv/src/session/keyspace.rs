//! Commands on whole databases: DBSIZE, FLUSHDB, FLUSHALL, SWAPDB.

use super::arguments::{SYNTAX, database, is};
use super::state::OK;
use crate::call::{Call, Failure, Outcome};
use crate::reply::Reply;
use bytes::Bytes;
use futures::future::{LocalBoxFuture, ready};

type Answer<'a> = LocalBoxFuture<'a, Outcome>;

pub fn dbsize(call: Call<'_>) -> Answer<'_> {
    Box::pin(ready(Ok(Reply::Integer(call.store.len(call.db).0 as i64))))
}

pub fn flushdb(call: Call<'_>) -> Answer<'_> {
    Box::pin(ready(when(call.args).and_then(|()| {
        call.store.clear(Some(call.db));
        OK
    })))
}

pub fn flushall(call: Call<'_>) -> Answer<'_> {
    Box::pin(ready(when(call.args).and_then(|()| {
        call.store.clear(None);
        OK
    })))
}

pub fn swapdb(call: Call<'_>) -> Answer<'_> {
    let swap = || {
        let first = database(&call.args[1], Some("ERR invalid first DB index"));
        let second = database(&call.args[2], Some("ERR invalid second DB index"));
        // Which of the two is no number is said before which is out of range.
        let (first, second) = match (first, second) {
            (Err(range), Err(number)) if range.0.contains("range") && !number.0.contains("range") => {
                return Err(number);
            }
            (first, second) => (first?, second?),
        };
        call.store.swap(first, second);
        OK
    };
    Box::pin(ready(swap()))
}

/// SYNC and ASYNC are the same here: keys are gone at once, their memory is given back in the
/// background.
fn when(args: &[Bytes]) -> Result<(), Failure> {
    match &args[1..] {
        [] => Ok(()),
        [mode] if is(mode, "sync") || is(mode, "async") => Ok(()),
        _ => Err(SYNTAX.into()),
    }
}
