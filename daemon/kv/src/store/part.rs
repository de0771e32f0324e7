//! Some bytes of a large value, without the rest of it.
//!
//! The record's own checksum is over all of it, so what vouches for a part is the pool's: of every
//! log page that is read the pool knows what was written. That these log pages are the record's is
//! told by its first one, which is read too: header, tag and key are there.

use super::db::Db;
use super::error::StoreError;
use super::fetch::Reader;
use super::hash::KeyHash;
use super::index::Entry;
use super::log_pages::LogPageIdx;
use super::record::{HEADER, Header, UNIT};
use annex_shared::page::PAGE_SIZE;
use bytes::Bytes;
use std::ops::Range;

/// Below so many bytes a record is read whole.
const LARGE: u32 = 64 << 10;

impl Reader<'_> {
    /// Reads the bytes of a value that `wanted` names, which is told how many there are. `None`:
    /// there is no such key. Counts as a use.
    pub async fn read_part(
        &self,
        db: Db,
        key: &[u8],
        wanted: impl Fn(u64) -> Range<u64>,
    ) -> Result<Option<Bytes>, StoreError> {
        if !self.0.is_loading()
            && let Some(part) = self.part(db, key, &wanted).await
        {
            self.0.keys.use_key(self.0.records().table.database(db), self.0.keys.hash(key));
            self.0.keys.count_answer(true);
            return Ok(Some(part));
        }
        let whole = self.read(db, key).await?.map(|value| value.bytes);
        Ok(whole.map(|bytes| {
            let wanted = wanted(bytes.len() as u64);
            bytes.slice(wanted.start as usize..wanted.end as usize)
        }))
    }

    /// `None`: there is nothing to be gained, or the whole record has to tell what is wrong.
    async fn part(&self, db: Db, key: &[u8], wanted: &impl Fn(u64) -> Range<u64>) -> Option<Bytes> {
        let hash = self.0.keys.hash(key);
        let entry = self.0.keys.find(db, hash).filter(|entry| entry.bytes() >= LARGE)?;
        let (addr, wanted) = (entry.addr(), wanted(entry.value_bytes(key)));
        // From the beginning of the record's first log page.
        let value_at = usize::from(addr.unit) * UNIT + HEADER + key.len();
        let bytes = value_at + wanted.start as usize..value_at + wanted.end as usize;
        let is_near = self.0.records().cache.borrow().find(addr, key).is_some();
        if is_near || value_at > PAGE_SIZE || bytes.len() as u64 > u64::from(entry.bytes() / 2) {
            return None;
        }
        let log_pages = (bytes.start / PAGE_SIZE).max(1)..bytes.end.div_ceil(PAGE_SIZE).max(1);
        let wanted = std::iter::once(0).chain(log_pages.clone()).map(|nth| LogPageIdx(addr.log_page.0 + nth as u32));
        let read = self.log_pages(wanted).await.ok()?;
        let is_it = is_of(&read[..PAGE_SIZE], &entry, hash, key);
        if !is_it || self.0.keys.find(db, hash).is_none_or(|entry| entry.addr() != addr) {
            return None;
        }
        // What was left out between the first log page and the others.
        let gap = (log_pages.start - 1) * PAGE_SIZE;
        let cut = |at: usize| if at < PAGE_SIZE { at } else { at - gap };
        let part = read.slice(cut(bytes.start)..cut(bytes.start) + bytes.len());
        // A small part is not to keep whole log pages in memory.
        Some(if part.len() < PAGE_SIZE { Bytes::copy_from_slice(&part) } else { part })
    }
}

/// Whether a log page is the first one of a key's record.
pub fn is_of(log_page: &[u8], entry: &Entry, hash: KeyHash, key: &[u8]) -> bool {
    let Ok(header) = Header::decode(entry.addr().within(log_page)) else { return false };
    let key_at = usize::from(entry.addr().unit) * UNIT + HEADER;
    header.hash == hash
        && header.bytes() == entry.bytes()
        && header.key_len as usize == key.len()
        && log_page.get(key_at..key_at + key.len()) == Some(key)
        && entry.tag().is_none_or(|tag| tag == header.tag())
}
