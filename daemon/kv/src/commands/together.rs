//! Reads and writes of several keys, many of them under way at the same time.
//!
//! All are waited for even if one fails: none may still be under way when the command's locks are
//! given back.

use super::super::store::{Db, Store, StoreError, Value};
use bytes::Bytes;
use futures::stream::{self, Stream, StreamExt};

/// Reads or writes of a command that are under way at a time.
const TOGETHER: usize = 512;

/// The values in the order of their keys.
pub async fn read_all(store: &Store, db: Db, keys: &[Bytes]) -> Result<Vec<Option<Value>>, StoreError> {
    let mut values = Vec::with_capacity(keys.len());
    read_each(store, db, keys, |value| values.push(value)).await?;
    Ok(values)
}

/// Has `take` have the values in the order of their keys.
pub async fn read_each(
    store: &Store,
    db: Db,
    keys: &[Bytes],
    take: impl FnMut(Option<Value>),
) -> Result<(), StoreError> {
    let reads = stream::iter(keys).map(|key| store.read(db, key));
    for_each(reads.buffered(TOGETHER), take).await
}

/// Writes values without an expiry, each to a key of its own. An error leaves some of them written.
pub async fn write_all(store: &Store, db: Db, pairs: &[(&Bytes, &Bytes)]) -> Result<(), StoreError> {
    let writes = stream::iter(pairs).map(|(key, value)| store.write(db, key, (*value).clone(), None));
    for_each(writes.buffer_unordered(TOGETHER), |()| ()).await
}

/// The first error, when all are over.
async fn for_each<T>(
    results: impl Stream<Item = Result<T, StoreError>>,
    mut take: impl FnMut(T),
) -> Result<(), StoreError> {
    let mut outcome = Ok(());
    let mut results = std::pin::pin!(results);
    while let Some(result) = results.next().await {
        match result {
            Ok(taken) => take(taken),
            Err(error) => outcome = outcome.and(Err(error)),
        }
    }
    outcome
}
