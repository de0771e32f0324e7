//! Belady's optimum: the page leaves that is wanted last.

use crate::policy::memory::{Step, Trace};
use std::collections::BinaryHeap;

/// Its misses of pages that had been there before.
pub fn opt(trace: &Trace, room: usize) -> u64 {
    let next = next_uses(trace);
    let end = trace.end as usize;
    // When each page that is there is wanted next; 0: it is not there.
    let (mut wanted, mut is_known) = (vec![0u32; end], vec![false; end]);
    let mut latest = BinaryHeap::new();
    let (mut here, mut misses) = (0, 0);
    for (step, next) in trace.steps().zip(next) {
        match step {
            Step::Gone(page) => {
                here -= usize::from(std::mem::take(&mut wanted[page as usize]) != 0);
                is_known[page as usize] = false;
            }
            Step::Read(page) | Step::Write(page) => {
                if wanted[page as usize] == 0 {
                    misses += u64::from(is_known[page as usize]);
                    is_known[page as usize] = true;
                    if here == room {
                        let leaves = loop {
                            let (at, page): (u32, u32) = latest.pop().expect("a page for each place");
                            // Others have been used since, and stand there again.
                            if wanted[page as usize] == at {
                                break page;
                            }
                        };
                        wanted[leaves as usize] = 0;
                    } else {
                        here += 1;
                    }
                }
                wanted[page as usize] = next;
                latest.push((next, page));
            }
        }
    }
    misses
}

/// At each step, the number of the step that uses the same page next. Never is `u32::MAX`.
fn next_uses(trace: &Trace) -> Vec<u32> {
    let mut at = vec![u32::MAX; trace.end as usize];
    let mut next = vec![u32::MAX; trace.len()];
    for (i, step) in trace.steps().enumerate().rev() {
        match step {
            Step::Gone(page) => at[page as usize] = u32::MAX,
            Step::Read(page) | Step::Write(page) => next[i] = std::mem::replace(&mut at[page as usize], i as u32),
        }
    }
    next
}
