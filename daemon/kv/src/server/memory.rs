//! The account of what clients make annexd hold, and who waits for room. What becomes of it is
//! told in `budget`.

use super::Client;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Instant;

#[derive(Default)]
pub struct Memory {
    pub(super) held: Cell<usize>,
    /// Who waits for room, in the order in which they asked.
    pub(super) waiting: RefCell<VecDeque<Waiting>>,
}

pub(super) struct Waiting {
    pub client: Rc<Client>,
    pub bytes: usize,
    /// When it came to be where it is.
    pub since: Instant,
}

/// The answer to a wish for memory.
#[derive(Debug, PartialEq, Eq)]
pub enum MemoryGrant {
    Granted,
    /// The client is woken when it may ask again.
    Later,
}

impl Memory {
    /// Bytes that clients make annexd hold.
    pub fn held(&self) -> usize {
        self.held.get()
    }

    pub(super) fn wait(&self, client: &Rc<Client>, bytes: usize) {
        let mut waiting = self.waiting.borrow_mut();
        if !waiting.iter().any(|waiting| waiting.client.id == client.id) {
            waiting.push_back(Waiting { client: client.clone(), bytes, since: Instant::now() });
        }
    }

    /// Nobody waits for this client any more, nor it for anything.
    pub(super) fn leave(&self, client: &Client) {
        let mut waiting = self.waiting.borrow_mut();
        if !waiting.is_empty() {
            let was_first = waiting.front().is_some_and(|first| first.client.id == client.id);
            waiting.retain(|waiting| waiting.client.id != client.id);
            if was_first && let Some(first) = waiting.front_mut() {
                first.since = Instant::now();
                first.client.wake();
            }
        }
    }
}
