//! A fault, and why pages are installed.

use crate::page::PageIdx;
use std::time::Instant;

/// A thread of the app that waits for a page.
#[derive(Clone, Copy, Debug)]
pub struct Fault {
    pub page: PageIdx,
    pub write: bool,
    /// Its ID in its own PID namespace.
    pub thread: i32,
    /// When a worker woke up because of it.
    pub since: Instant,
    /// The evictor itself waits for it: it must not be made to wait for eviction.
    pub evictors: bool,
}

impl Fault {
    /// What its page is installed for.
    pub fn why(self) -> Why {
        if self.write { Why::Write(self.page) } else { Why::Read(self.page) }
    }

    /// Nobody waits; but whether the page is there must be found out.
    pub fn suspected(page: PageIdx) -> Fault {
        Fault { page, write: false, thread: 0, since: Instant::now(), evictors: true }
    }
}

/// Why pages are installed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// This page is waited for, to be read: pages keep their pool copies and are watched for
    /// writes.
    Read(PageIdx),
    /// This page is about to be written.
    Write(PageIdx),
    /// Nobody waits for them, as far as is known.
    Ahead,
    /// The app is being let go: nothing of the pages stays in the pool.
    Restore,
}
