//! mmap and munmap at reused addresses. The danger for a pager: content of the old mapping showing
//! up in the new one. So a replaced range must read as zeros, and what was not replaced must stay.

use super::Trouble;
use super::board::Shared;
use super::content::{Content, Dice, PAGE};
use super::map;
use std::ptr::NonNull;

const REGIONS: usize = 8;
const PAGES: usize = 64;

/// One thread's mappings and what their pages hold.
pub struct Churn {
    regions: Vec<Region>,
    seed: u64,
    generation: u64,
}

struct Region {
    at: NonNull<u8>,
    content: [Content; PAGES],
}

// SAFETY: a region is used by the thread that owns the Churn only.
unsafe impl Send for Region {}

impl Churn {
    pub fn new(seed: u64) -> Churn {
        Churn { regions: Vec::new(), seed: !seed, generation: 0 }
    }

    pub fn step(&mut self, dice: &mut Dice, board: Shared) -> Result<(), Trouble> {
        if self.regions.len() < REGIONS {
            let at = map::anonymous(PAGES * PAGE).map_err(Trouble::call("mmap"))?;
            self.regions.push(Region { at, content: [Content::Zero; PAGES] });
        }
        let r = dice.below(self.regions.len());
        let start = dice.below(PAGES);
        let count = 1 + dice.below(PAGES - start);
        board.checked(self.regions[r].check("a read")?);
        match dice.below(4) {
            0 => self.regions[r].replace(start, count)?,
            1 => {
                let whole = self.regions[r].unmap_and_map(start, count)?;
                if !whole {
                    return self.regions.swap_remove(r).give_back(start, count);
                }
            }
            2 => {
                // Whole; the next mmap most likely returns the same address.
                let region = self.regions.swap_remove(r);
                // SAFETY: the region is not used any more.
                unsafe { map::unmap(region.at, PAGES * PAGE) }.map_err(Trouble::call("munmap"))?;
                let at = map::anonymous(PAGES * PAGE).map_err(Trouble::call("mmap"))?;
                self.regions.push(Region { at, content: [Content::Zero; PAGES] });
            }
            _ => {}
        }
        let last = self.regions.len() - 1;
        let r = r.min(last);
        board.checked(self.regions[r].check("mmap at a reused address")?);
        self.fill(r, start, count, dice);
        if dice.one_in(4) {
            board.checked(self.regions[r].check("a write to reused memory")?);
        }
        Ok(())
    }

    /// Verifies everything once more.
    pub fn check(&self, board: Shared) -> Result<(), Trouble> {
        for region in &self.regions {
            board.checked(region.check("the end of the run")?);
        }
        Ok(())
    }

    fn fill(&mut self, r: usize, start: usize, count: usize, dice: &mut Dice) {
        for page in start..start + count {
            if dice.one_in(4) {
                continue;
            }
            self.generation += 1;
            let content = Content::of(self.seed, page as u64, self.generation);
            let region = &mut self.regions[r];
            // SAFETY: the page lies in the region, which is this thread's.
            unsafe { content.fill(map::page(region.at, page).as_ptr()) };
            region.content[page] = content;
        }
    }
}

impl Region {
    fn check(&self, doing: &'static str) -> Result<usize, Trouble> {
        for (page, content) in self.content.iter().enumerate() {
            // SAFETY: the page lies in the region, which is mapped and this thread's.
            let seen = unsafe { content.check(map::page(self.at, page).as_ptr()) };
            seen.map_err(|mismatch| Trouble::Wrong { doing, page, mismatch, why: "in a mapping of its own".into() })?;
        }
        Ok(PAGES)
    }

    fn replace(&mut self, start: usize, count: usize) -> Result<(), Trouble> {
        // SAFETY: the range lies in the region; no reference into it exists.
        unsafe { map::replace(map::page(self.at, start), count * PAGE) }.map_err(Trouble::call("mmap(MAP_FIXED)"))?;
        self.content[start..start + count].fill(Content::Zero);
        Ok(())
    }

    /// False if another thread's mmap got into the hole: the region is no longer whole.
    fn unmap_and_map(&mut self, start: usize, count: usize) -> Result<bool, Trouble> {
        // SAFETY: the range lies in the region; no reference into it exists.
        let at = unsafe { map::page(self.at, start) };
        // SAFETY: as above.
        unsafe { map::unmap(at, count * PAGE) }.map_err(Trouble::call("munmap"))?;
        self.content[start..start + count].fill(Content::Zero);
        Ok(map::again(at, count * PAGE).map_err(Trouble::call("mmap(MAP_FIXED_NOREPLACE)"))?.is_some())
    }

    /// Unmaps what is left around a hole.
    fn give_back(self, start: usize, count: usize) -> Result<(), Trouble> {
        for (from, to) in [(0, start), (start + count, PAGES)] {
            if from < to {
                // SAFETY: this part of the region is still ours and not used any more.
                unsafe { map::unmap(map::page(self.at, from), (to - from) * PAGE) }.map_err(Trouble::call("munmap"))?;
            }
        }
        Ok(())
    }
}
