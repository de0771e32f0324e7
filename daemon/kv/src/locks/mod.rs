//! Locks on keys, for one thread: commands on different keys are under way together, commands on
//! one key one after the other.
//!
//! A command asks for all its keys *at once*, when it is dispatched, and takes its place in each
//! of their queues at that moment, whatever their database. So every queue holds commands in one
//! and the same order, the order of dispatch, which means that
//! - no two commands can wait for each other,
//! - a connection's commands on a key run in the order they were sent, even if one of them has
//!   other keys and still waits for those,
//! - nobody overtakes a waiting writer.
//!
//! A write that looks at nothing (SET without options) may be *deferred*: it is alone like any
//! write until its record is in the store's log ([`Ticket::appended`]), and from then on side by
//! side with other deferred writes, which come after it. So writes to one key need not wait for
//! each other's round trips.
//!
//! Three more locks stand for more than a key:
//! - *everything*: each command holds it for reading, one that must run alone (FLUSHALL) for
//!   writing;
//! - *survey*: who looks at all keys (KEYS, DBSIZE) reads, and who writes several keys, or more
//!   than once, is beside others who do; so nobody sees half of a transaction;
//! - *crowd*: see below.
//!
//! # Crowds
//! A large transaction has hundreds of thousands of keys. Its ticket has a set of them, which is
//! made in turns before it asks, and asks for all of them in one step: a key's lock is made, with
//! the crowd as its holder, when the next command asks for that key. There is one crowd at a time;
//! others wait for their turn.

mod lock;
mod table;
#[cfg(test)]
mod tests;

pub use lock::Mode;

use crate::turn;
use futures::future::poll_fn;
use lock::State;
use std::cell::{Cell, RefCell};
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::rc::Rc;
use std::task::{Context, Poll};
use table::{Crowd, Spot, Table};
use tokio::sync::Notify;

/// Keys, or words of a command, from which on it is a crowd.
pub const MANY: usize = 256;
/// So many long commands are waited for, at most, by who wants to run alone.
const PATIENCE: usize = 16;

#[derive(Clone, Default)]
pub struct Locks(Rc<Shared>);

#[derive(Default)]
struct Shared {
    table: RefCell<Table>,
    hasher: RandomState,
    /// Tickets of crowds and surveys.
    long: Cell<usize>,
    /// One of them is gone.
    fewer: Notify,
}

enum Wanted {
    Everything,
    Survey,
    /// The most common one by far, which needs no memory.
    One(u64),
    /// Sorted, each once.
    Several(Box<[u64]>),
    Crowd(Rc<Crowd>),
}

/// Locks that are held or waited for. Dropping it gives them back or leaves the queues.
pub struct Ticket {
    shared: Rc<Shared>,
    wanted: Wanted,
    mode: Mode,
    appended: Cell<bool>,
    /// The locks were given back already.
    released: Cell<bool>,
    /// `None`: all were free at once.
    state: Option<Rc<State>>,
}

impl Locks {
    /// Asks for a command's keys; if it has none, for a look at all keys.
    pub fn keys<'a>(&self, mut keys: impl Iterator<Item = &'a [u8]>, mode: Mode) -> Ticket {
        let first = keys.next().map(|key| self.hash(key));
        let wanted = match (first, keys.next()) {
            (None, _) => Wanted::Survey,
            (Some(first), None) => Wanted::One(first),
            (Some(first), Some(second)) => {
                let mut all = vec![first, self.hash(second)];
                all.extend(keys.map(|key| self.hash(key)));
                several(all)
            }
        };
        self.ask(wanted, mode)
    }

    /// Asks for keys, however many they are, that nobody else is to have in the midst of what is
    /// done with them. What `is_long` is a crowd, though its keys be few.
    pub async fn together<'a>(&self, keys: impl Iterator<Item = &'a [u8]>, mode: Mode, is_long: bool) -> Ticket {
        let mut hashes = Vec::new();
        for key in keys {
            hashes.push(self.hash(key));
            turn::pause().await;
        }
        if hashes.len() < MANY && !is_long {
            return self.ask(several(hashes), mode);
        }
        let mut crowd = Crowd::new(hashes.len(), mode);
        for hash in hashes {
            crowd.add(hash);
            turn::pause().await;
        }
        self.ask(Wanted::Crowd(Rc::new(crowd)), mode)
    }

    /// Whether one who asked to read these keys would be let in at once. Who reads them before
    /// anybody else has a turn need not ask.
    pub fn may_read<'a>(&self, mut keys: impl Iterator<Item = &'a [u8]>) -> bool {
        let table = self.0.table.borrow();
        table.may_read(Spot::Everything) && keys.all(|key| table.may_read(Spot::Key(self.hash(key))))
    }

    /// Asks for everything: no other command is under way then.
    pub fn everything(&self) -> Ticket {
        self.ask(Wanted::Everything, Mode::Write)
    }

    /// The same, which everybody else waits for, when no long command is under way: what comes
    /// meanwhile need not wait.
    pub async fn everything_soon(&self) -> Ticket {
        for _ in 0..PATIENCE {
            let fewer = self.0.fewer.notified();
            if self.0.long.get() == 0 {
                break;
            }
            fewer.await;
        }
        self.everything()
    }

    fn hash(&self, key: &[u8]) -> u64 {
        self.0.hasher.hash_one(key)
    }

    fn ask(&self, wanted: Wanted, mode: Mode) -> Ticket {
        let mut state = match &wanted {
            Wanted::Crowd(crowd) => Some(crowd.state.clone()),
            _ => None,
        };
        let mut ticket = Ticket {
            shared: self.0.clone(),
            wanted,
            mode,
            appended: Cell::default(),
            released: Cell::default(),
            state: None,
        };
        let mut table = self.0.table.borrow_mut();
        ticket.each(|spot, mode| table.ask(spot, mode, || state.get_or_insert_default().clone()));
        if let Wanted::Crowd(crowd) = &ticket.wanted {
            table.ask_crowd(crowd);
        }
        drop(table);
        if ticket.is_long() {
            self.0.long.set(self.0.long.get() + 1);
        }
        ticket.state = state;
        ticket
    }
}

fn several(mut hashes: Vec<u64>) -> Wanted {
    hashes.sort_unstable();
    hashes.dedup();
    Wanted::Several(hashes.into())
}

impl Ticket {
    /// Whether all the locks are held.
    pub fn is_granted(&self) -> bool {
        self.state.as_ref().is_none_or(|state| state.missing.get() == 0)
    }

    pub fn is_deferred(&self) -> bool {
        self.mode == Mode::Deferred
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

    /// The record of a deferred write is in the log: the next one may come in. All its locks are
    /// held.
    pub fn appended(&self) {
        if self.mode != Mode::Deferred || self.appended.replace(true) {
            return;
        }
        let mut table = self.shared.table.borrow_mut();
        self.each(|spot, mode| {
            if mode == Mode::Deferred {
                table.appended(spot);
            }
        });
    }

    /// Some keys, to read.
    pub fn is_read(&self) -> bool {
        self.mode == Mode::Read && matches!(self.wanted, Wanted::One(_) | Wanted::Several(_))
    }

    /// Gives the locks back, or leaves the queues.
    pub fn let_go(&self) {
        if self.released.replace(true) {
            return;
        }
        let mut table = self.shared.table.borrow_mut();
        if let Wanted::Crowd(crowd) = &self.wanted {
            table.leave_crowd(crowd);
        }
        self.each(|spot, mode| table.leave(spot, mode, self.appended.get(), self.state.as_ref()));
        drop(table);
        if self.is_long() {
            self.shared.long.set(self.shared.long.get() - 1);
            self.shared.fewer.notify_waiters();
        }
    }

    fn is_long(&self) -> bool {
        matches!(self.wanted, Wanted::Survey | Wanted::Crowd(_))
    }

    /// The locks it wants, but for a crowd's keys.
    fn each(&self, mut visit: impl FnMut(Spot, Mode)) {
        visit(Spot::Everything, if matches!(self.wanted, Wanted::Everything) { Mode::Write } else { Mode::Read });
        if let Wanted::One(hash) = self.wanted {
            return visit(Spot::Key(hash), self.mode);
        }
        match &self.wanted {
            Wanted::Survey => visit(Spot::Survey, Mode::Read),
            Wanted::Several(_) | Wanted::Crowd(_) if self.mode == Mode::Write => visit(Spot::Survey, Mode::Beside),
            _ => {}
        }
        match &self.wanted {
            Wanted::Several(hashes) => hashes.iter().for_each(|hash| visit(Spot::Key(*hash), self.mode)),
            Wanted::Crowd(_) => visit(Spot::Crowd, Mode::Write),
            _ => {}
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.let_go();
    }
}
