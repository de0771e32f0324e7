//! Wrong passwords: a few in a row are answered at once, since people mistype. From then on each answer takes a while.
//!
//! The right password is answered at once however many wrong ones there were, so nobody is locked out by somebody
//! else's guesses. A guesser that waits for answers gets one per connection and [`PENALTY`]; how many connections may
//! wait is up to `maxclients`, and they make way for others (see `listen`).

use std::cell::Cell;
use std::time::{Duration, Instant};

/// So many are answered at once, and one more for each [`EACH`] that passes.
const FREE: u32 = 8;
const EACH: Duration = Duration::from_secs(1);
/// How long the answer to any other takes.
const PENALTY: Duration = Duration::from_secs(2);

pub struct Guesses {
    free: Cell<u32>,
    since: Cell<Instant>,
}

impl Default for Guesses {
    fn default() -> Guesses {
        Guesses { free: Cell::new(FREE), since: Cell::new(Instant::now()) }
    }
}

impl Guesses {
    /// One more, whose answer is to wait for so long.
    pub fn wrong(&self, now: Instant) -> Duration {
        let more = now.duration_since(self.since.get()).as_nanos() / EACH.as_nanos();
        let free = self.free.get().saturating_add(u32::try_from(more).unwrap_or(u32::MAX)).min(FREE);
        if more > 0 {
            self.since.set(now);
        }
        self.free.set(free.saturating_sub(1));
        if free > 0 { Duration::ZERO } else { PENALTY }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_are_free_and_then_one_a_second() {
        let guesses = Guesses::default();
        let begun = guesses.since.get();
        let answered_at_once = |at: Duration| (0..100).filter(|_| guesses.wrong(begun + at).is_zero()).count();
        assert_eq!(answered_at_once(Duration::ZERO), 8);
        assert_eq!(answered_at_once(Duration::from_millis(900)), 0);
        assert_eq!(answered_at_once(Duration::from_millis(1100)), 1);
        assert_eq!(answered_at_once(Duration::from_secs(1000)), 8);
        assert_eq!(guesses.wrong(begun + Duration::from_secs(1000)), PENALTY);
    }
}
