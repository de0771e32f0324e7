//! Questions that threads put at the rings of their regions ([`ring`](crate::kernel::Waiters)),
//! served as faults are.
//!
//! A worker that polls a ring looks there for [`ROUND`] at a time, and then at its epoll set; after
//! [`QUIET`] without a question it sleeps, and leaves word that the bell is to be rung. While it
//! polls it is a thread like any other, which gives way between its rounds: it must not keep the
//! evictor, or a program, off its CPU.

use crate::fault::page_fault::Fault;
use crate::fault::worker::{Again, Polled, Worker};
use crate::page::PageIdx;
use crate::space::{Space, SpaceId};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// In an epoll set: it is the bell of the space with the number in the other bits.
pub(super) const BELL: u64 = 1 << 62;
const ROUND: Duration = Duration::from_micros(5);
const QUIET: Duration = Duration::from_millis(1);
/// Questions that are taken off rings, round after round, until the worker looks at its epoll set
/// all the same. A ring that is full counts as many at once, so that its program costs the others
/// a round.
pub(super) const MOST_FOUND: usize = 8;

impl Worker {
    /// The bell of this space was rung.
    pub(super) fn answer_bell(&mut self, id: SpaceId) {
        let Some(space) = self.registry.space(id) else { return };
        let Some(ring) = space.uffd.ring() else { return };
        self.serve_ring(&space);
        let now = Instant::now();
        if !self.polls_rings || space.is_dead() || !ring.begin_to_poll(self.number, now) {
            return;
        }
        self.rings.push(Polled { space, found_at: now });
    }

    pub(super) fn polls_rings(&self) -> bool {
        !self.rings.is_empty()
    }

    /// Looks at the rings that it polls, for a round at most: one of them is served, each in its
    /// turn. How many questions that had; 0 if none had any.
    pub(super) fn look_at_rings(&mut self) -> usize {
        if self.rings.is_empty() {
            return 0;
        }
        self.rings.rotate_left(1);
        let idle = self.again.is_empty() && self.lane.in_flight() == 0;
        let began = Instant::now();
        loop {
            for nth in 0..self.rings.len() {
                let polled = &mut self.rings[nth];
                let Some(ring) = polled.space.uffd.ring() else { continue };
                ring.count_beat();
                if ring.is_asked() {
                    polled.found_at = Instant::now();
                    let space = polled.space.clone();
                    let Some(asked) = self.serve_ring(&space) else {
                        // Nothing is to be had of the space for now: it is tried again.
                        self.stop_polling(nth, false);
                        return MOST_FOUND;
                    };
                    self.leave_if_in_the_way(nth);
                    return asked.max(1);
                }
            }
            (0..8).for_each(|_| std::hint::spin_loop());
            if !idle || began.elapsed() > ROUND {
                break;
            }
        }
        for nth in (0..self.rings.len()).rev() {
            if self.rings[nth].found_at.elapsed() > QUIET || self.rings[nth].space.is_dead() {
                self.stop_polling(nth, true);
            }
        }
        std::thread::yield_now();
        0
    }

    fn leave_if_in_the_way(&mut self, nth: usize) {
        if self.rings[nth].space.uffd.ring().is_some_and(|ring| ring.is_in_the_way(self.number)) {
            self.stop_polling(nth, false);
        }
    }

    fn stop_polling(&mut self, nth: usize, was_of_use: bool) {
        let Polled { space, .. } = self.rings.swap_remove(nth);
        let Some(ring) = space.uffd.ring() else { return };
        ring.stop_polling(was_of_use, Instant::now());
        // Whoever asked before it heard that nobody polls has not rung.
        self.serve_ring(&space);
    }

    /// Takes what is asked and serves it. Changes that are unread are read only if they stand in
    /// the way. How many questions there were; `None`: the space can't be had. Then they stay at
    /// the ring, which has room for as many as it has slots.
    pub(super) fn serve_ring(&mut self, space: &Arc<Space>) -> Option<usize> {
        let Some(ring) = space.uffd.ring().filter(|_| !space.is_dead()) else { return Some(0) };
        // One that was held up is tried though another worker has taken what was asked: it is to be
        // watched again.
        if !ring.is_asked() && !self.held_up.contains(&space.id) {
            return Some(0);
        }
        let Some(mut core) = self.core_of(space, |limit| space.core_concurrent(limit)) else {
            self.try_again(Again::Ring(space.clone()));
            return None;
        };
        let mut faults = std::mem::take(&mut self.faults);
        let since = Instant::now();
        ring.take(|question| {
            let (page, write, thread) = (PageIdx(question.page), question.write, question.thread);
            faults.push(Fault { page, write, thread, since, evictors: false });
        });
        let asked = faults.len();
        self.note_threads(space, &mut core, &faults);
        faults.drain(..).for_each(|fault| self.serve(space, &mut core, fault));
        self.faults = faults;
        Some(asked)
    }
}
