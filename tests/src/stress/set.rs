//! The working set: one big anonymous mapping and, per page, a word that says what the page must
//! hold.
//!
//! ```text
//! bit 63      held: one thread works on the page
//! bit 62      zero: the page was discarded or never written
//! bit 61      unknown: in a forked child, a page that changed while the fork went on
//! bits 0..60  generation, grows with every change
//! ```
//!
//! Whoever holds a page knows its content exactly. A forked child compares the words from just
//! before and just after the fork: where they are equal and not held, nothing changed in between
//! and the child must have inherited that very content.

use super::content::{Content, Dice, PAGE};
use super::{Trouble, map};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering::*};

const HELD: u64 = 1 << 63;
const ZERO: u64 = 1 << 62;
const UNKNOWN: u64 = 1 << 61;
const GENERATION: u64 = UNKNOWN - 1;

pub struct Set {
    base: NonNull<u8>,
    states: Vec<AtomicU64>,
    seed: u64,
}

// SAFETY: the mapping lives as long as the process; a page is touched only by the thread that holds
// it (`Set::hold`).
unsafe impl Send for Set {}
// SAFETY: as above.
unsafe impl Sync for Set {}

impl Set {
    pub fn new(pages: usize, seed: u64) -> Result<Set, Trouble> {
        let base = map::anonymous(pages * PAGE).map_err(Trouble::call("mmap of the working set"))?;
        let states: Vec<_> = (0..pages).map(|_| AtomicU64::new(ZERO)).collect();
        // The table of what is expected must not itself be paged, or a wrong table would be blamed
        // on the page. Refused by a small RLIMIT_MEMLOCK, it still works: a wrong table is then
        // found as a wrong page. SAFETY: locks memory of ours; changes nothing about its content.
        unsafe { libc::mlock(states.as_ptr().cast(), size_of_val(&states[..])) };
        Ok(Set { base, states, seed })
    }

    pub fn pages(&self) -> usize {
        self.states.len()
    }

    pub fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Takes `count` pages from `first` on for this thread alone; `None` if another has one of
    /// them.
    pub fn hold(&self, first: usize, count: usize) -> Option<Held<'_>> {
        let mut held = Held { set: self, first, count: 0 };
        for state in self.states.get(first..first + count)? {
            let now = state.load(Relaxed);
            if now & HELD != 0 || state.compare_exchange(now, now | HELD, Acquire, Relaxed).is_err() {
                return None; // dropping `held` gives back what was taken
            }
            held.count += 1;
        }
        Some(held)
    }

    /// Some free run of 1 to `most` pages at a random place.
    pub fn hold_any(&self, dice: &mut Dice, most: usize) -> Option<Held<'_>> {
        let count = 1 + dice.below(most.min(self.pages()));
        (0..64).find_map(|_| self.hold(dice.below(self.pages() - count + 1), count))
    }

    /// All states as they are now.
    pub fn snapshot(&self, into: &mut Vec<u64>) {
        into.clear();
        into.extend(self.states.iter().map(|s| s.load(Acquire)));
    }

    /// In a forked child: keeps what surely did not change between the two snapshots, the rest is
    /// unknown. Returns the number of pages known.
    pub fn inherit(&self, before: &[u64], after: &[u64]) -> usize {
        let mut known = 0;
        for ((state, before), after) in self.states.iter().zip(before).zip(after) {
            if before == after && before & HELD == 0 {
                state.store(*before, Relaxed);
                known += 1;
            } else {
                state.store((before & GENERATION) | UNKNOWN, Relaxed);
            }
        }
        known
    }

    fn content(&self, page: usize, state: u64) -> Option<Content> {
        if state & UNKNOWN != 0 {
            None
        } else if state & ZERO != 0 {
            Some(Content::Zero)
        } else {
            Some(Content::of(self.seed, page as u64, state & GENERATION))
        }
    }

    /// Stale content looks wrong in one way, foreign content in another: says which, for the
    /// message.
    fn explain(&self, page: usize, state: u64, at: *const u8) -> String {
        let generation = state & GENERATION;
        // SAFETY: called by the holder of the page only.
        let is = |content: Content| unsafe { content.check(at) }.is_ok();
        if let Some(old) =
            (0..generation.min(64)).find(|ago| is(Content::of(self.seed, page as u64, generation - 1 - ago)))
        {
            return format!("it holds the content of {} changes ago", old + 1);
        }
        let foreign = (0..self.pages())
            .find(|p| self.content(*p, self.states[*p].load(Relaxed)).is_some_and(|c| c != Content::Zero && is(c)));
        match foreign {
            Some(other) => format!("it holds page {other}"),
            None => "it holds nothing that was written".into(),
        }
    }
}

/// Pages that this thread alone may touch; given back when dropped.
pub struct Held<'a> {
    set: &'a Set,
    pub first: usize,
    pub count: usize,
}

impl Held<'_> {
    pub fn addr(&self, i: usize) -> NonNull<u8> {
        // SAFETY: `first + i` is below the number of pages of the set.
        unsafe { map::page(self.set.base, self.first + i) }
    }

    pub fn len(&self) -> usize {
        self.count * PAGE
    }

    /// What page `i` of the run must hold; `None` if unknown (in a child).
    pub fn content(&self, i: usize) -> Option<Content> {
        self.set.content(self.first + i, self.state(i).load(Relaxed))
    }

    /// Compares every byte of the run. Returns the number of pages compared.
    pub fn check(&self, doing: &'static str) -> Result<usize, Trouble> {
        let mut checked = 0;
        for i in 0..self.count {
            let Some(content) = self.content(i) else { continue };
            // SAFETY: held, hence mapped, readable and ours alone.
            if let Err(mismatch) = unsafe { content.check(self.addr(i).as_ptr()) } {
                let page = self.first + i;
                let why = self.set.explain(page, self.state(i).load(Relaxed), self.addr(i).as_ptr());
                return Err(Trouble::Wrong { doing, page, mismatch, why });
            }
            checked += 1;
        }
        Ok(checked)
    }

    /// Gives page `i` a new generation and returns the content it must get now.
    pub fn renew(&self, i: usize) -> Content {
        let state = self.state(i);
        let next = (state.load(Relaxed) & GENERATION) + 1;
        state.store(HELD | next, Relaxed);
        Content::of(self.set.seed, (self.first + i) as u64, next)
    }

    /// Renews and fills page `i`.
    pub fn rewrite(&self, i: usize) {
        let content = self.renew(i);
        // SAFETY: held, hence mapped, writable and ours alone.
        unsafe { content.fill(self.addr(i).as_ptr()) };
    }

    /// Notes that the whole run reads as zeros from now on.
    pub fn discarded(&self) {
        for i in 0..self.count {
            let state = self.state(i);
            let next = (state.load(Relaxed) & GENERATION) + 1;
            state.store(HELD | ZERO | next, Relaxed);
        }
    }

    fn state(&self, i: usize) -> &AtomicU64 {
        &self.set.states[self.first + i]
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        for i in 0..self.count {
            self.state(i).fetch_and(!HELD, Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_foreign_write_is_found_and_explained() {
        let set = Set::new(8, 1).unwrap();
        set.hold(0, 8).map(|held| (0..8).for_each(|i| held.rewrite(i))).unwrap();
        let held = set.hold(2, 1).unwrap();
        held.check("test").unwrap();
        // SAFETY: both pages are in the set; the test is the only user.
        unsafe { std::ptr::copy_nonoverlapping(map::page(set.base(), 5).as_ptr(), held.addr(0).as_ptr(), PAGE) };
        let said = held.check("test").unwrap_err().to_string();
        assert!(said.contains("page 2") && said.contains("it holds page 5"), "{said}");
    }

    #[test]
    fn a_held_page_is_not_given_twice() {
        let set = Set::new(4, 1).unwrap();
        let held = set.hold(1, 2).unwrap();
        assert!(set.hold(0, 2).is_none());
        assert!(set.hold(0, 1).is_some());
        drop(held);
        assert!(set.hold(0, 4).is_some());
    }

    #[test]
    fn a_page_that_changed_around_a_fork_is_unknown_to_the_child() {
        let set = Set::new(3, 1).unwrap();
        let (mut before, mut after) = (vec![], vec![]);
        set.snapshot(&mut before);
        set.hold(1, 1).unwrap().rewrite(0);
        set.snapshot(&mut after);
        assert_eq!(set.inherit(&before, &after), 2);
        assert_eq!(set.hold(0, 3).unwrap().check("test").unwrap(), 2);
    }
}
