//! What a lane's owner asks and is told.

use super::buffer::Buf;
use crate::error::IoError;
use crate::metadata::slots::SlotRun;

/// The lane has too much under way: submit, poll and try again. Holds the buffer.
#[derive(Debug, thiserror::Error)]
#[error("the lane has too much under way")]
pub struct Busy(pub Buf);

/// One piece of a write: `run.count` pages of the buffer from page `at` go to the slots of `run`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    pub run: SlotRun,
    pub at: usize,
}

impl Part {
    /// The buffer's pages, from the first on, to the slots of these runs in their order.
    pub fn in_order(runs: &[SlotRun]) -> Vec<Part> {
        let mut at = 0;
        let part = |run: &SlotRun| {
            let part = Part { run: *run, at };
            at += run.count as usize;
            part
        };
        runs.iter().map(part).collect()
    }
}

/// A read or write that is completed.
#[derive(Debug)]
pub struct Done {
    pub token: u64,
    pub buf: Buf,
    pub result: Result<(), IoError>,
}
