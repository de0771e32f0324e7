//! Sorting 4 to 6 million numbers.

use crate::policy::memory::{Array, Memory};
use crate::policy::traces::dice::Dice;

fn numbers(memory: &Memory, len: usize) -> Array<u64> {
    let (mut array, mut dice) = (memory.array(len, 8), Dice(6));
    (0..len).for_each(|i| array.set(i, dice.roll()));
    array
}

/// Bottom up, from runs of 4096 that were sorted before, between two arrays.
pub fn merge_sort(memory: &Memory) {
    const LEN: usize = 4 << 20;
    let (mut from, mut to) = (numbers(memory, LEN), memory.array(LEN, 8));
    let mut run = 4096;
    for start in (0..LEN).step_by(run) {
        let mut sorted: Vec<u64> = (start..start + run).map(|i| from.get(i)).collect();
        sorted.sort_unstable();
        sorted.into_iter().enumerate().for_each(|(i, n)| from.set(start + i, n));
    }
    while run < LEN {
        for start in (0..LEN).step_by(2 * run) {
            let (middle, end) = ((start + run).min(LEN), (start + 2 * run).min(LEN));
            let (mut left, mut right) = (start, middle);
            for i in start..end {
                let is_left = right == end || (left < middle && from.get(left) <= from.get(right));
                let next = if is_left { &mut left } else { &mut right };
                to.set(i, from.get(*next));
                *next += 1;
            }
        }
        std::mem::swap(&mut from, &mut to);
        run *= 2;
    }
    assert!((1..LEN).step_by(999).all(|i| from.get(i - 1) <= from.get(i)));
}

pub fn quick_sort(memory: &Memory) {
    const LEN: usize = 6 << 20;
    let mut array = numbers(memory, LEN);
    let mut parts = vec![(0, LEN)];
    while let Some((start, end)) = parts.pop() {
        // Smaller ones lie on two pages at most, and are sorted where they are.
        if end - start <= 512 {
            if start < end {
                let mut sorted: Vec<u64> = (start..end).map(|i| array.get(i)).collect();
                sorted.sort_unstable();
                sorted.into_iter().enumerate().for_each(|(i, n)| array.set(start + i, n));
            }
            continue;
        }
        let mut ends = [array.get(start), array.get(start + (end - start) / 2), array.get(end - 1)];
        ends.sort_unstable();
        let pivot = ends[1];
        let (mut left, mut right) = (start, end - 1);
        loop {
            while array.get(left) < pivot {
                left += 1;
            }
            while array.get(right) > pivot {
                right -= 1;
            }
            if left >= right {
                break;
            }
            array.swap(left, right);
            left += 1;
            right -= 1;
        }
        parts.push((left, end));
        parts.push((start, left));
    }
    assert!((1..LEN).step_by(999).all(|i| array.get(i - 1) <= array.get(i)));
}
