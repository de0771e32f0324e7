//! Going through keys. The index knows hashes only, so each key's record is read.

use super::db::Db;
use super::engine::Engine;
use super::error::StoreError;
use super::fetch::{Missed, Reader};
use super::hash::KeyHash;
use super::index::{Entry, at};
use super::record::RecordError;
use crate::turn;
use bytes::Bytes;
use futures::future::try_join_all;
use std::rc::Rc;

/// Records read together.
const TOGETHER: usize = 64;

/// See the module's header.
pub struct Scan<'a>(pub &'a Rc<Engine>);

impl Scan<'_> {
    /// About `count` keys from a cursor on, and the next cursor (0: that was all). A key that is
    /// there all the while is returned at least once.
    pub async fn scan(&self, db: Db, cursor: u64, count: usize) -> Result<(u64, Vec<Bytes>), StoreError> {
        self.0.is_loaded()?;
        let mut found = Vec::new();
        let next =
            self.0.keys.indexes.borrow()[at(self.0.records().table.database(db))].scan(cursor, count, &mut found);
        let mut keys = Vec::with_capacity(found.len());
        for entries in found.chunks(TOGETHER) {
            let names = try_join_all(entries.iter().map(|entry| self.name(db, entry.hash()))).await?;
            keys.extend(names.into_iter().flatten());
        }
        Ok((next, keys))
    }

    /// Any key that is not expired; `None` if the database has none.
    pub async fn random_key(&self, db: Db) -> Result<Option<Bytes>, StoreError> {
        self.0.is_loaded()?;
        loop {
            let random = self.0.keys.random();
            let any =
                self.0.keys.indexes.borrow()[at(self.0.records().table.database(db))].any(random).map(Entry::hash);
            let Some(hash) = any else { return Ok(None) };
            if let Some(key) = self.name(db, hash).await? {
                return Ok(Some(key));
            }
        }
    }

    /// The key with this hash, from its record.
    async fn name(&self, db: Db, hash: KeyHash) -> Result<Option<Bytes>, StoreError> {
        turn::pause().await;
        loop {
            let Some(entry) = self.0.keys.find(db, hash) else { return Ok(None) };
            match Reader(self.0).record(entry.addr(), entry.units(), None).await {
                Ok((header, key, _)) if header.hash == hash => return Ok(Some(key)),
                _ if self.0.keys.find(db, hash).is_none_or(|now| now.addr() != entry.addr()) => {}
                Ok(_) => return Err(StoreError::Unreadable(RecordError::Foreign.to_string())),
                Err(Missed::Removed) => return Err(StoreError::Unreadable("its log page is gone".into())),
                Err(Missed::Io(error)) => return Err(StoreError::Unreadable(error.to_string())),
                Err(Missed::Bad(error)) => return Err(StoreError::Unreadable(error.to_string())),
            }
        }
    }
}
