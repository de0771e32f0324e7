//! S3-FIFO (Yang and others, SOSP 2023) without its use counts: a page that comes is on probation
//! in a tenth of the room; one that comes back while it is remembered goes into the main queue.

use crate::policy::caches::Cache;
use crate::policy::caches::list::List;
use crate::policy::memory::Trace;

pub struct S3Fifo {
    small: List,
    main: List,
    ghosts: List,
    room: usize,
}

impl S3Fifo {
    pub fn new(trace: &Trace, room: usize) -> S3Fifo {
        let new = || List::new(trace.end);
        S3Fifo { small: new(), main: new(), ghosts: new(), room }
    }

    fn make_room(&mut self) {
        let from_small = self.small.len() > self.room / 10 || self.main.len() == 0;
        if !from_small {
            self.main.pop_back();
        } else if let Some(page) = self.small.pop_back() {
            if self.ghosts.len() >= self.room {
                self.ghosts.pop_back();
            }
            self.ghosts.push_front(page);
        }
    }
}

impl Cache for S3Fifo {
    fn uses(&mut self, page: u32) -> bool {
        if self.small.contains(page) || self.main.contains(page) {
            return true;
        }
        let was_here = self.ghosts.remove(page);
        if self.small.len() + self.main.len() >= self.room {
            self.make_room();
        }
        let queue = if was_here { &mut self.main } else { &mut self.small };
        queue.push_front(page);
        false
    }

    fn forgets(&mut self, page: u32) {
        for list in [&mut self.small, &mut self.main, &mut self.ghosts] {
            list.remove(page);
        }
    }
}
