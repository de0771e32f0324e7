//! Plain patterns over arrays, and a blocked matrix product.

use crate::policy::memory::{Array, Memory};
use crate::policy::traces::dice::{Dice, Zipf};

const PAGE: u64 = 4096;
const PAGES: usize = 16_384;

fn pages(memory: &Memory, len: usize) -> Array<u64> {
    let mut array = memory.array(len, PAGE);
    (0..len).for_each(|i| array.set(i, 0));
    array
}

/// The same pages in the same order, twenty times.
pub fn plain_loop(memory: &Memory) {
    let array = pages(memory, PAGES);
    for _ in 0..20 {
        array.reads(0..PAGES);
    }
}

pub fn uniform(memory: &Memory) {
    let (array, mut dice) = (pages(memory, PAGES), Dice(1));
    array.reads((0..30 * PAGES).map(|_| dice.below(PAGES)));
}

/// A table that is scanned again and again, and another of a quarter of all whose rows are looked
/// up by Zipf: two look-ups for each page of the scan.
pub fn scan_and_points(memory: &Memory) {
    let (scanned, points) = (pages(memory, PAGES / 4 * 3), pages(memory, PAGES / 4));
    let (mut dice, zipf) = (Dice(2), Zipf::new(points.len()));
    for _ in 0..15 {
        for i in 0..scanned.len() {
            scanned.get(i);
            points.get(zipf.scattered(&mut dice));
            points.get(zipf.scattered(&mut dice));
        }
    }
}

/// One half by Zipf, then the other.
pub fn phase_change(memory: &Memory) {
    let halves = [pages(memory, PAGES / 2), pages(memory, PAGES / 2)];
    let (mut dice, zipf) = (Dice(3), Zipf::new(PAGES / 2));
    for half in halves {
        memory.next_phase();
        half.reads((0..20 * PAGES).map(|_| zipf.scattered(&mut dice)));
    }
}

/// `a * b` by blocks of 128 by 128; rows of 1536 numbers.
pub fn multiply(memory: &Memory) {
    const N: usize = 1536;
    const BLOCK: usize = 128;
    let new = || memory.array::<f64>(N * N, 8);
    let (mut a, mut b, mut c) = (new(), new(), new());
    for i in 0..N * N {
        a.set(i, i as f64);
        b.set(i, 1.0);
    }
    let rows = |block: usize| block..block + BLOCK;
    for i_block in (0..N).step_by(BLOCK) {
        for j_block in (0..N).step_by(BLOCK) {
            for k_block in (0..N).step_by(BLOCK) {
                for i in rows(i_block) {
                    // A block's row lies on one page or two: its ends are enough.
                    for k in [k_block, k_block + BLOCK - 1] {
                        a.get(i * N + k);
                    }
                    for j in [j_block, j_block + BLOCK - 1] {
                        let sum = c.get(i * N + j) + 1.0;
                        c.set(i * N + j, sum);
                    }
                    if i == i_block {
                        for k in rows(k_block) {
                            b.get(k * N + j_block);
                            b.get(k * N + j_block + BLOCK - 1);
                        }
                    }
                }
            }
        }
    }
}
