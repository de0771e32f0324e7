//! Records that are too large for the log: whoever has one writes it to log pages of its own, piece
//! by piece, and it counts when all are written.

use super::clock::UnixMs;
use super::db::Db;
use super::error::StoreError;
use super::index::Entry;
use super::log::{Landing, TRIES};
use super::log_pages::{LogPageIdx, RecordAddr, UNITS, units_of};
use super::record::Header;
use super::records::Records;
use super::write::Writer;
use crate::{blocking, turn};
use annex_pool::{IoError, Part};
use annex_shared::page::PAGE_SIZE;
use bytes::Bytes;
use futures::{StreamExt, TryStreamExt};
use std::time::Duration;

/// Log pages of a piece.
const PIECE: usize = 32;
/// Pieces of one record under way at a time.
const TOGETHER: usize = 32;
/// How long a piece waits for slots.
const PATIENCE: Duration = Duration::from_secs(5);

/// Log pages that are reserved for a record. Dropped before the record counts, they are given back.
struct Reserved<'a> {
    records: &'a Records,
    addr: RecordAddr,
    units: u32,
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        self.records.give_back(self.addr, self.units);
    }
}

impl Writer<'_> {
    pub async fn write_large(
        &self,
        db: Db,
        key: &[u8],
        value: &Bytes,
        expires: Option<UnixMs>,
    ) -> Result<(), StoreError> {
        let hash = self.0.keys.hash(key);
        let access = self.0.keys.access_of_written(db, hash);
        let (of, version) = (self.0.records().table.database(db), self.0.keys.next_version());
        let (whole_key, bytes) = (Bytes::copy_from_slice(key), value.clone());
        let header = move || Header::new(of, version, expires, hash, &whole_key, &bytes);
        let header = blocking::run(value.len() as u64, header).await;
        let header = header.map_err(|_| StoreError::Unwritten(IoError::Lost))?;
        let units = units_of(header.bytes());
        let log_pages = units / UNITS;
        let addr = self.0.records().space.borrow_mut().append_log_pages(log_pages).map_err(|_| StoreError::NoRoom)?;
        let reserved = Reserved { records: self.0.records(), addr, units };
        let head = [&header.encode()[..], key].concat();
        let pieces = (0..log_pages as usize).step_by(PIECE).map(|first| {
            let count = PIECE.min(log_pages as usize - first);
            self.write_piece(LogPageIdx(addr.log_page.0 + first as u32), first, count, &head, value)
        });
        let mut pieces = futures::stream::iter(pieces).buffer_unordered(TOGETHER);
        while pieces.try_next().await?.is_some() {}
        drop(pieces);
        std::mem::forget(reserved);
        let entry = Entry::new(&header, addr, access);
        self.0.keys.apply(header.db, entry, None);
        Ok(())
    }

    /// Writes the record's part that belongs into `count` log pages from the record's `nth` on;
    /// elsewhere, if no replica takes it.
    async fn write_piece(
        &self,
        log_page: LogPageIdx,
        nth: usize,
        count: usize,
        head: &[u8],
        value: &[u8],
    ) -> Result<(), StoreError> {
        let mut tries = 1;
        loop {
            match self.try_piece(log_page, nth, count, head, value).await {
                Err(StoreError::Unwritten(IoError::Lost)) if tries < TRIES => tries += 1,
                outcome => return outcome,
            }
        }
    }

    async fn try_piece(
        &self,
        log_page: LogPageIdx,
        nth: usize,
        count: usize,
        head: &[u8],
        value: &[u8],
    ) -> Result<(), StoreError> {
        turn::pause().await;
        let mut runs = Vec::new();
        let mut got = 0;
        while got < count {
            let more = self.0.records().slot_reserve.take((count - got) as u32, &mut runs) as usize;
            got += more;
            if more == 0 {
                let waited = tokio::time::timeout(PATIENCE, self.0.records().slot_reserve.changed.notified()).await;
                if waited.is_err() || self.0.records().slot_reserve.is_out() {
                    self.0.records().slot_reserve.put_back(runs);
                    return Err(StoreError::NoRoom);
                }
            }
        }
        let log_pages = (log_page.0..).map(LogPageIdx).zip(runs.iter().flat_map(|run| run.slots()));
        let landings: Vec<Landing> = log_pages.map(|(log_page, slot)| Landing { log_page, slot }).collect();
        landings.iter().for_each(|landing| self.0.records().space.borrow_mut().hold(landing.log_page));
        let mut piece = Piece { records: self.0.records(), landings, is_written: false };
        let mut buf = self.0.pool_io.buffer(count).await;
        self.0.pool_io.fill(&mut buf, |bytes| {
            let from = nth * PAGE_SIZE;
            let in_head = head.get(from..).unwrap_or_default();
            let (first, rest) = bytes.split_at_mut(in_head.len().min(bytes.len()));
            first.copy_from_slice(&in_head[..first.len()]);
            let at = (from + first.len()).saturating_sub(head.len());
            let value = &value[at.min(value.len())..];
            let (second, zeros) = rest.split_at_mut(value.len().min(rest.len()));
            second.copy_from_slice(&value[..second.len()]);
            zeros.fill(0);
        });
        self.0.pool_io.write(&Part::in_order(&runs), buf).await.map_err(StoreError::Unwritten)?;
        piece.is_written = true;
        Ok(())
    }
}

/// A piece's slots. Whatever ends its write settles them.
struct Piece<'a> {
    records: &'a Records,
    landings: Vec<Landing>,
    is_written: bool,
}

impl Drop for Piece<'_> {
    fn drop(&mut self) {
        for landing in &self.landings {
            match self.is_written {
                true => self.records.put(landing.log_page, landing.slot),
                // The lane retains what is still under way.
                false => self.records.slot_reserve.release(landing.slot),
            }
            self.records.let_go(landing.log_page);
        }
    }
}
