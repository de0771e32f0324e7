//! Hash tables: a Redis that is asked by Zipf, and a Python program that counts words.

use crate::policy::memory::{Array, Memory};
use crate::policy::traces::dice::{Dice, Zipf, mix};

/// Values of 1 KiB behind a table of pointers and entries of 64 bytes; one of ten commands writes.
pub fn redis(memory: &Memory) {
    const KEYS: usize = 48_000;
    let mut dice = Dice(7);
    let mut table: Array<u64> = memory.array(KEYS.next_power_of_two(), 8);
    let (mut entries, mut values): (Array<u64>, Array<u64>) = (memory.array(KEYS, 64), memory.array(KEYS, 1024));
    let buckets = table.len();
    let bucket = |key: usize| mix(key as u64 + 99) as usize % buckets;
    for key in 0..KEYS {
        table.set(bucket(key), 1);
        entries.set(key, 1);
        values.set(key, 1);
    }
    let zipf = Zipf::new(KEYS);
    for _ in 0..400_000 {
        let key = zipf.scattered(&mut dice);
        table.get(bucket(key));
        entries.get(key);
        if dice.is_in(10) {
            values.set(key, 1);
        } else {
            values.get(key);
        }
    }
}

/// A `CPython` dict: an index that is looked at by hash, entries in the order of insertion, keys
/// and values as objects of their own. It grows by being copied. Then counts go up by Zipf, all of
/// it is gone through, and a third is deleted and inserted anew.
pub fn python(memory: &Memory) {
    const WORDS: usize = 300_000;
    let mut dice = Dice(8);
    let mut objects: Array<u64> = memory.array(WORDS, 120);
    let (mut index, mut entries): (Array<u64>, Array<u64>) = (memory.array(8, 4), memory.array(6, 24));
    let insert = |index: &mut Array<u64>, entries: &mut Array<u64>, word: usize, at: usize| {
        let slot = mix(word as u64) as usize % index.len();
        index.get(slot);
        index.set(slot, at as u64);
        entries.set(at, word as u64);
    };
    for word in 0..WORDS {
        if word == entries.len() {
            let len = index.len() * 2;
            let (mut larger, mut rows) = (memory.array(len, 4), memory.array(len * 2 / 3, 24));
            for at in 0..word {
                let known = entries.get(at) as usize;
                insert(&mut larger, &mut rows, known, at);
            }
            std::mem::replace(&mut index, larger).free();
            std::mem::replace(&mut entries, rows).free();
        }
        objects.set(word, word as u64);
        insert(&mut index, &mut entries, word, word);
    }
    let zipf = Zipf::new(WORDS);
    let count = |objects: &mut Array<u64>, dice: &mut Dice, times: usize| {
        for _ in 0..times {
            let word = zipf.scattered(dice);
            index.get(mix(word as u64) as usize % index.len());
            entries.get(word);
            let n = objects.get(word) + 1;
            objects.set(word, n);
        }
    };
    count(&mut objects, &mut dice, 300_000);
    for _ in 0..2 {
        (0..WORDS).for_each(|at| {
            let word = entries.get(at) as usize;
            objects.get(word);
        });
        count(&mut objects, &mut dice, 100_000);
    }
    // A list of references that is sorted by what they refer to.
    let mut list: Array<u64> = memory.array(WORDS, 8);
    (0..WORDS).for_each(|i| list.set(i, mix(i as u64) % WORDS as u64));
    let mut run = 64;
    while run < WORDS {
        for start in (0..WORDS).step_by(2 * run) {
            let (middle, end) = ((start + run).min(WORDS), (start + 2 * run).min(WORDS));
            for (left, right) in (start..middle).zip(middle..end) {
                objects.get(list.get(left) as usize);
                objects.get(list.get(right) as usize);
                list.set(left, left as u64);
            }
            // What that leaves is as scattered as before.
            (start..end).step_by(64).for_each(|i| list.set(i, mix(i as u64 + run as u64) % WORDS as u64));
        }
        run *= 8;
    }
}
