//! What the app does to its mappings, followed: FORK, REMAP, REMOVE, UNMAP.
//!
//! Each message is sent by the thread that made the change, after it let go of the address space's lock. So messages of different threads
//! can arrive in another order than their changes happened: one thread unmaps (or moves away from) an address, another's mapping lands there at
//! once, and the second message comes first. mremap itself sends an UNMAP of what it left after its REMAP. Taken at face value, such an UNMAP
//! would throw away the records of the mapping that landed.
//!
//! While any message is unread, every install and every MOVE answers EAGAIN. So it is enough to have it right by the time that one does not: the
//! changes read until then form a [`Window`]. Within it,
//!
//! - what a REMAP lands upon is not dropped but *displaced*: the message that vacates it is still to come, and applies to it first;
//! - a REMAP of what is displaced takes that; any other takes what is there now (it may be MREMAP_DONTUNMAP's, which unmaps nothing);
//! - the UNMAP that follows a REMAP, of what that left, is known and passed over where something has landed since;
//! - any other UNMAP of where a REMAP has landed makes those pages *doubtful*: when the window closes, the kernel is asked whether they are mapped with us;
//! - changes read after a FORK may have happened before it: the child's pages concerned are doubtful too, and the child is asked.
//!
//! While there are doubts, nothing is served, installed or evicted.

use super::space::{Core, Space, SpaceId, Surroundings};
use super::table::{PageIdx, Record, Table, TableFull};
use super::uffd::{Event, Probe, Uffd};
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};

/// Pages from the first up to the second.
type Range = (PageIdx, PageIdx);

fn overlap(a: Range, b: Range) -> Option<Range> {
    let both = (a.0.max(b.0), a.1.min(b.1));
    (both.0 < both.1).then_some(both)
}

/// `a` without `b`.
fn without(a: Range, b: Range) -> impl Iterator<Item = Range> {
    [(a.0, a.1.min(b.0)), (a.0.max(b.1), a.1)].into_iter().filter(|r| r.0 < r.1)
}

/// Records of a mapping that another one has landed upon, until the message that says where it went.
#[derive(Clone)]
struct Displaced {
    at: Range,
    records: Vec<(PageIdx, Record, u8)>,
}

/// Changes that were read since it was last known that none was unread.
#[derive(Default)]
pub struct Window {
    landed: Vec<Range>,
    /// What REMAPs have left: each is followed by an UNMAP of the same range, which says nothing new.
    echoes: Vec<Range>,
    /// Oldest first.
    displaced: Vec<Displaced>,
    doubtful: Vec<Range>,
    children: Vec<Weak<Space>>,
}

impl Window {
    fn is_open(&self) -> bool {
        !(self.landed.is_empty() && self.displaced.is_empty() && self.doubtful.is_empty() && self.children.is_empty())
    }

    /// Takes what is displaced in `range` out: the records found, and the parts of the range in which nothing was displaced.
    fn vacate(&mut self, range: Range) -> (Vec<(PageIdx, Record, u8)>, Vec<Range>) {
        let (mut found, mut rest) = (Vec::new(), vec![range]);
        let mut kept = Vec::new();
        for mut displaced in std::mem::take(&mut self.displaced) {
            let mut left = Vec::new();
            let mut at = vec![displaced.at];
            for part in std::mem::take(&mut rest) {
                match overlap(part, displaced.at) {
                    None => left.push(part),
                    Some(both) => {
                        found.extend(displaced.records.extract_if(.., |(page, ..)| both.0 <= *page && *page < both.1));
                        left.extend(without(part, both));
                        at = at.into_iter().flat_map(|a| without(a, both).collect::<Vec<_>>()).collect();
                    }
                }
            }
            rest = left;
            for range in at {
                let mine = |(page, ..): &mut (PageIdx, Record, u8)| range.0 <= *page && *page < range.1;
                kept.push(Displaced { at: range, records: displaced.records.extract_if(.., mine).collect() });
            }
        }
        self.displaced = kept;
        (found, rest)
    }
}

impl Space {
    /// Applies a change that was read.
    pub(super) fn apply(self: &Arc<Self>, core: &mut Core, change: Event, around: &Surroundings) {
        let pages = |start: u64, end: u64| (PageIdx::of(start), PageIdx::of(end));
        tracing::trace!(space = self.id.0, "{change:x?}");
        match change {
            Event::Fork { uffd } => self.fork(core, uffd, around),
            Event::Unmap { start, end } => self.unmap(core, pages(start, end), around),
            Event::Remap { from, to, len } => self.remap(core, pages(from, from + len), PageIdx::of(to), around),
            Event::Remove { start, end } => {
                let staging = *self.staging.lock();
                if start >= staging.0 && end <= staging.0 + staging.1 {
                    return;
                }
                let (from, to) = pages(start, end);
                core.table.clear(from, to, |slot| around.pool.release(slot));
                if core.set_all(from, to, Record::Gone).is_err() {
                    // What can't be marked must not be evicted; nothing is then.
                    core.frozen = true;
                }
            }
            Event::Fault { .. } => {}
            Event::Unknown(code) => self.app.stop(&format!("the kernel sent an unknown userfaultfd message ({code})")),
        }
    }

    fn unmap(&self, core: &mut Core, range: Range, around: &Surroundings) {
        for child in core.window.children.iter().filter_map(Weak::upgrade) {
            child.core.lock().window.doubtful.push(range);
        }
        let lands_here = core.window.landed.iter().any(|landed| overlap(range, *landed).is_some());
        if let Some(nth) = core.window.echoes.iter().position(|echo| *echo == range) {
            core.window.echoes.remove(nth);
            if lands_here {
                return;
            }
        }
        let (gone, _) = core.window.vacate(range);
        release(gone, around);
        let mut certain = vec![range];
        for landed in core.window.landed.clone() {
            core.window.doubtful.extend(overlap(range, landed));
            certain = certain.into_iter().flat_map(|r| without(r, landed).collect::<Vec<_>>()).collect();
        }
        for (from, to) in certain {
            core.table.clear(from, to, |slot| around.pool.release(slot));
        }
        core.forget(range);
    }

    fn remap(&self, core: &mut Core, source: Range, to: PageIdx, around: &Surroundings) {
        let target = (to, to.plus(source.1.0 - source.0.0));
        for child in core.window.children.iter().filter_map(Weak::upgrade) {
            child.remapped_around_fork(&mut child.core.lock(), source, to, around);
        }
        let leaving = core.leave(source);
        self.settle_target(core, target, around);
        let lands_on = core.take(target);
        if !lands_on.is_empty() {
            core.window.displaced.push(Displaced { at: target, records: lands_on });
        }
        self.place(core, leaving, source.0, to);
        core.window.landed.push(target);
        core.window.echoes.push(source);
        core.forget(source);
        core.forget(target);
    }

    /// Something lands on `target`, so what was there had left: an UNMAP that was unclear about it was meant so.
    fn settle_target(&self, core: &mut Core, target: Range, around: &Surroundings) {
        for doubt in std::mem::take(&mut core.window.doubtful) {
            match overlap(doubt, target) {
                Some(both) => {
                    core.table.clear(both.0, both.1, |slot| around.pool.release(slot));
                    core.window.doubtful.extend(without(doubt, both));
                }
                None => core.window.doubtful.push(doubt),
            }
        }
    }

    fn place(&self, core: &mut Core, records: Vec<(PageIdx, Record, u8)>, from: PageIdx, to: PageIdx) {
        for (page, record, policy) in records {
            let target = to.plus(page.0 - from.0);
            if core.table.set(target, record).is_err() {
                self.app.stop("its page table is full (2 TiB of scattered addresses)");
            }
            core.table.set_policy(target, policy);
        }
    }

    /// A REMAP of the parent was read after the FORK that made this child: it happened before it if the child has the target.
    fn remapped_around_fork(&self, core: &mut Core, source: Range, to: PageIdx, around: &Surroundings) {
        // The child is young: what it changes takes microseconds.
        let probe = (0..10_000).map(|_| self.uffd.is_registered(to.addr())).find(|probe| {
            let known = *probe != Probe::TryAgain;
            if !known {
                std::thread::yield_now();
            }
            known
        });
        let Some(probe) = probe else {
            return self
                .app
                .stop("a forked child's mappings did not come to rest: whether it has a moved mapping is not known");
        };
        if probe != Probe::Registered {
            return;
        }
        let leaving = core.leave(source);
        let target = (to, to.plus(source.1.0 - source.0.0));
        core.table.clear(target.0, target.1, |slot| around.pool.release(slot));
        self.place(core, leaving, source.0, to);
        core.forget(source);
        core.forget(target);
    }

    /// The child has the same pages missing as its parent had at the fork, and the slots are theirs together.
    fn fork(self: &Arc<Self>, core: &mut Core, uffd: RawFd, around: &Surroundings) {
        // SAFETY: the kernel has just put the descriptor into our table; nobody else knows it.
        let uffd = Uffd::adopt(unsafe { OwnedFd::from_raw_fd(uffd) });
        let id = SpaceId(around.ids.fetch_add(1, Relaxed));
        let mut table = match Table::new(self.app.id) {
            Ok(table) => table,
            Err(e) => return self.app.stop(&format!("failed to make a page table for a forked child: {e}")),
        };
        let (start, end) = Table::everything();
        let mut full = false;
        core.table.walk(start, end, |page, record| {
            let Some(inherited) = inherit(record, around) else { return };
            full |= table.set(page, inherited).is_err();
            table.set_policy(page, core.table.policy(page));
        });
        if full {
            return self.app.stop("the page table of a forked child is full");
        }
        let child = Arc::new(Space::new(id, self.app.clone(), uffd, table));
        {
            let mut childs = child.core.lock();
            childs.regions = core.regions.clone();
            childs.pins = core.pins.clone();
            childs.window.doubtful = core.window.doubtful.clone();
            childs.window.displaced = core.window.displaced.clone();
            for displaced in &mut childs.window.displaced {
                displaced.records.retain_mut(|(_, record, _)| match inherit(*record, around) {
                    Some(inherited) => {
                        *record = inherited;
                        true
                    }
                    None => false,
                });
            }
        }
        core.window.children.push(Arc::downgrade(&child));
        (around.adopt)(child);
    }

    /// Closes the window if no change is unread any more, and settles its doubts. False: there are doubts, and nothing may be
    /// served, installed or evicted yet.
    pub(super) fn settle_changes(&self, core: &mut Core, around: &Surroundings) -> bool {
        if !core.window.is_open() {
            return true;
        }
        // An address that nobody maps: what counts is that the answer is not EAGAIN.
        match self.uffd.is_registered(1 << 16) {
            Probe::TryAgain => return core.window.doubtful.is_empty(),
            Probe::Dead => {
                self.set_dead();
                return false;
            }
            Probe::Registered | Probe::NotRegistered => {}
        }
        let window = std::mem::take(&mut core.window);
        release(window.displaced.into_iter().flat_map(|d| d.records).collect(), around);
        for (nth, range) in window.doubtful.iter().enumerate() {
            let mut pages = Vec::new();
            core.table.walk(range.0, range.1, |page, _| pages.push(page));
            for page in pages {
                match self.uffd.is_registered(page.addr()) {
                    Probe::Registered => {}
                    Probe::NotRegistered => core.table.clear(page, page.plus(1), |slot| around.pool.release(slot)),
                    Probe::TryAgain => {
                        core.window.doubtful = window.doubtful[nth..].to_vec();
                        return false;
                    }
                    Probe::Dead => {
                        self.set_dead();
                        return false;
                    }
                }
            }
        }
        true
    }
}

/// What a fork's child has of a record of its parent, with a reference of its own.
fn inherit(record: Record, around: &Surroundings) -> Option<Record> {
    match record {
        Record::Evicted(slot) => {
            around.pool.retain(slot);
            Some(record)
        }
        // The child's page is resident and shared; whose copy it has is not worth following.
        Record::Clean(_) => None,
        other => Some(other),
    }
}

fn release(records: Vec<(PageIdx, Record, u8)>, around: &Surroundings) {
    records.iter().filter_map(|(_, record, _)| record.slot()).for_each(|slot| around.pool.release(slot));
}

impl Core {
    /// Takes the records of a range out of the table, with their references.
    fn take(&mut self, range: Range) -> Vec<(PageIdx, Record, u8)> {
        let mut taken = Vec::new();
        self.table.walk(range.0, range.1, |page, record| taken.push((page, record, self.table.policy(page))));
        for (page, ..) in &taken {
            let _ = self.table.set(*page, Record::None);
        }
        taken
    }

    /// Takes what leaves a range: what is displaced there, else what the table has.
    fn leave(&mut self, range: Range) -> Vec<(PageIdx, Record, u8)> {
        let (mut leaving, rest) = self.window.vacate(range);
        rest.into_iter().for_each(|part| leaving.extend(self.take(part)));
        leaving
    }

    /// The range is not what it was: nothing is known of it but its records.
    fn forget(&mut self, (from, to): Range) {
        self.regions.cut(from.addr(), to.addr());
        let pinned: Vec<PageIdx> = self.pins.range(from..to).copied().collect();
        for page in pinned {
            self.pins.remove(&page);
        }
    }

    fn set_all(&mut self, from: PageIdx, to: PageIdx, record: Record) -> Result<(), TableFull> {
        for page in (from.0..to.0).map(PageIdx) {
            self.table.set(page, record)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use annex_shared::ids::SlotIdx;

    fn range(from: u64, to: u64) -> Range {
        (PageIdx(from), PageIdx(to))
    }

    #[test]
    fn what_was_displaced_leaves_once_and_by_parts() {
        let record = |page| (PageIdx(page), Record::Evicted(SlotIdx(page as u32)), 0);
        let mut window = Window::default();
        window.displaced.push(Displaced { at: range(10, 20), records: vec![record(11), record(15), record(19)] });
        let (found, rest) = window.vacate(range(5, 16));
        assert_eq!(found, [record(11), record(15)]);
        assert_eq!(rest, [range(5, 10)], "only where nothing was displaced does the message mean what is there now");
        let (found, rest) = window.vacate(range(10, 30));
        assert_eq!(found, [record(19)]);
        assert_eq!(rest, [range(10, 16), range(20, 30)]);
        assert_eq!(window.vacate(range(10, 20)).1, [range(10, 20)]);
    }
}
