//! A table and an index as B+ trees of pages of 4 KiB, all of it cached: queries through the index
//! by Zipf, ranges, updates, and now and then a query that reads the whole table.

use crate::policy::memory::{Array, Memory};
use crate::policy::traces::dice::{Dice, Zipf, mix};

/// Keys of an inner page, rows of a leaf of the table, entries of a leaf of the index.
const FANOUT: usize = 128;
const ROWS: usize = 24;
const ENTRIES: usize = 160;

struct Tree {
    /// From the root down.
    levels: Vec<Array<u64>>,
    of_a_leaf: usize,
}

impl Tree {
    fn new(memory: &Memory, rows: usize, of_a_leaf: usize) -> Tree {
        let mut pages = rows.div_ceil(of_a_leaf);
        let mut levels = vec![memory.array(pages, 4096)];
        while pages > 1 {
            pages = pages.div_ceil(FANOUT);
            levels.insert(0, memory.array(pages, 4096));
        }
        for level in &mut levels {
            (0..level.len()).for_each(|page| level.set(page, 0));
        }
        Tree { levels, of_a_leaf }
    }

    /// Goes down to the leaf that has the row.
    fn find(&mut self, row: usize, write: bool) {
        let leaf = row / self.of_a_leaf;
        let leaves = self.levels.len() - 1;
        for (depth, level) in self.levels.iter_mut().enumerate() {
            let page = leaf / FANOUT.pow((leaves - depth) as u32);
            level.get(page);
            if write && depth == leaves {
                level.set(page, 1);
            }
        }
    }

    fn scan(&self) {
        let leaves = &self.levels[self.levels.len() - 1];
        leaves.reads(0..leaves.len());
    }
}

pub fn queries(memory: &Memory) {
    const ALL: usize = 280_000;
    let mut dice = Dice(10);
    let (mut table, mut index) = (Tree::new(memory, ALL, ROWS), Tree::new(memory, ALL, ENTRIES));
    let zipf = Zipf::new(ALL);
    for query in 0..200_000 {
        let row = zipf.scattered(&mut dice);
        match query % 20 {
            0 => (row..(row + 500).min(ALL)).step_by(ROWS).for_each(|row| table.find(row, false)),
            1..4 => table.find(row, true),
            _ => {
                index.find(mix(row as u64) as usize % ALL, false);
                table.find(row, false);
            }
        }
        if query % 25_000 == 24_999 {
            table.scan();
        }
    }
}
