//! Memory that the program gives back or re-arranges in place: MADV_DONTNEED, MADV_FREE, mprotect,
//! huge pages.

use super::board::Shared;
use super::content::{Dice, PAGE};
use super::set::Set;
use super::{Trouble, map};

const RUN: usize = 64;
const HUGE: usize = 2 << 20;

/// Discarded memory reads as zeros, then takes new content.
pub fn dontneed(set: &Set, dice: &mut Dice, board: Shared) -> Result<(), Trouble> {
    let Some(held) = set.hold_any(dice, RUN) else { return Ok(()) };
    if dice.one_in(2) {
        board.checked(held.check("a read")?);
    }
    // SAFETY: the run is held.
    unsafe { map::advise(held.addr(0), held.len(), libc::MADV_DONTNEED) }
        .map_err(Trouble::call("madvise(MADV_DONTNEED)"))?;
    held.discarded();
    board.checked(held.check("MADV_DONTNEED")?);
    // Most get new content, the rest is met as zeros later on.
    for i in 0..held.count {
        if !dice.one_in(4) {
            held.rewrite(i);
        }
    }
    board.checked(held.check("a write after MADV_DONTNEED")?);
    Ok(())
}

/// Freed memory is the old content or zeros until it is written.
pub fn free(set: &Set, dice: &mut Dice, board: Shared) -> Result<(), Trouble> {
    let Some(held) = set.hold_any(dice, RUN) else { return Ok(()) };
    board.checked(held.check("a read")?);
    // SAFETY: the run is held.
    unsafe { map::advise(held.addr(0), held.len(), libc::MADV_FREE) }.map_err(Trouble::call("madvise(MADV_FREE)"))?;
    if dice.one_in(2) {
        // As under memory pressure: the kernel takes them now. Where it can't it says so, and they
        // stay. SAFETY: the run is held.
        let _ = unsafe { map::advise(held.addr(0), held.len(), libc::MADV_PAGEOUT) };
    }
    for i in 0..held.count {
        let Some(content) = held.content(i) else { continue };
        // SAFETY: the run is held.
        if let Err(mismatch) = unsafe { content.check_or_zero(held.addr(i).as_ptr()) } {
            let why = "neither the old content nor zeros".into();
            return Err(Trouble::Wrong { doing: "MADV_FREE", page: held.first + i, mismatch, why });
        }
    }
    for i in 0..held.count {
        held.rewrite(i);
    }
    board.checked(held.check("a write after MADV_FREE")?);
    Ok(())
}

/// Read-only memory keeps its content; memory without any access keeps it too.
pub fn protect(set: &Set, dice: &mut Dice, board: Shared) -> Result<(), Trouble> {
    let Some(held) = set.hold_any(dice, RUN) else { return Ok(()) };
    let protect = |protection| {
        // SAFETY: the run is held, and is not written below while it is protected.
        unsafe { map::protect(held.addr(0), held.len(), protection) }.map_err(Trouble::call("mprotect"))
    };
    if dice.one_in(2) {
        protect(libc::PROT_READ)?;
        board.checked(held.check("mprotect(PROT_READ)")?);
    } else {
        protect(libc::PROT_NONE)?;
    }
    protect(libc::PROT_READ | libc::PROT_WRITE)?;
    if dice.one_in(2) {
        board.checked(held.check("mprotect back to PROT_WRITE")?);
    }
    for i in 0..held.count {
        held.rewrite(i);
    }
    board.checked(held.check("a write after mprotect")?);
    Ok(())
}

/// A quarter of the set may be huge pages from the start.
pub fn hint_huge(set: &Set) -> Result<(), Trouble> {
    advise_chunks(set, 0, set.pages() * PAGE / HUGE / 4, libc::MADV_HUGEPAGE)
}

/// One 2 MiB piece changes its mind; its content does not.
pub fn toggle_huge(set: &Set, dice: &mut Dice) -> Result<(), Trouble> {
    let chunks = set.pages() * PAGE / HUGE;
    if chunks < 2 {
        return Ok(());
    }
    let advice = if dice.one_in(2) { libc::MADV_HUGEPAGE } else { libc::MADV_NOHUGEPAGE };
    let chunk = dice.below(chunks - 1);
    advise_chunks(set, chunk, 1, advice)?;
    // A huge zero-filled piece: discard it whole and touch it again, if nobody else is in it.
    let first = (set.base().as_ptr() as usize).next_multiple_of(HUGE) - set.base().as_ptr() as usize + chunk * HUGE;
    if let Some(held) = set.hold(first / PAGE, HUGE / PAGE) {
        held.check("a change of huge pages")?;
        // SAFETY: the run is held.
        unsafe { map::advise(held.addr(0), held.len(), libc::MADV_DONTNEED) }
            .map_err(Trouble::call("madvise(MADV_DONTNEED) of 2 MiB"))?;
        held.discarded();
        for i in (0..held.count).step_by(2) {
            held.rewrite(i);
        }
        held.check("a write to a huge page")?;
    }
    Ok(())
}

fn advise_chunks(set: &Set, first: usize, count: usize, advice: i32) -> Result<(), Trouble> {
    let base = set.base().as_ptr() as usize;
    let start = base.next_multiple_of(HUGE) + first * HUGE;
    if count == 0 || start + count * HUGE > base + set.pages() * PAGE {
        return Ok(());
    }
    // SAFETY: the range lies within the set; the advice keeps its content.
    unsafe { map::advise(map::page(set.base(), (start - base) / PAGE), count * HUGE, advice) }
        .map_err(Trouble::call("madvise(MADV_HUGEPAGE)"))
}
