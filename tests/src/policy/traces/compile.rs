//! A build: one compiler after the other, each with memory of its own that is gone at its end, and
//! beside them what all of them read and the linker's input, which grows.

use crate::policy::memory::{Array, Memory};
use crate::policy::traces::dice::{Dice, Zipf};

/// Pages of what all compilers read (headers, libraries' metadata).
const SHARED: usize = 4_000;
const UNITS: usize = 60;

pub fn build(memory: &Memory) {
    let mut dice = Dice(11);
    let mut shared: Array<u64> = memory.array(SHARED, 4096);
    (0..SHARED).for_each(|page| shared.set(page, 0));
    let zipf = Zipf::new(SHARED);
    let mut objects: Array<u64> = memory.array(UNITS * 120, 4096);
    for unit in 0..UNITS {
        let pages = 2_000 + dice.below(5_000);
        let mut own: Array<u64> = memory.array(pages, 4096);
        // The front end allocates as it reads.
        for page in 0..pages {
            own.set(page, 0);
            shared.reads((0..2).map(|_| zipf.scattered(&mut dice)));
            // What was declared before is looked up, mostly what is recent.
            for _ in 0..3 {
                let back = dice.below(page + 1).min(dice.below(page + 1));
                own.get(page - back);
            }
        }
        // Passes over function by function, each a few times, and references to anywhere.
        for function in (0..pages).step_by(40) {
            for _ in 0..3 {
                for page in function..(function + 40).min(pages) {
                    own.set(page, 1);
                    own.get(dice.below(pages));
                }
            }
        }
        (0..120).for_each(|page| objects.set(unit * 120 + page, 1));
        own.free();
    }
    for _ in 0..3 {
        objects.reads(0..objects.len());
    }
}
