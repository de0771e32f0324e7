//! Which of a connector's connections have ended on this side, while the agent may still execute
//! something for them.
//!
//! A connector asks the agent to end those (a *fence*) before it opens the next: whoever writes
//! anew what an earlier connection left undone must not be overtaken by it.

use parking_lot::Mutex;
use std::sync::Arc;

/// The numbers of a connector's connections.
#[derive(Debug, Default)]
pub(super) struct Ledger(Mutex<Numbers>);

#[derive(Debug, Default)]
struct Numbers {
    live: usize,
    /// Closed on this side and not fenced yet.
    ended: Vec<u64>,
}

impl Ledger {
    /// With connections that have ended from the start.
    pub(super) fn new(ended: Vec<u64>) -> Ledger {
        Ledger(Mutex::new(Numbers { live: 0, ended }))
    }

    pub(super) fn ended(&self) -> Vec<u64> {
        self.0.lock().ended.clone()
    }

    pub(super) fn fenced(&self, number: u64) {
        self.0.lock().ended.retain(|n| *n != number);
    }
}

/// A connection's number, entered in the ledger as ended when this is dropped.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) number: u64,
    ledger: Arc<Ledger>,
}

impl Link {
    /// A connection begins. Room for its end is made now, since endpoints end on threads that don't
    /// allocate.
    pub(super) fn new(number: u64, ledger: Arc<Ledger>) -> Link {
        {
            let mut numbers = ledger.0.lock();
            numbers.live += 1;
            let room = numbers.live;
            numbers.ended.reserve(room);
        }
        Link { number, ledger }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        let mut numbers = self.ledger.0.lock();
        numbers.live -= 1;
        numbers.ended.push(self.number);
    }
}
