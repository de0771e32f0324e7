//! Real-time turns: a thread that serves a data connection of a client with leases runs before all
//! ordinary ones, but never do such threads have all CPUs of the host at once.
//!
//! A turn lasts from when something came until the thread waits again. One CPU less than there are
//! may be in a turn of real time. A thread whose turn begins when that many run has this turn among
//! the ordinary ones, before others of its group.

use annex_host::priority::Precedence;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::available_parallelism;

/// All turns of one agent.
#[derive(Debug)]
pub struct Turns {
    most: usize,
    running: AtomicUsize,
}

impl Default for Turns {
    fn default() -> Turns {
        Turns::of(available_parallelism().map_or(1, usize::from))
    }
}

impl Turns {
    /// On so many CPUs.
    fn of(cpus: usize) -> Turns {
        Turns { most: cpus - 1, running: AtomicUsize::new(0) }
    }

    /// For the calling thread, which is an ordinary one.
    pub fn join(&self) -> Turn<'_> {
        Turn { turns: self, deserves: false, has: Precedence::Ordinary, is_counted: false }
    }
}

/// One thread's turns.
#[derive(Debug)]
pub struct Turn<'a> {
    turns: &'a Turns,
    /// The client holds a lease.
    deserves: bool,
    has: Precedence,
    /// Among those that run in real time.
    is_counted: bool,
}

impl Turn<'_> {
    /// An operation was allowed by a lease, or was not. It counts from the next turn on.
    pub fn deserves(&mut self, is_allowed: bool) {
        self.deserves = is_allowed;
    }

    /// The thread has waited, and goes on.
    pub fn begin(&mut self) {
        if self.has != Precedence::OfAll || self.is_counted {
            return;
        }
        if self.turns.running.fetch_add(1, Ordering::Relaxed) < self.turns.most {
            self.is_counted = true;
        } else {
            self.turns.running.fetch_sub(1, Ordering::Relaxed);
            self.set(Precedence::OfItsGroup);
        }
    }

    /// The thread is about to wait.
    pub fn end(&mut self) {
        if std::mem::take(&mut self.is_counted) {
            self.turns.running.fetch_sub(1, Ordering::Relaxed);
        }
        match self.deserves {
            true if self.turns.most > 0 => self.set(Precedence::OfAll),
            true => self.set(Precedence::OfItsGroup),
            false => self.set(Precedence::Ordinary),
        }
    }

    fn set(&mut self, precedence: Precedence) {
        if self.has != precedence {
            precedence.give(0);
            self.has = precedence;
        }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.deserves = false;
        self.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_cpu_is_left_to_others() {
        let turns = Turns::of(3);
        let mut all: Vec<_> = (0..4).map(|_| turns.join()).collect();
        for turn in &mut all {
            turn.deserves(true);
            turn.end();
            turn.begin();
        }
        let before_all = |all: &[Turn<'_>]| all.iter().map(|turn| turn.has == Precedence::OfAll).collect::<Vec<_>>();
        assert_eq!(before_all(&all), [true, true, false, false]);
        all[0].end();
        all[2].end();
        all[2].begin();
        assert_eq!(before_all(&all), [true, true, true, false], "the first one waits");
        all.iter_mut().for_each(Turn::end);
        assert_eq!(turns.running.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn who_has_no_lease_is_as_others_are() {
        let turns = Turns::of(8);
        let mut turn = turns.join();
        turn.end();
        turn.begin();
        assert_eq!(turn.has, Precedence::Ordinary);
        turn.deserves(true);
        turn.end();
        assert_eq!(turn.has, Precedence::OfAll);
        turn.deserves(false);
        turn.end();
        assert_eq!(turn.has, Precedence::Ordinary);
    }
}
