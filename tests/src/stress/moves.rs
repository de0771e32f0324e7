//! mremap: a mapping that grows, shrinks, moves or is split by the move keeps its content; what it
//! gains is zeros.

use super::Trouble;
use super::board::Shared;
use super::content::{Content, Dice, PAGE};
use super::map;
use std::ptr::NonNull;

const REGIONS: usize = 6;
const MOST: usize = 96;

/// One thread's movable mappings.
pub struct Moves {
    regions: Vec<Region>,
    seed: u64,
    generation: u64,
}

struct Region {
    at: NonNull<u8>,
    content: Vec<Content>,
}

// SAFETY: a region is used by the thread that owns the Moves only.
unsafe impl Send for Region {}

impl Moves {
    pub fn new(seed: u64) -> Moves {
        Moves { regions: Vec::new(), seed: seed.rotate_left(32) ^ 0x6d6f_7665, generation: 0 }
    }

    pub fn step(&mut self, dice: &mut Dice, board: Shared) -> Result<(), Trouble> {
        if self.regions.len() < REGIONS {
            self.add(16)?;
        }
        let r = dice.below(self.regions.len());
        if dice.one_in(2) {
            board.checked(self.regions[r].check("a read")?);
        }
        match dice.below(4) {
            0 => {
                let pages = 1 + dice.below(MOST);
                self.regions[r].resize(pages)?;
            }
            1 => self.regions[r].transplant()?,
            2 => self.transplant_part(r, dice)?,
            _ => self.leave_empty_copy(r, board)?,
        }
        board.checked(self.regions[r].check("mremap")?);
        self.fill(r, dice);
        if self.regions.len() > REGIONS {
            let region = self.regions.swap_remove(dice.below(self.regions.len()));
            board.checked(region.check("mremap of another part")?);
            region.drop_mapping()?;
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

    fn add(&mut self, pages: usize) -> Result<(), Trouble> {
        let at = map::anonymous(pages * PAGE).map_err(Trouble::call("mmap"))?;
        self.regions.push(Region { at, content: vec![Content::Zero; pages] });
        Ok(())
    }

    /// The tail of a mapping moves away with MREMAP_FIXED; the head stays.
    fn transplant_part(&mut self, r: usize, dice: &mut Dice) -> Result<(), Trouble> {
        let region = &mut self.regions[r];
        let pages = region.content.len();
        if pages < 2 {
            return region.transplant();
        }
        let keep = 1 + dice.below(pages - 1);
        let len = (pages - keep) * PAGE;
        let to = map::anonymous(len).map_err(Trouble::call("mmap"))?;
        // SAFETY: the tail lies in the region, the target was just mapped for this; no references
        // into either.
        let tail = unsafe { map::page(region.at, keep) };
        // SAFETY: as above.
        let at = unsafe { map::remap(tail, len, len, 0, Some(to)) }.map_err(Trouble::remap(
            "mremap(MREMAP_FIXED) of a part",
            tail,
            len,
        ))?;
        let content = region.content.split_off(keep);
        self.regions.push(Region { at, content });
        Ok(())
    }

    /// MREMAP_DONTUNMAP: the content moves, the old place stays mapped and reads as zeros.
    fn leave_empty_copy(&mut self, r: usize, board: Shared) -> Result<(), Trouble> {
        let region = &mut self.regions[r];
        let len = region.content.len() * PAGE;
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_DONTUNMAP;
        // SAFETY: the region is this thread's, no references into it exist.
        let at = unsafe { map::remap(region.at, len, len, flags, None) }.map_err(Trouble::remap(
            "mremap(MREMAP_DONTUNMAP)",
            region.at,
            len,
        ))?;
        let empty = Region { at: region.at, content: vec![Content::Zero; region.content.len()] };
        region.at = at;
        board.checked(empty.check("mremap(MREMAP_DONTUNMAP), the place left")?);
        empty.drop_mapping()
    }

    fn fill(&mut self, r: usize, dice: &mut Dice) {
        let region = &mut self.regions[r];
        for page in 0..region.content.len() {
            if dice.one_in(3) {
                self.generation += 1;
                let content = Content::of(self.seed, page as u64, self.generation);
                // SAFETY: the page lies in the region, which is this thread's.
                unsafe { content.fill(map::page(region.at, page).as_ptr()) };
                region.content[page] = content;
            }
        }
    }
}

impl Region {
    fn check(&self, doing: &'static str) -> Result<usize, Trouble> {
        for (page, content) in self.content.iter().enumerate() {
            // SAFETY: the page lies in the region, which is mapped and this thread's.
            let seen = unsafe { content.check(map::page(self.at, page).as_ptr()) };
            seen.map_err(|mismatch| Trouble::Wrong { doing, page, mismatch, why: "in a movable mapping".into() })?;
        }
        Ok(self.content.len())
    }

    fn resize(&mut self, pages: usize) -> Result<(), Trouble> {
        let old = self.content.len() * PAGE;
        // SAFETY: the region is this thread's, no references into it exist.
        self.at = unsafe { map::remap(self.at, old, pages * PAGE, libc::MREMAP_MAYMOVE, None) }
            .map_err(Trouble::remap("mremap to another size", self.at, old))?;
        self.content.resize(pages, Content::Zero);
        Ok(())
    }

    /// The whole mapping moves over another one of the same size.
    fn transplant(&mut self) -> Result<(), Trouble> {
        let len = self.content.len() * PAGE;
        let to = map::anonymous(len).map_err(Trouble::call("mmap"))?;
        // What is there is replaced, not kept.
        // SAFETY: just mapped, ours.
        unsafe { Content::of(1, 1, 1).fill(to.as_ptr()) };
        // SAFETY: both are this thread's, no references into them exist.
        self.at = unsafe { map::remap(self.at, len, len, 0, Some(to)) }.map_err(Trouble::remap(
            "mremap(MREMAP_FIXED)",
            self.at,
            len,
        ))?;
        Ok(())
    }

    fn drop_mapping(self) -> Result<(), Trouble> {
        // SAFETY: the region is not used any more.
        unsafe { map::unmap(self.at, self.content.len() * PAGE) }.map_err(Trouble::call("munmap"))
    }
}
