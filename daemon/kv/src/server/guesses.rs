//! Wrong passwords: a few in a row are answered at once, since people mistype. From then on each
//! answer takes a while.
//!
//! The right password is answered at once however many wrong ones there were elsewhere, so nobody
//! is locked out by the guesses of another host or user. A guesser gains nothing by hanging up, or
//! by asking on many connections: what an answer takes is remembered by where the guess came from.
//! While [`TOGETHER`] guesses from one origin are to be waited for, no further password from there
//! is looked at, right or wrong.

use super::address::Origin;
use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

/// So many are answered at once, and one more for each [`EACH`] that passes.
const FREE: u32 = 8;
const EACH: Duration = Duration::from_secs(1);
/// How long the answer to any other takes.
const PENALTY: Duration = Duration::from_secs(2);
/// Guesses from one origin that are waited for at a time.
const TOGETHER: usize = 8;
/// Origins that are remembered at a time.
const ORIGINS: usize = 4096;

pub struct Guesses {
    free: Cell<u32>,
    since: Cell<Instant>,
    /// When the answers to wrong guesses may be given, the first one first.
    waited_for: RefCell<HashMap<Origin, VecDeque<Instant>>>,
}

impl Default for Guesses {
    fn default() -> Guesses {
        Guesses { free: Cell::new(FREE), since: Cell::new(Instant::now()), waited_for: RefCell::default() }
    }
}

impl Guesses {
    /// How long a password that comes from there has to wait until it may be looked at.
    pub fn wait(&self, origin: Origin, now: Instant) -> Duration {
        let mut all = self.waited_for.borrow_mut();
        let Some(waited_for) = all.get_mut(&origin) else { return Duration::ZERO };
        while waited_for.pop_front_if(|end| *end <= now).is_some() {}
        match waited_for.front() {
            None => {
                all.remove(&origin);
                Duration::ZERO
            }
            Some(first) if waited_for.len() >= TOGETHER => first.duration_since(now),
            Some(_) => Duration::ZERO,
        }
    }

    /// One more, whose answer is to wait for so long.
    pub fn wrong(&self, origin: Origin, now: Instant) -> Duration {
        let more = now.duration_since(self.since.get()).as_nanos() / EACH.as_nanos();
        let free = self.free.get().saturating_add(u32::try_from(more).unwrap_or(u32::MAX)).min(FREE);
        if more > 0 {
            self.since.set(now);
        }
        self.free.set(free.saturating_sub(1));
        if free > 0 {
            return Duration::ZERO;
        }
        self.remember(origin, now);
        PENALTY
    }

    fn remember(&self, origin: Origin, now: Instant) {
        let mut all = self.waited_for.borrow_mut();
        if all.len() >= ORIGINS && !all.contains_key(&origin) {
            all.retain(|_, waited_for| waited_for.back().is_some_and(|last| *last > now));
            // So many hosts at a time: each has its own limit, and nearly all of them are
            // remembered.
            let any = all.keys().next().copied().filter(|_| all.len() >= ORIGINS);
            any.and_then(|any| all.remove(&any));
        }
        all.entry(origin).or_default().push_back(now + PENALTY);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: Origin = Origin::User(0);

    #[test]
    fn a_few_are_free_and_then_one_a_second() {
        let guesses = Guesses::default();
        let begun = guesses.since.get();
        let answered_at_once = |at: Duration| (0..100).filter(|_| guesses.wrong(HERE, begun + at).is_zero()).count();
        assert_eq!(answered_at_once(Duration::ZERO), 8);
        assert_eq!(answered_at_once(Duration::from_millis(900)), 0);
        assert_eq!(answered_at_once(Duration::from_millis(1100)), 1);
        assert_eq!(answered_at_once(Duration::from_secs(1000)), 8);
        assert_eq!(guesses.wrong(HERE, begun + Duration::from_secs(1000)), PENALTY);
    }

    #[test]
    fn so_many_of_one_origin_are_waited_for_and_the_next_one_waits_for_the_first() {
        let guesses = Guesses::default();
        let begun = guesses.since.get();
        let at = |millis| begun + Duration::from_millis(millis);
        (0..FREE).for_each(|_| assert!(guesses.wrong(HERE, begun).is_zero()));
        for nth in 0..TOGETHER as u64 {
            assert_eq!(guesses.wait(HERE, at(nth)), Duration::ZERO);
            assert_eq!(guesses.wrong(HERE, at(nth)), PENALTY);
        }
        assert_eq!(guesses.wait(HERE, at(500)), Duration::from_millis(1500));
        assert_eq!(guesses.wait(Origin::User(1), at(500)), Duration::ZERO);
        // One has been waited for: the next one may be looked at.
        assert_eq!(guesses.wait(HERE, at(2000)), Duration::ZERO);
        assert_eq!(guesses.wait(HERE, at(3000)), Duration::ZERO);
        assert!(guesses.waited_for.borrow().is_empty());
    }

    #[test]
    fn no_more_origins_are_remembered_than_there_is_room_for() {
        let guesses = Guesses::default();
        let begun = guesses.since.get();
        for user in 0..ORIGINS as u32 * 2 {
            guesses.wrong(Origin::User(user), begun);
        }
        assert_eq!(guesses.waited_for.borrow().len(), ORIGINS);
        // Those that are over make way first.
        guesses.remember(HERE, begun + PENALTY);
        assert_eq!(guesses.waited_for.borrow().len(), 1);
    }
}
