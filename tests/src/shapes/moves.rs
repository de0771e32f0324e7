//! How mappings grow and move: `mremap` of every kind, and brk.

use super::calls::named;
use super::locks::places;
use super::mapping::{FRESH, Heritage, Kind, LEAST, Mapping, Page};
use super::report::Wrong;
use crate::stress::content::{Dice, PAGE};
use std::ptr::null_mut;

impl Mapping {
    fn can_be_moved(&self) -> bool {
        self.is_movable() && self.is_there(&self.all())
    }

    /// Half as many pages to half as many more.
    pub fn another_len(&self, dice: &mut Dice) -> usize {
        let most = self.pages.capacity();
        (self.len() / 2 + dice.below(self.len().max(1))).clamp(LEAST, most)
    }

    /// Moves or grows it: by mremap, or by brk. What can't be moved is left alone.
    pub fn resize(&mut self, pages: usize) -> Result<(), Wrong> {
        match self.kind {
            Kind::Heap if self.is_open() => self.move_break(pages),
            Kind::Movable if self.can_be_moved() => {
                let at = self.mremap(pages, libc::MREMAP_MAYMOVE, null_mut())?;
                self.at = at;
                self.set_len(pages);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn move_break(&mut self, pages: usize) -> Result<(), Wrong> {
        let _place = places();
        // SAFETY: moves the end of the heap, if it is ours; of what is beyond it nothing is wanted
        // any more.
        unsafe {
            if libc::sbrk(0).cast() != self.address(self.len()) {
                return Ok(());
            }
            if libc::sbrk((pages as isize - self.len() as isize) * PAGE as isize) == libc::MAP_FAILED {
                return Err(Wrong::Call { what: "sbrk", errno: libc::ENOMEM });
            }
        }
        self.pages.resize(pages, FRESH);
        Ok(())
    }

    /// All pages of a movable mapping are told the same of forks.
    fn set_len(&mut self, pages: usize) {
        let heritage = self.pages.first().map_or(Heritage::Kept, |page| page.heritage);
        self.pages.resize(pages, Page { heritage, ..FRESH });
    }

    fn mremap(&self, pages: usize, flags: i32, to: *mut u8) -> Result<*mut u8, Wrong> {
        let _place = places();
        let args = [self.at.addr(), self.len() * PAGE, pages * PAGE, flags as usize, to.addr()];
        // SAFETY: a mapping of our own, which nothing points into; what is at `to` the caller does
        // without.
        unsafe { named("mremap", libc::SYS_mremap, args) }.map(|at| at as *mut u8)
    }

    /// MREMAP_FIXED: takes the place of another one, which is mapped anew elsewhere.
    pub fn move_over(&mut self, other: &mut Mapping) -> Result<(), Wrong> {
        if !self.can_be_moved() || !other.can_be_moved() {
            return Ok(());
        }
        let (pages, others) = (self.len().min(other.len()), other.len());
        self.at = self.mremap(pages, libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED, other.at)?;
        self.set_len(pages);
        // What is left of the other one lies behind this.
        other.at = self.address(pages);
        other.pages.truncate(others - pages);
        other.renew(others)
    }

    /// MREMAP_DONTUNMAP: the pages go to where `other` is from now on, and zeros stay.
    pub fn leave_behind(&mut self, other: &mut Mapping) -> Result<(), Wrong> {
        if !self.can_be_moved() || !other.can_be_moved() || other.pages.capacity() < self.len() {
            return Ok(());
        }
        other.give_back()?;
        other.at = self.mremap(self.len(), libc::MREMAP_MAYMOVE | libc::MREMAP_DONTUNMAP, null_mut())?;
        other.pages.extend_from_slice(&self.pages);
        for page in &mut self.pages {
            *page = Page { heritage: page.heritage, ..FRESH };
        }
        Ok(())
    }
}
