//! LIRS (Jiang and Zhang, SIGMETRICS 2002), which learns of faults alone: the pages whose last two
//! faults lie closest together stay; the others pass through a hundredth of the room.

use crate::policy::caches::Cache;
use crate::policy::caches::list::List;
use crate::policy::memory::Trace;

pub struct Lirs {
    /// By their last fault, most recent first: those that stay, and others that have come since the
    /// oldest of them, here or not.
    stack: List,
    /// Those that are here and may leave.
    passing: List,
    stays: Vec<bool>,
    staying: usize,
    room: usize,
}

impl Lirs {
    pub fn new(trace: &Trace, room: usize) -> Lirs {
        let new = || List::new(trace.end);
        Lirs { stack: new(), passing: new(), stays: vec![false; trace.end as usize], staying: 0, room }
    }

    fn most_staying(&self) -> usize {
        self.room - (self.room / 100).max(1)
    }

    /// Its last page is one that stays.
    fn prune(&mut self) {
        while let Some(page) = self.stack.last()
            && !self.stays[page as usize]
        {
            self.stack.pop_back();
        }
    }
}

impl Cache for Lirs {
    fn uses(&mut self, page: u32) -> bool {
        if self.stays[page as usize] || self.passing.contains(page) {
            return true;
        }
        if self.staying + self.passing.len() >= self.room && self.passing.pop_back().is_none() {
            // All stay: the one that has been there longest leaves.
            if let Some(oldest) = self.stack.pop_back() {
                self.stays[oldest as usize] = false;
                self.staying -= 1;
                self.prune();
            }
        }
        let is_recent = self.stack.remove(page);
        self.stack.push_front(page);
        if self.staying < self.most_staying() {
            self.stays[page as usize] = true;
            self.staying += 1;
        } else if is_recent {
            self.stays[page as usize] = true;
            if let Some(oldest) = self.stack.pop_back() {
                self.stays[oldest as usize] = false;
                self.passing.push_front(oldest);
            }
            self.prune();
        } else {
            self.passing.push_front(page);
        }
        false
    }

    fn forgets(&mut self, page: u32) {
        self.stack.remove(page);
        self.passing.remove(page);
        self.staying -= usize::from(std::mem::take(&mut self.stays[page as usize]));
        self.prune();
    }
}
