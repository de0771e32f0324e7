//! DIP (Qureshi and others, ISCA 2007), which learns of faults alone: some pages always come in at
//! the far end of the queue (FIFO), some nearly always at the near one (BIP: what is there stays);
//! all others do as the kind that misses less.

use crate::policy::caches::Cache;
use crate::policy::caches::list::List;
use crate::policy::memory::Trace;

/// One of so many pages is of each kind.
const ONE_IN: u32 = 32;
/// BIP lets one of so many in at the far end.
const FAR_ONE_IN: u32 = 32;
const MOST: i32 = 1024;

pub struct Dip {
    queue: List,
    room: usize,
    /// Above 0: FIFO misses more.
    balance: i32,
    misses: u32,
}

impl Dip {
    pub fn new(trace: &Trace, room: usize) -> Dip {
        Dip { queue: List::new(trace.end), room, balance: 0, misses: 0 }
    }
}

impl Cache for Dip {
    fn uses(&mut self, page: u32) -> bool {
        if self.queue.contains(page) {
            return true;
        }
        if self.queue.len() == self.room {
            self.queue.pop_back();
        }
        self.misses = self.misses.wrapping_add(1);
        let kind = page.wrapping_mul(0x9e37_79b1) >> 16;
        let keeps_all = match kind % ONE_IN {
            0 => {
                self.balance = (self.balance + 1).min(MOST);
                false
            }
            1 => {
                self.balance = (self.balance - 1).max(-MOST);
                true
            }
            _ => self.balance > 0,
        };
        if keeps_all && !self.misses.is_multiple_of(FAR_ONE_IN) {
            self.queue.push_back(page);
        } else {
            self.queue.push_front(page);
        }
        false
    }

    fn forgets(&mut self, page: u32) {
        self.queue.remove(page);
    }
}
