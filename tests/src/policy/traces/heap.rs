//! A heap with generations: objects are made in a nursery, which is used from end to end and then
//! emptied by copying what lives into the old part. The old part is marked and compacted when it is
//! full.

use crate::policy::memory::{Array, Memory};
use crate::policy::traces::dice::{Dice, Zipf};

const OBJECT: u64 = 128;
const NURSERY: usize = 60_000;
const OLD: usize = 380_000;

pub fn generations(memory: &Memory) {
    let mut dice = Dice(9);
    // What an object refers to, in the old part.
    let mut nursery: Array<u32> = memory.array(NURSERY, OBJECT);
    let mut old: Array<u32> = memory.array(OLD, OBJECT);
    let mut marks: Array<u8> = memory.array(OLD, 1);
    let zipf = Zipf::new(OLD / 2);
    let mut used = 0;
    // The program's data: most of what is old.
    while used < OLD / 2 {
        old.set(used, dice.below(OLD / 2) as u32);
        used += 1;
    }
    for _ in 0..40 {
        for i in 0..NURSERY {
            nursery.set(i, dice.below(used) as u32);
            if dice.is_in(4) {
                let object = zipf.scattered(&mut dice);
                let next = old.get(object);
                old.get(next as usize);
                if dice.is_in(8) {
                    old.set(object, dice.below(OLD / 2) as u32);
                }
            }
        }
        // One of eight survives, mostly the young ones.
        for i in (0..NURSERY).filter(|i| i % 8 == 0) {
            let object = nursery.get(i);
            if used == OLD {
                used = collect(&mut old, &mut marks);
            }
            old.set(used, object);
            used += 1;
        }
    }
}

/// Marks from object to object, then slides what lives together.
fn collect(old: &mut Array<u32>, marks: &mut Array<u8>) -> usize {
    (0..OLD).for_each(|i| marks.set(i, 0));
    for root in 0..OLD {
        let mut object = root;
        while marks.get(object) == 0 {
            marks.set(object, 1);
            object = old.get(object) as usize;
        }
    }
    let kept = OLD / 2 + OLD / 16;
    for (to, from) in (OLD / 2..kept).zip((OLD / 2..OLD).step_by(8)) {
        let object = old.get(from);
        old.set(to, object);
    }
    kept
}
