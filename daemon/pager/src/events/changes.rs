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
//!   [*ambiguous*](crate::events::ambiguous_unmap): when the window closes, the kernel is asked
//!   what lies there;
//! - changes read after a FORK may have happened before it: until the window closes the child is
//!   [*young*](crate::events::young).
//!
//! While any are ambiguous, nothing is served, installed or evicted.
//!
//! Each change is one transaction of the table, the window with it, so that a kill in the middle
//! leaves it to be applied again, whole. Slots that it lets go of are released after its end: they
//! may be somebody else's at once.

use crate::events::ambiguous_unmap::AmbiguousUnmap;
use crate::events::fork_exclusions;
use crate::events::window::{Displaced, Past, target_of};
use crate::kernel::uffd::{Event, Installed, Proof, Uffd};
use crate::page::{PageIdx, Range, overlap, without};
use crate::space::{Core, Record, Shared, Space, SpaceId, Table};
use annex_host::failpoint::failpoint;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

/// Applies a change that was read, the journal's `nth` message.
pub fn change(space: &Arc<Space>, core: &mut Core, nth: usize, change: Event, shared: &Shared) {
    tracing::trace!(space = space.id.0, "{change:x?}");
    core.table.begin();
    core.table.count_change();
    if space.is_young() {
        core.window.own.extend(own(change));
    }
    let mut born = None;
    match change {
        Event::Fork { uffd } => born = fork(space, core, nth, uffd, shared),
        Event::Unmap { start, end } => unmap(core, pages(start, end)),
        Event::Remap { from, to, len } => remap(space, core, pages(from, from + len), PageIdx::of(to)),
        Event::Remove { start, end } => remove(space, core, start, end),
        Event::Fault { .. } => {}
        Event::Unknown(code) => space.app.stop(&format!("the kernel sent an unknown userfaultfd message ({code})")),
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
    born.into_iter().for_each(|child| (shared.watch)(&child));
}

fn remove(space: &Space, core: &mut Core, start: u64, end: u64) {
    let staging = *space.staging.lock();
    if start >= staging.0 && end <= staging.0 + staging.1 {
        return;
    }
    core.remove(pages(start, end));
}

fn unmap(core: &mut Core, range: Range) {
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
    let (dropped, _) = core.window.vacate(range);
    core.let_go(dropped);
    let mut certain = vec![range];
    for landed in core.window.landed.clone() {
        core.window.ambiguous.extend(AmbiguousUnmap::of(landed, range));
        certain = certain.into_iter().flat_map(|r| without(r, landed).collect::<Vec<_>>()).collect();
    }
    certain.into_iter().for_each(|range| core.clear(range));
    core.forget(range);
}

fn remap(space: &Space, core: &mut Core, source: Range, to: PageIdx) {
    let target = target_of(source, to);
    core.window.remember(Past::Remap(source, to));
    let (leaving, mut carried) = core.leave(source, to);
    settle_target(core, target);
    core.window.ambiguous.append(&mut carried);
    let lands_on = core.take(target);
    if !lands_on.is_empty() {
        core.window.displaced.push(Displaced { at: target, records: lands_on });
    }
    put_records(space, core, leaving, source.0, to);
    core.window.land(target);
    core.window.echoes.push(source);
    core.forget(source);
    core.forget(target);
}

/// Something lands on `target`, so what was there had left: an UNMAP that was unclear about it
/// was meant so.
fn settle_target(core: &mut Core, target: Range) {
    for unmap in std::mem::take(&mut core.window.ambiguous) {
        overlap(unmap.range, target).into_iter().for_each(|both| core.clear(both));
        core.window.ambiguous.extend(unmap.landed_upon(target));
    }
}

pub(super) fn put_records(
    space: &Space,
    core: &mut Core,
    records: Vec<(PageIdx, Record, u8)>,
    from: PageIdx,
    to: PageIdx,
) {
    for (page, record, policy) in records {
        let target = to.plus(page.0 - from.0);
        if core.table.set(target, record).is_err() {
            space.app.stop("its page table is full (2 TiB of scattered addresses)");
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
fn fork(space: &Arc<Space>, core: &mut Core, nth: usize, uffd: RawFd, shared: &Shared) -> Option<Arc<Space>> {
    // SAFETY: the kernel has just put the descriptor into our table; nobody else knows it.
    let uffd = Uffd::adopt(unsafe { OwnedFd::from_raw_fd(uffd) });
    let id = SpaceId(shared.ids.fetch_add(1, Relaxed));
    core.table.forking(id.0, nth);
    let mut table = match Table::new(space.app.id, id.0) {
        Ok(table) => table,
        Err(e) => {
            condemn(core, uffd);
            space.app.stop(&format!("failed to make a page table for a forked child: {e}"));
            return None;
        }
    };
    let Some(left_behind) = left_behind(space, core) else {
        condemn(core, uffd);
        return None;
    };
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
        space.app.stop("the page table of a forked child is full");
        return None;
    }
    let child = Arc::new(Space::new(id, space.app.clone(), uffd, table));
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
    *child.elder.lock() = Some((Arc::downgrade(space), Instant::now()));
    core.window.past.push(Past::Fork(id));
    shared.registry.insert(child.clone());
    Some(child)
}

/// What a child that is forked now does not inherit; `None`: that is not known, and the app has
/// been stopped. Whoever has nothing evicted is not asked: smaps takes half as long as the fork
/// itself.
fn left_behind(space: &Space, core: &Core) -> Option<Vec<Range>> {
    let Some(pid) = space.pid().filter(|_| core.table.evicted() > 0) else { return Some(Vec::new()) };
    // Whom the space is known by may have left it (exec), and its stub may be dead: others that
    // live there have the same mappings.
    let others = || space.mark()?.processes(None).first().map(|(pid, _)| *pid);
    let looked = fork_exclusions::left_behind(|| space.task().or_else(others), || !space.uffd.is_dead());
    if let Err(error) = &looked {
        space.app.stop(&format!(
            "process {pid} has forked, and which of its memory the child is to find wiped is not known: failed to read /proc/{pid}/smaps: {error}; \
             the kernel needs CONFIG_PROC_PAGE_MONITOR, and annexd the right to trace the program (CAP_SYS_PTRACE)"
        ));
    }
    looked.ok()
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

pub(super) fn pages(start: u64, end: u64) -> Range {
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
