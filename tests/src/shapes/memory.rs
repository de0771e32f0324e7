//! What belongs to one actor: a few mappings, and the count of what was written to them.

use super::mapping::{Kind, LEAST, Mapping};
use super::report::Wrong;
use crate::stress::content::Content;
use std::ops::Range;

#[derive(Debug)]
pub struct Memory {
    pub mappings: Vec<Mapping>,
    seed: u64,
    written: u64,
}

impl Memory {
    /// All of its pages are written.
    pub fn new(seed: u64, pages: usize, heap: bool) -> Result<Memory, Wrong> {
        let third = if heap { Kind::Heap } else { Kind::Patchwork };
        let shares =
            [(Kind::Movable, pages / 2), (Kind::Patchwork, pages / 4), (third, pages / 8), (Kind::Movable, pages / 8)];
        let mappings = shares.into_iter().enumerate();
        let mappings = mappings.map(|(number, (kind, pages))| Mapping::new(number, kind, pages.max(LEAST)));
        let mut memory = Memory { mappings: mappings.collect::<Result<_, _>>()?, seed, written: 0 };
        for mapping in 0..memory.mappings.len() {
            memory.write(mapping, memory.mappings[mapping].all());
        }
        Ok(memory)
    }

    /// In a child that has just been forked: what it writes differs from what its parent writes.
    pub fn inherit(&mut self, seed: u64) {
        self.seed = seed;
        self.mappings.iter_mut().for_each(Mapping::inherit);
    }

    pub fn write(&mut self, mapping: usize, range: Range<usize>) {
        for page in range {
            self.written += 1;
            self.mappings[mapping].write(page, Content::of(self.seed, page as u64, self.written));
        }
    }

    pub fn check(&self, mapping: usize, mut range: Range<usize>) -> Result<(), Wrong> {
        range.try_for_each(|page| self.mappings[mapping].check(page))
    }

    pub fn check_all(&self) -> Result<(), Wrong> {
        let pages = |mapping: &Mapping| mapping.all().try_for_each(|page| mapping.check(page));
        self.mappings.iter().try_for_each(pages)
    }

    /// How many pages there are to verify.
    pub fn len(&self) -> usize {
        self.mappings.iter().map(Mapping::len).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Two different mappings, the first of them that one.
    pub fn two(&mut self, one: usize, roll: u64) -> (&mut Mapping, &mut Mapping) {
        let others = self.mappings.len() - 1;
        let other = (one + 1 + roll as usize % others) % self.mappings.len();
        let (low, high) = self.mappings.split_at_mut(one.max(other));
        if one < other { (&mut low[one], &mut high[0]) } else { (&mut high[0], &mut low[other]) }
    }
}
