//! What of an eviction that was cut short had moved: staging tells, and the records are made to say
//! so.

use crate::app::App;
use crate::kernel::uffd::Uffd;
use crate::kernel::{Mm, Pagemap};
use crate::space::region::Regions;
use crate::space::{Identity, Intent, Phase, Record, Table};
use annex_pool::Pool;
use annex_shared::ids::SlotIdx;
use annex_shared::page::PAGE_SIZE;
use std::collections::HashSet;
use std::io;

/// What is in staging did not get back.
#[derive(Debug, thiserror::Error)]
pub enum RollbackError {
    #[error("the address space of its pages is not known")]
    NoProcess,
    #[error("a child was forked meanwhile, whose pages have ended with its parent's memory")]
    Ended,
    #[error("its staging area could not be read: {0}")]
    Staging(#[source] io::Error),
}

/// The records of a space, under its lock, and what tells whether they are right.
pub struct SpaceRecords<'a> {
    pub table: &'a mut Table,
    pub regions: &'a mut Regions,
    /// The clock's lap.
    pub lap: u8,
    pub uffd: &'a Uffd,
    pub identity: &'a Identity,
    pub app: &'a App,
}

/// Makes the records of an eviction that was cut short while it moved say what moved. Before any
/// message is read: until then the pages are where the intent says.
pub fn settle_records(records: &mut SpaceRecords<'_>, pool: &Pool) {
    let mm = records.identity.mm();
    match records_as_moved(records.table, records.uffd, mm.as_deref()) {
        Ok(changed) => {
            for (before, after) in changed {
                after.slot().into_iter().for_each(|slot| pool.retain(slot));
                before.slot().into_iter().for_each(|slot| pool.release(slot));
            }
        }
        Err(error) => {
            poison_unsettled(records.table).into_iter().for_each(|slot| pool.release(slot));
            records.app.stop(&format!("an eviction was cut short, and {error}"));
        }
    }
}

/// Which pages of an eviction have moved is not known: none may be taken for what its record says.
/// The slots that those named.
pub fn poison_unsettled(table: &mut Table) -> Vec<SlotIdx> {
    let victims = table.intent().map(|intent| intent.victims).unwrap_or_default();
    let pages = victims.into_iter().filter(|victim| !victim.settled).map(|victim| victim.page);
    pages.filter_map(|page| table.set(page, Record::Poisoned).ok()?.slot()).collect()
}

/// The records that had to change, before and after. The moves must be over.
pub fn records_as_moved(
    table: &mut Table,
    uffd: &Uffd,
    mm: Option<&Mm>,
) -> Result<Vec<(Record, Record)>, RollbackError> {
    let Some(Intent { phase: Phase::Moving, victims }) = table.intent() else { return Ok(Vec::new()) };
    let staged = match staged(table, uffd, mm) {
        // Its pages are nobody's any more, unless a child was forked meanwhile: that must not take
        // them for zeros.
        Err(RollbackError::Ended) => victims.iter().map(|v| v.staged_at).collect(),
        staged => staged?,
    };
    let mut changed = Vec::new();
    for victim in victims.into_iter().filter(|victim| !victim.settled) {
        let now = table.record(victim.page);
        let named = now == Record::Evicted(victim.slot);
        let after = match staged.contains(&victim.staged_at) {
            true if !named => Record::Evicted(victim.slot),
            // It had vanished before it could be moved: zeros, as ever.
            false if named => Record::None,
            _ => continue,
        };
        let before = table.set(victim.page, after).unwrap_or(Record::None);
        changed.push((before, after));
    }
    table.intent_moved();
    Ok(changed)
}

/// Which places of staging have a page, in pages.
pub fn staged(table: &Table, uffd: &Uffd, mm: Option<&Mm>) -> Result<HashSet<u64>, RollbackError> {
    let (mm, stub) = match mm.zip(table.stub()) {
        None if uffd.is_dead() => return Err(RollbackError::Ended),
        found => found.ok_or(RollbackError::NoProcess)?,
    };
    let staged = mm.pagemap().and_then(|mut pagemap| pages_present(&mut pagemap, stub.staging));
    // Asked after the look: an address space that has ended looks as if nothing were there.
    if uffd.is_dead() {
        return Err(RollbackError::Ended);
    }
    staged.map_err(RollbackError::Staging)
}

/// Which places of a staging area (start and bytes) have a page, in pages.
pub fn pages_present(pagemap: &mut Pagemap, (start, len): (u64, u64)) -> io::Result<HashSet<u64>> {
    let mut runs = Vec::new();
    let mut at = start;
    while at < start + len {
        let next = pagemap.in_memory(at, start + len, &mut runs)?;
        if next <= at {
            break;
        }
        at = next;
    }
    let first = start / PAGE_SIZE as u64;
    Ok(runs.iter().flat_map(|run| run.first.0..run.end().0).map(|page| page - first).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::uffd::feature;
    use crate::kernel::uffd::tests::context;
    use crate::page::PageIdx;
    use crate::space::StubTraces;
    use crate::space::Victim;

    /// annexd dies in the middle of a batch: two pages of four had moved. Of those the first was
    /// settled, and then unmapped by the app; nothing was known of the second's.
    #[test]
    fn a_record_that_was_settled_stays_what_became_of_it_since() {
        let mut staging = memmap2::MmapMut::map_anon(4 * PAGE_SIZE).unwrap();
        let mut table = Table::new(1, 1).unwrap();
        let pid = std::process::id() as i32;
        let area = (staging.as_ptr().addr() as u64, staging.len() as u64);
        let traces = StubTraces {
            pid,
            pid_there: pid,
            staging: area,
            code_at: 0,
            comm_at: 0,
            staging_map_at: 0,
            fds: Default::default(),
            inode: 0,
            version: 2,
        };
        table.describe(pid, &traces);
        let victim = |n: u64| {
            let slot = SlotIdx(n as u32 + 7);
            Victim { page: PageIdx(100 + n), slot, before: slot, staged_at: n, settled: false }
        };
        table.intend((0..4).map(victim));
        for moved in [0, 1] {
            staging[moved * PAGE_SIZE] = 1;
        }
        table.set(PageIdx(100), Record::Evicted(SlotIdx(7))).unwrap();
        table.intent_settled(0);
        table.set(PageIdx(100), Record::None).unwrap();
        table.set(PageIdx(102), Record::Clean(SlotIdx(90))).unwrap();

        let (uffd, mm) = (context(feature::MOVE), Mm::open(pid).unwrap());
        let changed = records_as_moved(&mut table, &uffd, Some(&mm)).unwrap();
        assert_eq!(changed, [(Record::None, Record::Evicted(SlotIdx(8)))]);
        let records: Vec<_> = (100..104).map(|page| table.record(PageIdx(page))).collect();
        let moved = Record::Evicted(SlotIdx(8));
        assert_eq!(records, [Record::None, moved, Record::Clean(SlotIdx(90)), Record::None]);
        assert_eq!(table.intent().unwrap().phase, Phase::Moved);
    }
}
