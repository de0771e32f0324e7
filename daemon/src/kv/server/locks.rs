//! Locks on keys, for one thread: commands on different keys are under way together, commands on one key one after the
//! other.
//!
//! A key belongs to one of [`STRIPES`] stripes, whatever its database. A command asks for all its stripes *at once*,
//! when it is dispatched, and takes its place in each of their queues at that moment. So every queue holds commands in
//! one and the same order, the order of dispatch, which means that
//! - no two commands can wait for each other,
//! - a connection's commands on a key run in the order they were sent, even if one of them has other keys and still
//!   waits for those,
//! - nobody overtakes a waiting writer.
//!
//! A write that looks at nothing (SET without options) is a *placement*: alone like any write until it has its place in the store's log ([`Ticket::placed`]), and
//! from then on side by side with other placements, which come after it. So writes to one key need not wait for each other's round trips.
//!
//! One more stripe stands for everything: each command holds it for reading, one that must run alone (FLUSHALL, EXEC)
//! for writing.
//!
//! This does what a table of `tokio::sync::RwLock` would, but for two things: those take their place when they are
//! first polled, one after the other, and they cost atomic operations, of which a single thread needs none.

use futures::future::poll_fn;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

const STRIPES: u64 = 4096;
/// The stripe that stands for everything.
const EVERYTHING: u16 = 0;

#[derive(Clone)]
pub struct Locks(Rc<Table>);

struct Table {
    stripes: RefCell<Vec<Stripe>>,
    hasher: RandomState,
}

#[derive(Default)]
struct Stripe {
    readers: u32,
    writer: bool,
    /// Placements that have their place.
    placed: u32,
    queue: VecDeque<Waiting>,
}

/// What a command does with its keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Read,
    Write,
    Place,
}

struct Waiting {
    mode: Mode,
    ticket: Rc<State>,
}

#[derive(Default)]
struct State {
    /// Stripes this ticket is queued for.
    missing: Cell<u32>,
    waker: RefCell<Option<Waker>>,
}

enum Wanted {
    Nothing,
    Everything,
    /// The most common one by far, which needs no memory.
    One(u16),
    /// Sorted, each once.
    Many(Box<[u16]>),
}

/// Locks that are held or waited for. Dropping it gives them back or leaves the queues.
pub struct Ticket {
    table: Rc<Table>,
    wanted: Wanted,
    mode: Mode,
    placed: Cell<bool>,
    /// `None`: all were free at once.
    state: Option<Rc<State>>,
}

impl Default for Locks {
    fn default() -> Locks {
        let stripes = (0..=STRIPES).map(|_| Stripe::default()).collect();
        Locks(Rc::new(Table { stripes: RefCell::new(stripes), hasher: RandomState::new() }))
    }
}

impl Locks {
    /// Asks for a command's keys.
    pub fn keys<'a>(&self, mut keys: impl Iterator<Item = &'a [u8]>, mode: Mode) -> Ticket {
        let first = keys.next().map(|key| self.stripe(key));
        let wanted = match (first, keys.next()) {
            (None, _) => Wanted::Nothing,
            (Some(first), None) => Wanted::One(first),
            (Some(first), Some(second)) => {
                let mut all = vec![first, self.stripe(second)];
                all.extend(keys.map(|key| self.stripe(key)));
                all.sort_unstable();
                all.dedup();
                Wanted::Many(all.into())
            }
        };
        self.ask(wanted, mode)
    }

    /// Whether one who asked to read these keys would be let in at once. Who reads them before anybody else has a turn need not ask.
    pub fn may_read<'a>(&self, mut keys: impl Iterator<Item = &'a [u8]>) -> bool {
        let stripes = self.0.stripes.borrow();
        let is_free = |index: u16| {
            let stripe = &stripes[usize::from(index)];
            stripe.queue.is_empty() && stripe.is_free(Mode::Read)
        };
        is_free(EVERYTHING) && keys.all(|key| is_free(self.stripe(key)))
    }

    /// Asks for everything: no other command is under way then.
    pub fn everything(&self) -> Ticket {
        self.ask(Wanted::Everything, Mode::Write)
    }

    fn stripe(&self, key: &[u8]) -> u16 {
        (self.0.hasher.hash_one(key) % STRIPES) as u16 + 1
    }

    fn ask(&self, wanted: Wanted, mode: Mode) -> Ticket {
        let mut ticket = Ticket { table: self.0.clone(), wanted, mode, placed: Cell::new(false), state: None };
        let mut stripes = self.0.stripes.borrow_mut();
        let mut state = None;
        ticket.each(|index, mode| {
            let stripe = &mut stripes[usize::from(index)];
            if stripe.queue.is_empty() && stripe.is_free(mode) {
                stripe.take(mode);
            } else {
                let ticket: &Rc<State> = state.get_or_insert_default();
                ticket.missing.set(ticket.missing.get() + 1);
                stripe.queue.push_back(Waiting { mode, ticket: ticket.clone() });
            }
        });
        ticket.state = state;
        drop(stripes);
        ticket
    }
}

impl Stripe {
    fn is_free(&self, mode: Mode) -> bool {
        let is_still = !self.writer && self.readers == 0;
        match mode {
            Mode::Read => !self.writer && self.placed == 0,
            Mode::Write => is_still && self.placed == 0,
            Mode::Place => is_still,
        }
    }

    fn take(&mut self, mode: Mode) {
        match mode {
            Mode::Read => self.readers += 1,
            Mode::Write | Mode::Place => self.writer = true,
        }
    }

    fn give_back(&mut self, mode: Mode, placed: bool) {
        match mode {
            Mode::Read => self.readers -= 1,
            Mode::Place if placed => self.placed -= 1,
            Mode::Write | Mode::Place => self.writer = false,
        }
    }

    /// Lets in whoever may go now, in order.
    fn admit(&mut self) {
        while let Some(waiting) = self.queue.front()
            && self.is_free(waiting.mode)
            && let Some(waiting) = self.queue.pop_front()
        {
            self.take(waiting.mode);
            let missing = waiting.ticket.missing.get() - 1;
            waiting.ticket.missing.set(missing);
            if missing == 0
                && let Some(waker) = waiting.ticket.waker.take()
            {
                waker.wake();
            }
        }
    }
}

impl Ticket {
    /// Whether all the locks are held.
    pub fn is_granted(&self) -> bool {
        self.state.as_ref().is_none_or(|state| state.missing.get() == 0)
    }

    pub fn is_placement(&self) -> bool {
        self.mode == Mode::Place
    }

    /// Waits until all the locks are held.
    pub async fn granted(&self) {
        if !self.is_granted() {
            poll_fn(|context| self.poll_granted(context)).await;
        }
    }

    fn poll_granted(&self, context: &mut Context<'_>) -> Poll<()> {
        match &self.state {
            Some(state) if state.missing.get() > 0 => {
                state.waker.replace(Some(context.waker().clone()));
                Poll::Pending
            }
            _ => Poll::Ready(()),
        }
    }

    /// A placement has its place: the next one may come in. All its locks are held.
    pub fn placed(&self) {
        if self.mode != Mode::Place || self.placed.replace(true) {
            return;
        }
        let mut stripes = self.table.stripes.borrow_mut();
        self.each(|index, mode| {
            if mode == Mode::Place {
                let stripe = &mut stripes[usize::from(index)];
                stripe.writer = false;
                stripe.placed += 1;
                stripe.admit();
            }
        });
    }

    fn each(&self, mut visit: impl FnMut(u16, Mode)) {
        visit(EVERYTHING, if matches!(self.wanted, Wanted::Everything) { Mode::Write } else { Mode::Read });
        match &self.wanted {
            Wanted::Nothing | Wanted::Everything => {}
            Wanted::One(stripe) => visit(*stripe, self.mode),
            Wanted::Many(stripes) => stripes.iter().for_each(|stripe| visit(*stripe, self.mode)),
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut stripes = self.table.stripes.borrow_mut();
        self.each(|index, mode| {
            let stripe = &mut stripes[usize::from(index)];
            let place = match &self.state {
                Some(state) if state.missing.get() > 0 => {
                    stripe.queue.iter().position(|waiting| Rc::ptr_eq(&waiting.ticket, state))
                }
                _ => None,
            };
            match place {
                Some(place) => {
                    stripe.queue.remove(place);
                }
                None => stripe.give_back(mode, self.placed.get()),
            }
            if !stripe.queue.is_empty() {
                stripe.admit();
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(locks: &Locks, keys: &[&str], write: bool) -> Ticket {
        locks.keys(keys.iter().map(|key| key.as_bytes()), if write { Mode::Write } else { Mode::Read })
    }

    #[test]
    fn placements_follow_each_other_and_nobody_else_comes_between() {
        let locks = Locks::default();
        let place = || locks.keys([&b"a"[..]].into_iter(), Mode::Place);
        let (first, second) = (place(), place());
        assert!(first.is_granted() && !second.is_granted());
        first.placed();
        assert!(second.is_granted());
        second.placed();
        let reader = keys(&locks, &["a"], false);
        let third = place();
        assert!(!reader.is_granted() && !third.is_granted());
        drop(first);
        assert!(!reader.is_granted());
        drop(second);
        assert!(reader.is_granted() && !third.is_granted());
        drop(reader);
        assert!(third.is_granted());
        let writer = keys(&locks, &["a"], true);
        third.placed();
        assert!(!writer.is_granted());
        drop(third);
        assert!(writer.is_granted());
    }

    #[test]
    fn who_need_not_ask_to_read_is_who_would_be_let_in_at_once() {
        let locks = Locks::default();
        let may = || locks.may_read([&b"a"[..]].into_iter());
        let reader = keys(&locks, &["a"], false);
        assert!(may());
        let writer = keys(&locks, &["a"], true);
        assert!(!may(), "a writer waits");
        drop(reader);
        assert!(!may() && locks.may_read([&b"b"[..]].into_iter()));
        drop(writer);
        let placement = locks.keys([&b"a"[..]].into_iter(), Mode::Place);
        assert!(!may());
        placement.placed();
        assert!(!may(), "a placement is on its way");
        drop(placement);
        assert!(may());
        let alone = locks.everything();
        assert!(!may());
        drop(alone);
        assert!(may());
    }

    #[test]
    fn a_placement_that_ends_without_a_place_lets_the_next_one_in() {
        let locks = Locks::default();
        let place = || locks.keys([&b"a"[..]].into_iter(), Mode::Place);
        let (first, second) = (place(), place());
        drop(first);
        assert!(second.is_granted());
    }

    #[test]
    fn readers_share_a_key_and_a_writer_does_not() {
        let locks = Locks::default();
        let (first, second) = (keys(&locks, &["a"], false), keys(&locks, &["a"], false));
        let writer = keys(&locks, &["a"], true);
        assert!(first.is_granted() && second.is_granted() && !writer.is_granted());
        drop((first, second));
        assert!(writer.is_granted());
    }

    #[test]
    fn a_reader_does_not_overtake_a_waiting_writer() {
        let locks = Locks::default();
        let first = keys(&locks, &["a"], false);
        let writer = keys(&locks, &["a"], true);
        let late = keys(&locks, &["a"], false);
        assert!(!late.is_granted());
        drop(first);
        assert!(writer.is_granted() && !late.is_granted());
        drop(writer);
        assert!(late.is_granted());
    }

    #[test]
    fn a_command_that_waits_for_one_key_has_its_place_at_the_others_too() {
        let locks = Locks::default();
        let holder = keys(&locks, &["a"], true);
        let both = keys(&locks, &["a", "b"], true);
        let after = keys(&locks, &["b"], false);
        assert!(!both.is_granted() && !after.is_granted());
        drop(holder);
        assert!(both.is_granted() && !after.is_granted());
    }

    #[test]
    fn a_command_that_is_given_up_lets_those_behind_it_pass() {
        let locks = Locks::default();
        let reader = keys(&locks, &["a"], false);
        let writer = keys(&locks, &["a"], true);
        let late = keys(&locks, &["a"], false);
        drop(writer);
        assert!(late.is_granted());
        drop((reader, late));
        assert!(keys(&locks, &["a"], true).is_granted());
    }

    #[test]
    fn the_same_key_twice_is_one_lock() {
        let locks = Locks::default();
        assert!(keys(&locks, &["a", "a", "a"], true).is_granted());
        assert!(keys(&locks, &["a"], true).is_granted());
    }

    #[test]
    fn a_command_that_runs_alone_waits_for_all_and_holds_up_all() {
        let locks = Locks::default();
        let running = keys(&locks, &["a"], false);
        let alone = locks.everything();
        let late = keys(&locks, &["b"], false);
        assert!(!alone.is_granted() && !late.is_granted());
        drop(running);
        assert!(alone.is_granted() && !late.is_granted());
        drop(alone);
        assert!(late.is_granted());
    }

    #[tokio::test]
    async fn a_waiting_command_is_woken() {
        let locks = Locks::default();
        let first = locks.everything();
        let second = keys(&locks, &["a"], true);
        let (_, ()) = tokio::join!(second.granted(), async {
            tokio::task::yield_now().await;
            drop(first);
        });
        assert!(second.is_granted());
    }
}
