//! Reads and writes of several keys, all under way at the same time.
//!
//! All are waited for even if one fails: none may still be under way when the command's locks are given back.

use super::super::store::{Db, Store, StoreError, Value};
use bytes::Bytes;
use futures::future::join_all;

/// The values in the order of their keys.
pub async fn read_all(store: &Store, db: Db, keys: &[Bytes]) -> Result<Vec<Option<Value>>, StoreError> {
    join_all(keys.iter().map(|key| store.read(db, key))).await.into_iter().collect()
}

/// Writes values without an expiry, each to a key of its own. An error leaves some of them written.
pub async fn write_all(store: &Store, db: Db, pairs: &[(&Bytes, &Bytes)]) -> Result<(), StoreError> {
    join_all(pairs.iter().map(|(key, value)| store.write(db, key, (*value).clone(), None))).await.into_iter().collect()
}
