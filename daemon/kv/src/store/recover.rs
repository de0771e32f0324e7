//! Taking over what the annexd before left: the index is made anew from the records. Each log page
//! in which live records begin is read, and each header says whose record it is. Of two records of
//! a key the higher version counts; what has expired or was cleared is gone.

use super::clock::now;
use super::db::{DATABASES, Db};
use super::engine::Engine;
use super::fetch::Reader;
use super::index::{Entry, at};
use super::log_pages::{LogPageIdx, RecordAddr};
use super::record::Header;
use annex_host::repeated;
use annex_pool::SlotRun;
use annex_shared::ids::SlotIdx;
use annex_shared::page::PAGE_SIZE;
use futures::StreamExt;
use std::rc::Rc;

/// READs under way together.
const TOGETHER: usize = 16;

/// See the module's header.
pub struct Recovery<'a>(pub &'a Rc<Engine>);

impl Recovery<'_> {
    /// Makes the index anew. Until it is, requests are told to wait.
    pub async fn load(&self) {
        let log_pages: Vec<(LogPageIdx, SlotIdx)> = self.0.records().table.log_pages().collect();
        {
            let mut space = self.0.records().space.borrow_mut();
            log_pages.iter().for_each(|(log_page, _)| space.stored(*log_page));
        }
        let with_records: Vec<(LogPageIdx, SlotIdx)> =
            log_pages.iter().copied().filter(|(log_page, _)| self.0.records().table.starts(*log_page) != 0).collect();
        let slots: Vec<SlotIdx> = with_records.iter().map(|(_, slot)| *slot).collect();
        let total = slots.len().max(1) as u64;
        let mut done = 0;
        let mut found = Found::default();
        let reads = Reader(self.0).runs(&slots).into_iter().map(|(nth, run)| {
            let log_pages = &with_records[nth..nth + run.count as usize];
            async move { (log_pages, self.headers(log_pages, run).await) }
        });
        let mut reads = futures::stream::iter(reads).buffer_unordered(TOGETHER);
        while let Some((log_pages, headers)) = reads.next().await {
            headers.into_iter().for_each(|(addr, header)| self.take_in(addr, header, &mut found));
            done += log_pages.len() as u64;
            self.0.keys.count(|s| s.loaded = done * 1000 / total);
        }
        drop(reads);
        for (addr, header) in std::mem::take(&mut found.doubles) {
            self.take_in_double(addr, &header).await;
        }
        for db in (0..DATABASES).map(Db) {
            found.last = found.last.max(self.0.records().table.mark(db));
        }
        self.0.keys.set_version(found.last);
        self.0.records().space.borrow_mut().adopted();
        log_pages.into_iter().for_each(|(log_page, _)| self.0.records().free_log_page(log_page));
        self.0.loading.set(false);
        self.0.keys.count(|s| s.loaded = 1000);
        let stats = self.0.keys.stats();
        if stats.lost > 0 {
            tracing::error!("{} keys are lost: no replica has their records", stats.lost);
        }
        if !slots.is_empty() {
            tracing::info!("took over {} keys in {} log pages", stats.keys, slots.len());
        }
    }

    /// The headers of the live records that begin in some log pages that lie in a row.
    async fn headers(&self, log_pages: &[(LogPageIdx, SlotIdx)], run: SlotRun) -> Vec<(RecordAddr, Header)> {
        let addrs: Vec<_> = log_pages.iter().map(|(log_page, _)| self.0.records().table.addrs(*log_page)).collect();
        let whole = self.0.pool_io.read(run, |bytes| {
            let log_pages = addrs.into_iter().zip(bytes.chunks_exact(PAGE_SIZE));
            log_pages.flat_map(|(addrs, bytes)| self.0.keys.headers_in(addrs, bytes)).collect::<Vec<_>>()
        });
        match whole.await {
            Ok(found) => return found,
            Err(error) if run.count == 1 => {
                let (log_page, _) = log_pages[0];
                repeated!(ERROR, "failed to read records" of "", "failed to read records of the annexd before: {error}");
                let records = self.0.records().table.starts(log_page).count_ones();
                self.0.keys.count(|s| s.lost += u64::from(records));
                return Vec::new();
            }
            Err(_) => {}
        }
        // One by one, so that one log page that can't be read costs no other.
        let mut found = Vec::new();
        for (log_page, slot) in log_pages {
            let run = SlotRun { first: *slot, count: 1 };
            found.extend(Box::pin(self.headers(&[(*log_page, *slot)], run)).await);
        }
        found
    }

    fn take_in(&self, addr: RecordAddr, header: Header, found: &mut Found) {
        found.last = found.last.max(header.version);
        let is_expired = header.expires.is_some_and(|at| at <= now());
        if header.db.0 >= DATABASES || header.version < self.0.records().table.mark(header.db) || is_expired {
            return self.0.records().table.clear_start(addr);
        }
        if self.0.keys.indexes.borrow()[at(header.db)].find(header.hash).is_some() {
            return found.doubles.push((addr, header));
        }
        self.enter(addr, &header);
    }

    /// Of two records of a key the later one counts.
    async fn take_in_double(&self, addr: RecordAddr, header: &Header) {
        let there = self.0.keys.indexes.borrow()[at(header.db)].find(header.hash).map(Entry::addr);
        let other = match there {
            Some(there) => self.header_at(there).await,
            None => None,
        };
        if other.is_some_and(|other| other.version > header.version) {
            return self.0.records().table.clear_start(addr);
        }
        self.enter(addr, header);
    }

    /// The header of the record that begins here.
    async fn header_at(&self, addr: RecordAddr) -> Option<Header> {
        let run = SlotRun { first: self.0.records().table.slot(addr.log_page)?, count: 1 };
        self.0.pool_io.read(run, |log_page| Header::decode(addr.within(log_page))).await.ok()?.ok()
    }

    /// Enters a record that counts, in place of what was known of its key.
    fn enter(&self, addr: RecordAddr, header: &Header) {
        let fresh = self.0.keys.settings().policy.fresh(now());
        let entry = Entry::new(header, addr, fresh);
        self.0.records().space.borrow_mut().adopt(addr, entry.units());
        let old = self.0.keys.indexes.borrow_mut()[at(header.db)].insert(entry);
        if let Some(old) = old {
            self.0.records().drop_record(&old);
        }
    }
}

/// What is remembered of records while they come in.
#[derive(Default)]
struct Found {
    /// The highest version.
    last: u64,
    /// Records of keys that have one already: annexd was killed between the entry of one and the
    /// removal of the other.
    doubles: Vec<(RecordAddr, Header)>,
}
