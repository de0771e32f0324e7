//! Least recently used, with knowledge of every use, and first in, first out.

use crate::policy::caches::Cache;
use crate::policy::caches::list::List;
use crate::policy::memory::Trace;

pub struct Lru {
    list: List,
    room: usize,
}

impl Lru {
    pub fn new(trace: &Trace, room: usize) -> Lru {
        Lru { list: List::new(trace.end), room }
    }
}

impl Cache for Lru {
    fn uses(&mut self, page: u32) -> bool {
        let hit = self.list.remove(page);
        if !hit && self.list.len() == self.room {
            self.list.pop_back();
        }
        self.list.push_front(page);
        hit
    }

    fn forgets(&mut self, page: u32) {
        self.list.remove(page);
    }
}

pub struct Fifo {
    list: List,
    room: usize,
}

impl Fifo {
    pub fn new(trace: &Trace, room: usize) -> Fifo {
        Fifo { list: List::new(trace.end), room }
    }
}

impl Cache for Fifo {
    fn uses(&mut self, page: u32) -> bool {
        let hit = self.list.contains(page);
        if !hit {
            if self.list.len() == self.room {
                self.list.pop_back();
            }
            self.list.push_front(page);
        }
        hit
    }

    fn forgets(&mut self, page: u32) {
        self.list.remove(page);
    }
}
