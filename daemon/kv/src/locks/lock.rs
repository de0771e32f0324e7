//! One lock and those who wait for it, in the order in which they asked.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::task::Waker;

/// What a command does with its keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Read,
    Write,
    /// A write that looks at nothing: alone until its record is in the log, then beside others of
    /// its kind.
    Deferred,
    /// Beside others of its kind, and nobody else.
    Beside,
}

#[derive(Default)]
pub struct Lock {
    readers: u32,
    writer: bool,
    /// Deferred writes whose records are in the log, or others of one kind.
    beside: u32,
    queue: VecDeque<Waiting>,
}

struct Waiting {
    mode: Mode,
    ticket: Rc<State>,
}

/// Of a ticket that waits, or has waited.
#[derive(Default)]
pub struct State {
    /// Locks this ticket is queued for.
    pub missing: Cell<u32>,
    pub waker: RefCell<Option<Waker>>,
}

impl Lock {
    /// Takes the lock, or a place in its queue.
    pub fn ask(&mut self, mode: Mode, ticket: impl FnOnce() -> Rc<State>) {
        if self.lets_in(mode) {
            self.take(mode);
        } else {
            let ticket = ticket();
            ticket.missing.set(ticket.missing.get() + 1);
            self.queue.push_back(Waiting { mode, ticket });
        }
    }

    /// Whether one who asked now would not have to wait.
    pub fn lets_in(&self, mode: Mode) -> bool {
        self.queue.is_empty() && self.is_free(mode)
    }

    /// Nobody holds it or waits for it.
    pub fn is_idle(&self) -> bool {
        self.readers == 0 && !self.writer && self.beside == 0 && self.queue.is_empty()
    }

    /// The record of a deferred write is in the log.
    pub fn appended(&mut self) {
        self.writer = false;
        self.beside += 1;
        self.admit();
    }

    /// The lock, or the place in its queue, of a ticket that goes.
    pub fn leave(&mut self, mode: Mode, appended: bool, ticket: Option<&Rc<State>>) {
        let position = ticket
            .filter(|ticket| ticket.missing.get() > 0)
            .and_then(|ticket| self.queue.iter().position(|waiting| Rc::ptr_eq(&waiting.ticket, ticket)));
        match position {
            Some(position) => drop(self.queue.remove(position)),
            None => self.give_back(mode, appended),
        }
        if !self.queue.is_empty() {
            self.admit();
        }
    }

    fn is_free(&self, mode: Mode) -> bool {
        let is_still = !self.writer && self.readers == 0;
        match mode {
            Mode::Read => !self.writer && self.beside == 0,
            Mode::Write => is_still && self.beside == 0,
            Mode::Deferred | Mode::Beside => is_still,
        }
    }

    fn take(&mut self, mode: Mode) {
        match mode {
            Mode::Read => self.readers += 1,
            Mode::Write | Mode::Deferred => self.writer = true,
            Mode::Beside => self.beside += 1,
        }
    }

    fn give_back(&mut self, mode: Mode, appended: bool) {
        match mode {
            Mode::Read => self.readers -= 1,
            Mode::Deferred if appended => self.beside -= 1,
            Mode::Write | Mode::Deferred => self.writer = false,
            Mode::Beside => self.beside -= 1,
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
