//! What the app does to its mappings, followed: FORK, REMAP, REMOVE, UNMAP.
//!
//! Each message is sent by the thread that made the change, after it let go of the address space's
//! lock. So messages of different threads can arrive in another order than their changes happened:
//! one thread unmaps (or moves away from) an address, another's mapping lands there at once, and
//! the second message comes first. mremap itself sends an UNMAP of what it left after its REMAP.
//! Taken at face value, such an UNMAP would throw away the records of the mapping that landed.
//!
//! While any message is unread, every install and every MOVE answers EAGAIN. So it is enough to
//! have it right by the time that one does not: the changes read until then form a
//! [`Window`](crate::events::window::Window). Within it,
//!
//! - what a REMAP lands upon is not dropped but *displaced*: the message that vacates it is still
//!   to come, and applies to it first;
//! - a REMAP of what is displaced takes that; any other takes what is there now (it may be
//!   MREMAP_DONTUNMAP's, which unmaps nothing);
//! - the UNMAP that follows a REMAP, of what that left, is known and passed over where something
//!   has landed since;
//! - any other UNMAP of where a REMAP has landed makes those pages
//!   [*ambiguous*](crate::events::ambiguous_unmap): when the window closes, the kernel is asked what lies
//!   there;
//! - changes read after a FORK may have happened before it: until the window closes the child is
//!   [*young*](crate::events::young).
//!
//! While there are doubts, nothing is served, installed or evicted.
//!
//! Each change is one transaction of the table, the window with it, so that a kill in the middle
//! leaves it to be applied again, whole. Slots that it lets go of are released after its end: they
//! may be somebody else's at once.

use crate::events::ambiguous_unmap::{AmbiguousUnmap, Evidence, Origin, Verdict, judge};
use crate::events::fork_exclusions;
use crate::events::window::{Displaced, Past, target_of};
use crate::events::young::Read;
use crate::kernel::process;
use crate::kernel::uffd::{Event, Installed, Probe, Proof, Uffd};
use crate::page::PageIdx;
use crate::page::{Range, overlap, without};
use crate::space::address_space::{Core, Shared, Space, SpaceId};
use crate::space::table::{Record, Table, TableFull};
use annex_host::failpoint::failpoint;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

/// An address that nobody maps.
const NOWHERE: u64 = 1 << 16;
impl Space {
    /// Applies a change that was read, the journal's `nth` message.
    pub(crate) fn change(self: &Arc<Self>, core: &mut Core, nth: usize, change: Event, shared: &Shared) {
        tracing::trace!(space = self.id.0, "{change:x?}");
        core.table.begin();
        core.table.count_change();
        if self.is_young() {
            core.window.own.extend(own(change));
        }
        match change {
            Event::Fork { uffd } => self.fork(core, nth, uffd, shared),
            Event::Unmap { start, end } => self.unmap(core, pages(start, end)),
            Event::Remap { from, to, len } => self.remap(core, pages(from, from + len), PageIdx::of(to)),
            Event::Remove { start, end } => self.remove(core, start, end),
            Event::Fault { .. } => {}
            Event::Unknown(code) => self.app.stop(&format!("the kernel sent an unknown userfaultfd message ({code})")),
        }
        failpoint("change-applied");
        core.commit(nth + 1, shared);
        failpoint("change-committed");
        if core.moves.is_some() {
            failpoint("moves-given-up");
        }
        core.table.forked();
        // Not before: until here a successor would make the child anew, as if nothing had happened
        // to it yet.
        core.born.drain(..).for_each(|child| (shared.watch)(&child));
    }

    fn remove(&self, core: &mut Core, start: u64, end: u64) {
        let staging = *self.staging.lock();
        if start >= staging.0 && end <= staging.0 + staging.1 {
            return;
        }
        core.remove(pages(start, end));
    }

    fn unmap(&self, core: &mut Core, range: Range) {
        let lands_here = core.window.landed.iter().any(|landed| overlap(range, *landed).is_some());
        if let Some(nth) = core.window.echoes.iter().position(|echo| *echo == range) {
            core.window.echoes.remove(nth);
            core.window.remember(Past::Echo(range));
            if lands_here {
                return;
            }
        } else {
            core.window.remember(Past::Unmap(range));
        }
        let (gone, _) = core.window.vacate(range);
        core.let_go(gone);
        let mut certain = vec![range];
        for landed in core.window.landed.clone() {
            core.window.ambiguous.extend(AmbiguousUnmap::of(landed, range));
            certain = certain.into_iter().flat_map(|r| without(r, landed).collect::<Vec<_>>()).collect();
        }
        certain.into_iter().for_each(|range| core.clear(range));
        core.forget(range);
    }

    fn remap(&self, core: &mut Core, source: Range, to: PageIdx) {
        let target = target_of(source, to);
        core.window.remember(Past::Remap(source, to));
        let (leaving, mut carried) = core.leave(source, to);
        Self::settle_target(core, target);
        core.window.ambiguous.append(&mut carried);
        let lands_on = core.take(target);
        if !lands_on.is_empty() {
            core.window.displaced.push(Displaced { at: target, records: lands_on });
        }
        self.place(core, leaving, source.0, to);
        core.window.land(target);
        core.window.echoes.push(source);
        core.forget(source);
        core.forget(target);
    }

    /// Something lands on `target`, so what was there had left: an UNMAP that was unclear about it
    /// was meant so.
    fn settle_target(core: &mut Core, target: Range) {
        for doubt in std::mem::take(&mut core.window.ambiguous) {
            overlap(doubt.range, target).into_iter().for_each(|both| core.clear(both));
            core.window.ambiguous.extend(doubt.landed_upon(target));
        }
    }

    pub(crate) fn place(&self, core: &mut Core, records: Vec<(PageIdx, Record, u8)>, from: PageIdx, to: PageIdx) {
        for (page, record, policy) in records {
            let target = to.plus(page.0 - from.0);
            if core.table.set(target, record).is_err() {
                self.app.stop("its page table is full (2 TiB of scattered addresses)");
            }
            core.table.set_policy(target, policy);
            if core.suspects.remove(&page) {
                core.suspects.insert(target);
                core.note_suspects();
            }
        }
    }

    /// The child has the same pages missing as its parent had at the fork, and the slots are theirs
    /// together.
    fn fork(self: &Arc<Self>, core: &mut Core, nth: usize, uffd: RawFd, shared: &Shared) {
        // SAFETY: the kernel has just put the descriptor into our table; nobody else knows it.
        let uffd = Uffd::adopt(unsafe { OwnedFd::from_raw_fd(uffd) });
        let id = SpaceId(shared.ids.fetch_add(1, Relaxed));
        core.table.forking(id.0, nth);
        let mut table = match Table::new(self.app.id, id.0) {
            Ok(table) => table,
            Err(e) => {
                condemn(core, uffd);
                return self.app.stop(&format!("failed to make a page table for a forked child: {e}"));
            }
        };
        let Some(left_behind) = self.left_behind(core) else { return condemn(core, uffd) };
        let (start, end) = Table::everything();
        let mut full = false;
        core.table.walk(start, end, |page, record| {
            if fork_exclusions::is_in(&left_behind, page) {
                return;
            }
            let Some(inherited) = inherit(record, shared) else { return };
            if table.set(page, inherited).is_err() {
                inherited.slot().into_iter().for_each(|slot| shared.pool.release(slot));
                full = true;
            }
            table.set_policy(page, core.table.policy(page));
        });
        if full {
            table.clear(start, end, |slot| shared.pool.release(slot));
            condemn(core, uffd);
            return self.app.stop("the page table of a forked child is full");
        }
        let child = Arc::new(Space::new(id, self.app.clone(), uffd, table));
        {
            let mut childs = child.core();
            childs.regions = core.regions.clone();
            childs.pins = core.pins.clone();
            childs.suspects = core.suspects.clone();
            childs.suspects.retain(|page| !fork_exclusions::is_in(&left_behind, *page));
            if core.frozen {
                childs.freeze();
            }
            childs.window.ambiguous = core.window.ambiguous.clone();
            childs.window.displaced = core.window.displaced.clone();
            for displaced in &mut childs.window.displaced {
                displaced.records.retain_mut(|(_, record, _)| match inherit(*record, shared) {
                    Some(inherited) => {
                        *record = inherited;
                        true
                    }
                    None => false,
                });
            }
            childs.save_window();
            childs.note_suspects();
        }
        *child.elder.lock() = Some((Arc::downgrade(self), Instant::now()));
        core.window.past.push(Past::Fork(id, Arc::downgrade(&child)));
        shared.registry.insert(child.clone());
        core.born.push(child);
    }

    /// What a child that is forked now does not inherit; `None`: that is not known, and the app has
    /// been stopped. Whoever has nothing evicted is not asked: smaps takes half as long as the fork
    /// itself.
    fn left_behind(&self, core: &Core) -> Option<Vec<Range>> {
        let Some(pid) = self.pid().filter(|_| core.table.evicted() > 0) else { return Some(Vec::new()) };
        // Whom the space is known by may have left it (exec), and its stub may be dead: others that
        // live there have the same mappings.
        let others = || self.mark()?.processes(None).first().map(|(pid, _)| *pid);
        let looked = fork_exclusions::left_behind(|| self.task().or_else(others), || !self.uffd.is_dead());
        if let Err(error) = &looked {
            self.app.stop(&format!(
                "process {pid} has forked, and which of its memory the child is to find wiped is not known: failed to read /proc/{pid}/smaps: {error}; \
                 the kernel needs CONFIG_PROC_PAGE_MONITOR, and annexd the right to trace the program (CAP_SYS_PTRACE)"
            ));
        }
        looked.ok()
    }

    /// Closes the window if no change is unread any more, and settles its doubts. False: there are
    /// doubts, and nothing may be served, installed or evicted yet.
    pub(crate) fn settle_changes(&self, core: &mut Core, shared: &Shared) -> bool {
        if self.is_young() {
            return false;
        }
        if !core.window.is_open() {
            return true;
        }
        // What counts is that the answer is not EAGAIN.
        match self.uffd.is_registered(NOWHERE) {
            Probe::TryAgain => {
                self.release_patient_children(core, shared);
                return core.window.ambiguous.is_empty();
            }
            Probe::Dead => {
                self.set_dead();
                self.release_orphans(core, shared);
                return false;
            }
            Probe::Registered | Probe::NotRegistered => {}
        }
        let window = std::mem::take(&mut core.window);
        self.release_children(&window.past, Read::All, shared);
        core.table.begin();
        core.let_go(window.displaced.into_iter().flat_map(|d| d.records).collect());
        let settled = self.settle_ambiguous_unmaps(core, window.ambiguous);
        let applied = core.table.applied();
        core.commit(applied, shared);
        settled
    }

    /// Asks the kernel what lies at the ambiguous pages. False: it can't say now; what is left
    /// stays ambiguous.
    fn settle_ambiguous_unmaps(&self, core: &mut Core, ambiguous: Vec<AmbiguousUnmap>) -> bool {
        for (nth, doubt) in ambiguous.iter().enumerate() {
            match self.settle_ambiguous_unmap(core, doubt) {
                Probe::TryAgain => {
                    core.window.ambiguous = ambiguous[nth..].to_vec();
                    return false;
                }
                Probe::Dead => {
                    self.set_dead();
                    return false;
                }
                Probe::Registered | Probe::NotRegistered => {}
            }
        }
        true
    }

    fn settle_ambiguous_unmap(&self, core: &mut Core, doubt: &AmbiguousUnmap) -> Probe {
        let (mut pages, mut records) = (Vec::new(), Vec::new());
        core.table.walk(doubt.range.0, doubt.range.1, |page, record| {
            pages.push(page);
            records.push(record);
        });
        let mut mapped = Vec::new();
        for page in &pages {
            match self.uffd.is_registered(page.addr()) {
                Probe::Registered => mapped.push(*page),
                Probe::NotRegistered => core.clear((*page, page.plus(1))),
                other => return other,
            }
        }
        let Some(first) = mapped.first().copied() else { return Probe::NotRegistered };
        let verdict = match self.evidence(doubt) {
            Ok(None) => Verdict::Stays,
            Ok(Some((mappings, any_present))) => {
                judge(doubt, &records, &Evidence { page: first, mappings: &mappings, any_present })
            }
            Err(probe) => return probe,
        };
        match verdict {
            Verdict::Stays => {}
            Verdict::Gone => mapped.iter().for_each(|page| core.clear((*page, page.plus(1)))),
            Verdict::Unknown => self.app.stop(&format!(
                "whether the mapping at {:#x} was unmapped and another one grew over it can't be told",
                first.addr()
            )),
        }
        Probe::Registered
    }

    /// The mappings, and whether a page of the doubt is in memory. `None`: there is no need to
    /// look, or nowhere to.
    fn evidence(&self, doubt: &AmbiguousUnmap) -> Result<Option<(Vec<Range>, bool)>, Probe> {
        if self.mark().is_none() {
            return Ok(None);
        }
        let unseen = || if self.uffd.is_dead() { Probe::Dead } else { Probe::TryAgain };
        let task = self.task().ok_or_else(unseen)?;
        match doubt.origin {
            Origin::Parent => return Ok(None),
            Origin::Below => {}
            Origin::Here(origin) => match self.uffd.is_registered(PageIdx(origin.0.saturating_sub(1)).addr()) {
                // Nothing could have grown from there.
                Probe::NotRegistered => return Ok(None),
                Probe::Registered => {}
                other => return Err(other),
            },
        }
        let mut present = Vec::new();
        let (start, end) = (doubt.range.0.addr(), doubt.range.1.addr());
        let seen = self.pagemap().and_then(|mut pagemap| pagemap.in_memory(start, end, &mut present));
        let mappings = seen.and_then(|_| process::maps(task)).map_err(|_| unseen())?;
        // Of what is not ours nothing follows.
        let mut pages_there = present.iter().flat_map(|run| run.first.0..run.end().0).map(PageIdx);
        let any_present = pages_there.any(|page| self.uffd.is_registered(page.addr()) == Probe::Registered);
        // What was seen holds only if nothing has changed meanwhile.
        match self.uffd.is_registered(NOWHERE) {
            other @ (Probe::TryAgain | Probe::Dead) => Err(other),
            _ => Ok(Some((mappings.iter().map(|m| pages(m.start, m.end)).collect(), any_present))),
        }
    }
}

/// A young child's own change, as far as it concerns what its parent had changed before.
fn own(change: Event) -> Option<Past> {
    match change {
        Event::Unmap { start, end } => Some(Past::Unmap(pages(start, end))),
        Event::Remove { start, end } => Some(Past::Remove(pages(start, end))),
        Event::Remap { from, to, len } => Some(Past::Remap(pages(from, from + len), PageIdx::of(to))),
        Event::Fork { .. } | Event::Fault { .. } | Event::Unknown(_) => None,
    }
}

fn pages(start: u64, end: u64) -> Range {
    (PageIdx::of(start), PageIdx::of(end))
}

/// What a fork's child has of a record of its parent, with a reference of its own.
fn inherit(record: Record, shared: &Shared) -> Option<Record> {
    match record {
        Record::Evicted(slot) => {
            shared.pool.retain(slot);
            Some(record)
        }
        // The child's page is resident and shared; whose copy it has is not worth following.
        Record::Clean(_) => None,
        other => Some(other),
    }
}

/// A child that can't be followed, of an app that is stopped: its process is not known yet, so that
/// it may live on. What is evicted of it is SIGBUS to it from now on; all else it has.
fn condemn(core: &Core, uffd: Uffd) {
    let mut is_sure = true;
    let mut poison = |page: PageIdx| {
        let outcome = (0..1_000).map(|_| uffd.poison(page.addr())).find(|outcome| {
            let is_known = *outcome != Installed::TryAgain;
            if !is_known {
                std::thread::yield_now();
            }
            is_known
        });
        is_sure &= outcome.is_some();
    };
    let (start, end) = Table::everything();
    core.table.walk(start, end, |page, _| poison(page));
    core.window.displaced.iter().flat_map(|displaced| &displaced.records).for_each(|(page, ..)| poison(*page));
    // If not, it changes its mappings, and waits until somebody reads of that. Nobody will: better
    // than zeros, which it would find without its userfaultfd.
    match Proof::all_poisoned(is_sure) {
        Some(proof) => uffd.let_go(proof),
        None => std::mem::forget(uffd),
    }
}

impl Core {
    /// Ends the transaction of a change: the window is saved with it, and what it let go of is
    /// released.
    pub(crate) fn commit(&mut self, applied: usize, shared: &Shared) {
        // What is still to be moved may lie in something else now.
        self.moves.iter_mut().for_each(|moves| moves.give_up());
        self.save_window();
        self.table.commit(applied);
        self.released.drain(..).for_each(|slot| shared.pool.release(slot));
    }

    /// Commits what has become of the window, apart from any change.
    pub(crate) fn keep_window(&mut self, shared: &Shared) {
        self.table.begin();
        let applied = self.table.applied();
        self.commit(applied, shared);
    }

    fn save_window(&self) {
        let words = self.window.save();
        if !words.is_empty() || self.table.has_window() {
            self.table.save_window(&words);
        }
    }

    /// Nothing is evicted from this space any more; what is evicted can still be brought back.
    fn freeze(&mut self) {
        self.frozen = true;
        self.table.freeze();
    }

    fn let_go(&mut self, records: Vec<(PageIdx, Record, u8)>) {
        self.released.extend(records.iter().filter_map(|(_, record, _)| record.slot()));
    }

    /// The program throws away what the range holds.
    pub(crate) fn remove(&mut self, range: Range) {
        self.clear(range);
        if self.set_all(range.0, range.1, Record::Gone).is_err() {
            // What can't be marked must not be evicted; nothing is then.
            self.freeze();
        }
    }

    /// Clears the records of a range.
    pub(crate) fn clear(&mut self, (from, to): Range) {
        self.table.clear(from, to, |slot| self.released.push(slot));
    }

    /// Takes the records of a range out of the table, with their references.
    pub(crate) fn take(&mut self, range: Range) -> Vec<(PageIdx, Record, u8)> {
        let mut taken = Vec::new();
        self.table.walk(range.0, range.1, |page, record| taken.push((page, record, self.table.policy(page))));
        for (page, ..) in &taken {
            let _ = self.table.set(*page, Record::None);
        }
        taken
    }

    /// Takes what leaves a range for another address: what is displaced there, else what the table
    /// has, with the doubts there are about that.
    pub(crate) fn leave(&mut self, range: Range, to: PageIdx) -> (Vec<(PageIdx, Record, u8)>, Vec<AmbiguousUnmap>) {
        let (mut leaving, rest) = self.window.vacate(range);
        let mut carried = Vec::new();
        for part in rest {
            leaving.extend(self.take(part));
            carried.extend(self.window.carry(part, range.0, to));
        }
        (leaving, carried)
    }

    /// The range is not what it was: nothing is known of it but its records.
    pub(crate) fn forget(&mut self, (from, to): Range) {
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
