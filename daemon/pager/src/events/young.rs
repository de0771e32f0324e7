//! Children that have just been forked, and what of their parent's changes they have.
//!
//! A change that was read after a FORK may have happened before it, and messages don't tell. So a
//! child is *young* until its parent's window closes (see [`changes`](crate::events::changes)).
//! Then all has been read that can have happened before the fork, and it is decided by what the
//! child has mapped:
//!
//! - An UNMAP is ambiguous: if the child has nothing there, it is one of the child's too.
//! - A REMAP is one of the child's if the child has its target, and had not got that otherwise
//!   ([`was_before`]).
//!
//! A parent whose threads do little but change mappings may never be met without an unread change.
//! Then a child comes of age with [`PATIENCE`], if all that is evicted of it lies where it has
//! something mapped: what had moved before the fork, unread, would not. (But for MREMAP_DONTUNMAP,
//! and for what has been landed upon at once: those are what the time is for.)
//!
//! Nothing of a young child is served: where a mapping had moved to it would find zeros. Its own
//! messages are read only if one of them keeps the kernel from answering, and what those are about
//! is remembered: there the kernel's answer says nothing about the fork.

use crate::events::ambiguous_unmap::{AmbiguousUnmap, Origin};
use crate::events::changes::put_records;
use crate::events::messages::read_and_wake;
use crate::events::window::{Past, target_of};
use crate::kernel::uffd::{Installed, Probe};
use crate::page::{PageIdx, Range, overlap, without};
use crate::space::{Core, Record, Shared, Space, SpaceGuard, SpaceId, Table};
use annex_host::failpoint::failpoint;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// After which time a child need not wait for its parent's changes to end. A message is a
/// scheduling delay behind its change.
const PATIENCE: Duration = Duration::from_millis(20);
/// How long a child that changes its mappings is waited for.
const REST: Duration = Duration::from_secs(5);

/// What the parent changed before the fork, read after it.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Inherited {
    /// Or else it was after the fork, and the child has something there.
    Unmap(Range),
    Remap(Range, PageIdx),
}

/// What of the parent's changes was read.
#[derive(Clone, Copy, PartialEq)]
pub enum Read {
    /// All that can be read of what happened before the fork.
    All,
    /// All that came in [`PATIENCE`].
    ForLong,
}

/// The parent's changes don't end: children that have waited for long get what is known.
pub fn release_patient_children(space: &Space, core: &mut Core, shared: &Shared) {
    if core.window.past.is_empty() {
        return;
    }
    release_children(space, &core.window.past, Read::ForLong, shared);
    let is_young =
        |past: &Past| matches!(past, Past::Fork(child) if shared.registry.space(*child).is_some_and(|c| c.is_young()));
    let first = core.window.past.iter().position(is_young).unwrap_or(core.window.past.len());
    if first > 0 {
        core.window.past.drain(..first);
        core.keep_window(shared);
    }
}

/// The parent has ended: its children get what could be read. What a thread had changed that
/// was killed with it before it could say so, is not known.
pub fn release_orphans(space: &Space, core: &mut Core, shared: &Shared) {
    let past = std::mem::take(&mut core.window.past);
    release_children(space, &past, Read::All, shared);
}

/// The space is about to be forgotten: it has ended, or is let go of. Its children get what
/// could be read of its changes; if it was young itself, they wait for its parent's in its
/// place. False: its parent's core is not to be had now.
pub fn bequeath(space: &Space, shared: &Shared) -> bool {
    let elder = space.elder.lock().as_ref().and_then(|(elder, _)| elder.upgrade());
    let mut elders = match elder.as_ref().map(|elder| elder.core_within(PATIENCE)) {
        Some(None) => return false,
        elders => elders.flatten(),
    };
    let mut core = space.core();
    let children = living(core.window.children(), shared);
    release_orphans(space, &mut core, shared);
    // Asked again with its core: its window may have closed meanwhile.
    if let Some((elder, elders)) = elder.as_ref().zip(elders.as_mut()).filter(|_| space.is_young()) {
        for child in &children {
            waits_for(child, elder, &core.window.own, shared);
            elders.window.adopt(space.id, child.id);
        }
        elders.keep_window(shared);
    }
    *space.elder.lock() = None;
    // Not before: until here a successor of this annexd would do the same again.
    core.keep_window(shared);
    true
}

/// What had happened to its dead parent while that was young has happened to this child, too.
fn waits_for(space: &Space, elder: &Arc<Space>, dead: &[Past], shared: &Shared) {
    let mut core = space.core();
    core.window.own.splice(0..0, dead.iter().cloned());
    core.keep_window(shared);
    *space.elder.lock() = Some((Arc::downgrade(elder), Instant::now()));
}

/// Each child forked in a window gets what had happened before.
pub fn release_children(space: &Space, past: &[Past], read: Read, shared: &Shared) {
    for (nth, fork) in past.iter().enumerate() {
        let Past::Fork(child) = fork else { continue };
        let Some(child) = shared.registry.space(*child) else { continue };
        let Some(waits) = child.elder.lock().as_ref().map(|(_, since)| since.elapsed()) else { continue };
        let is_due = read != Read::ForLong || waits >= PATIENCE;
        if is_due && comes_of_age(&child, space.id.0, &past[nth + 1..], read, shared) {
            *child.elder.lock() = None;
        }
    }
}

/// False: more must have happened before the fork than was read `since`.
fn comes_of_age(space: &Arc<Space>, parent: u64, since: &[Past], read: Read, shared: &Shared) -> bool {
    let changes = since.iter().any(|past| matches!(past, Past::Unmap(_) | Past::Remap(..)));
    let mut core = space.core();
    if read == Read::All && !changes || core.table.has_inherited_from(parent) {
        return true;
    }
    let inherited = inherited(space, &mut core, since, shared);
    let is_all = match &inherited {
        Some(inherited) if read == Read::ForLong => explains(space, &mut core, inherited, shared),
        _ => Some(true),
    };
    match (inherited, is_all) {
        (Some(inherited), Some(true)) => inherit(space, &mut core, parent, &inherited, shared),
        (Some(_), Some(false)) => return false,
        // It has ended itself.
        _ if space.uffd.is_dead() => {}
        (inherited, _) => {
            let (own, evicted) = (&core.window.own, core.table.evicted());
            tracing::debug!(space = space.id.0, ?inherited, ?own, evicted, "since the fork: {since:x?}");
            fail_closed(space, &mut core, since, shared)
        }
    }
    true
}

fn fail_closed(space: &Space, core: &mut Core, since: &[Past], shared: &Shared) {
    core.table.begin();
    for past in since {
        if let Past::Remap(source, to) = *past {
            [source, target_of(source, to)].into_iter().for_each(|range| core.lose(range));
        }
    }
    let applied = core.table.applied();
    core.commit(applied, shared);
    space.app.stop("a child was forked as mappings of its parent were moved, and which of them it has can't be told");
}

/// Whether all that is evicted lies where the child has something mapped, or these changes say
/// why not. `None`: it can't be told.
fn explains(space: &Arc<Space>, core: &mut SpaceGuard<'_>, inherited: &[Inherited], shared: &Shared) -> Option<bool> {
    let mut evicted: Vec<PageIdx> = Vec::new();
    let (start, end) = Table::everything();
    core.table.walk(start, end, |page, record| {
        if record.slot().is_some() {
            evicted.push(page);
        }
    });
    let has_left = |page: PageIdx| {
        inherited.iter().any(|change| match change {
            Inherited::Unmap(range) | Inherited::Remap(range, _) => range.0 <= page && page < range.1,
        })
    };
    for page in evicted.into_iter().filter(|page| !has_left(*page)) {
        // What the child has left itself has no record any more.
        if !has_now(space, core, page, shared)? && core.table.record(page).slot().is_some() {
            return Some(false);
        }
    }
    Some(true)
}

/// What of its parent's changes the child has. `None`: that can't be told.
fn inherited(space: &Arc<Space>, core: &mut SpaceGuard<'_>, since: &[Past], shared: &Shared) -> Option<Vec<Inherited>> {
    let mut inherited = Vec::new();
    let mut after = Vec::new();
    for (nth, past) in since.iter().enumerate() {
        match *past {
            Past::Fork(..) | Past::Echo(_) | Past::Remove(_) => {}
            Past::Unmap(range) => inherited.push(Inherited::Unmap(range)),
            Past::Remap(source, to) => {
                let target = target_of(source, to);
                let before = match was_before(since, nth, &after, |range| has(space, core, range, shared)) {
                    None if has_pages(space, core, source) => Some(false),
                    told => told,
                };
                if !before? {
                    move_after(&mut after, source, target);
                } else {
                    let moved_itself = |own: &Past| {
                        let is_there = |range: &Range| overlap(*range, source).or(overlap(*range, target)).is_some();
                        matches!(own, Past::Remap(..)) && own.maps_anew().iter().any(is_there)
                    };
                    if core.window.own.iter().any(moved_itself) {
                        return None;
                    }
                    inherited.push(Inherited::Remap(source, to));
                }
            }
        }
    }
    Some(inherited)
}

/// Whether the child had the range mapped when it was forked. `None`: it can't be told.
fn has(space: &Arc<Space>, core: &mut SpaceGuard<'_>, range: Range, shared: &Shared) -> Option<bool> {
    loop {
        let page = core.window.first_untouched(range)?;
        let has = has_now(space, core, page, shared)?;
        // Asking may have shown what it has changed.
        if core.window.first_untouched(range) == Some(page) {
            return Some(has);
        }
    }
}

/// Whether the child has the page mapped. `None`: it can't be told.
fn has_now(space: &Arc<Space>, core: &mut SpaceGuard<'_>, page: PageIdx, shared: &Shared) -> Option<bool> {
    let asked_at = Instant::now();
    loop {
        match space.uffd.is_registered(page.addr()) {
            Probe::Registered => return Some(true),
            Probe::NotRegistered | Probe::Dead => return Some(false),
            Probe::TryAgain if asked_at.elapsed() > REST => return None,
            // It takes microseconds, once its message is read and its thread has a CPU.
            Probe::TryAgain => read_and_wake(space, core, shared),
        }
        std::thread::sleep(Duration::from_micros(20));
    }
}

/// Whether the child has a page in memory that is not evicted, in a range that it has mapped.
/// What had been moved away before the fork left none, and its parent could not get one there
/// before the message was read.
fn has_pages(space: &Space, core: &Core, range: Range) -> bool {
    let resident = |page: &PageIdx| matches!(core.table.record(*page), Record::None | Record::Clean(_));
    // If it is not there, it reads as zeros in either case.
    let is_there = |page: PageIdx| space.uffd.zero(page.addr()) == Installed::Exists;
    (range.0.0..range.1.0).map(PageIdx).filter(resident).any(is_there)
}

/// Its own children have the same, and get it first: an annexd that ends in between leaves the
/// rest to its successor.
fn inherit(space: &Space, core: &mut Core, parent: u64, inherited: &[Inherited], shared: &Shared) {
    if core.table.has_inherited_from(parent) {
        return;
    }
    for child in living(core.window.children(), shared) {
        inherit(&child, &mut child.core(), parent, inherited, shared);
    }
    core.table.begin();
    for inherited in inherited {
        match *inherited {
            Inherited::Unmap(range) => core.window.ambiguous.push(AmbiguousUnmap { range, origin: Origin::Parent }),
            Inherited::Remap(source, to) => remap_before_birth(space, core, source, to),
        }
    }
    core.table.inherit_from(parent);
    let applied = core.table.applied();
    core.commit(applied, shared);
    failpoint("child-followed");
}

fn remap_before_birth(space: &Space, core: &mut Core, source: Range, to: PageIdx) {
    let (leaving, mut carried) = core.leave(source, to);
    let target = target_of(source, to);
    core.clear(target);
    core.window.ambiguous.append(&mut carried);
    put_records(space, core, leaving, source.0, to);
    core.forget(source);
    core.forget(target);
    // What the child has changed since, it has changed there.
    for own in core.window.own.clone() {
        match own {
            Past::Unmap(range) => overlap(range, target).into_iter().for_each(|both| core.clear(both)),
            Past::Remove(range) => overlap(range, target).into_iter().for_each(|both| core.remove(both)),
            Past::Fork(..) | Past::Echo(_) | Past::Remap(..) => {}
        }
    }
}

impl Core {
    /// What is evicted of the range raises SIGBUS from now on.
    fn lose(&mut self, range: Range) {
        for (page, record, _) in self.take(range) {
            self.released.extend(record.slot());
            // The page has a place in the table.
            let _ = self.table.set(page, Record::Poisoned);
        }
    }
}

/// Those of these spaces that have not ended.
fn living(children: Vec<SpaceId>, shared: &Shared) -> Vec<Arc<Space>> {
    children.into_iter().filter_map(|child| shared.registry.space(child)).collect()
}

/// Whether the REMAP that is the `nth` change read since a fork happened before it. `after`: where
/// mappings lie that moved after it, by the changes before this one. `has`: whether the child had a
/// range mapped. `None`: that can't be told.
fn was_before(since: &[Past], nth: usize, after: &[Range], mut has: impl FnMut(Range) -> Option<bool>) -> Option<bool> {
    let Past::Remap(source, to) = since[nth] else { return Some(false) };
    let target = target_of(source, to);
    let others = || since.iter().enumerate().filter(|(i, _)| *i != nth).map(|(_, past)| past);
    // What moves there has moved after the fork already: so this was after it too.
    let follows = after.iter().any(|moved| overlap(*moved, source).is_some());
    let before = !follows && has(target)? && {
        // The child may have the target because something else lay there. Then the parent has left
        // it since.
        let leaves_target = |past: &Past| match past {
            Past::Unmap(range) | Past::Remap(range, _) => overlap(*range, target).is_some(),
            Past::Fork(..) | Past::Echo(_) | Past::Remove(_) => false,
        };
        !others().any(leaves_target) || !has(source)? || {
            // It has both. A REMAP that unmaps its source was after the fork, unless something had
            // landed there anew; of one that does not, nothing is known.
            let unmaps = since[nth..].iter().any(|past| matches!(past, Past::Echo(range) if *range == source));
            let lands_there = |past: &Past| match past {
                Past::Remap(from, to) => overlap(target_of(*from, *to), source).is_some(),
                _ => false,
            };
            if !unmaps || others().any(lands_there) {
                return None;
            }
            false
        }
    };
    Some(before)
}

/// A mapping that had moved after the fork is at `target` now.
fn move_after(after: &mut Vec<Range>, source: Range, target: Range) {
    *after = after.iter().flat_map(|moved| without(*moved, source)).collect();
    after.push(target);
}

#[cfg(test)]
mod tests {
    use super::*;
    use Past::{Echo, Remap, Unmap};

    const A: Range = (PageIdx(10), PageIdx(20));
    const B: Range = (PageIdx(110), PageIdx(120));
    const C: Range = (PageIdx(210), PageIdx(220));

    /// Which of the changes were before the fork of a child that has these mapped.
    fn before(since: &[Past], has: &[Range]) -> Option<Vec<usize>> {
        let mut after = Vec::new();
        let mut found = Vec::new();
        for nth in 0..since.len() {
            let is_mapped = |range: Range| Some(has.iter().any(|mapped| overlap(*mapped, range).is_some()));
            if was_before(since, nth, &after, is_mapped)? {
                found.push(nth);
            } else if let Remap(source, to) = since[nth] {
                move_after(&mut after, source, target_of(source, to));
            }
        }
        Some(found)
    }

    #[test]
    fn a_move_is_the_childs_if_the_child_has_its_target() {
        let moves = [Remap(A, B.0), Echo(A)];
        assert_eq!(before(&moves, &[B]), Some(vec![0]));
        assert_eq!(before(&moves, &[A]), Some(vec![]));
        assert_eq!(before(&[Remap(A, B.0)], &[A, B]), Some(vec![0]), "MREMAP_DONTUNMAP");
    }

    #[test]
    fn what_moves_to_and_fro_is_where_the_child_has_it() {
        let moves = [Remap(A, B.0), Echo(A), Remap(B, A.0), Echo(B), Remap(A, B.0), Echo(A)];
        assert_eq!(before(&moves, &[A]), Some(vec![]));
        assert_eq!(before(&moves, &[B]), Some(vec![0]));
        let echo_first = [&[Echo(B)], &moves[..]].concat();
        assert_eq!(before(&echo_first, &[A]), Some(vec![]));
        let on_and_on = [Remap(A, B.0), Echo(A), Remap(B, C.0), Echo(B), Remap(C, A.0), Echo(C)];
        assert_eq!(before(&on_and_on, &[A]), Some(vec![]));
        assert_eq!(before(&on_and_on, &[B]), Some(vec![0]));
    }

    #[test]
    fn what_lay_at_the_target_is_not_taken_for_what_moved_there() {
        let over = [Unmap(B), Remap(A, B.0), Echo(A)];
        assert_eq!(before(&over, &[A, B]), Some(vec![]));
        assert_eq!(before(&over, &[B]), Some(vec![1]));
        let late = [Remap(A, B.0), Echo(A), Unmap(B)];
        assert_eq!(before(&late, &[A, B]), Some(vec![]));
        let moved_away = [Remap(B, C.0), Remap(A, B.0), Echo(B), Echo(A)];
        assert_eq!(before(&moved_away, &[A, B]), Some(vec![]));
        assert_eq!(before(&moved_away, &[A, C]), Some(vec![0]));
        assert_eq!(before(&moved_away, &[B, C]), Some(vec![0, 1]));
    }

    #[test]
    fn what_can_not_be_told_is_not_guessed() {
        assert_eq!(before(&[Unmap(B), Remap(A, B.0)], &[A, B]), None, "MREMAP_DONTUNMAP over a mapping");
        let landed = [Unmap(B), Remap(A, B.0), Echo(A), Remap(C, A.0), Echo(C)];
        assert_eq!(before(&landed, &[A, B]), None, "the source may have been landed upon before the fork");
        assert_eq!(was_before(&[Remap(A, B.0)], 0, &[], |_| None), None);
    }
}
