//! A lane's buffers: pieces of its arena. Which pages are free is kept as a sorted list of ranges,
//! taken first fit, without allocation once made.

use annex_fabric::Arena;
use annex_shared::page::PAGE_SIZE;
use std::sync::Arc;

/// A contiguous piece of a lane's arena. Move-only: while an operation is in flight the lane holds
/// it, so the owner can't touch the bytes that the fabric is moving.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a buffer that is dropped is lost to its lane: give it back with Lane::free"]
pub struct Buf {
    lane: u32,
    pub(crate) page: u32,
    pub(crate) pages: u32,
}

impl Buf {
    /// Its size, in pages.
    pub fn pages(&self) -> usize {
        self.pages as usize
    }

    /// Where it starts in the lane's arena, in pages.
    pub fn page(&self) -> usize {
        self.page as usize
    }
}

/// A lane's arena, and who has which piece of it.
pub(crate) struct Buffers {
    /// The lane's number: a buffer of another one is refused.
    lane: u32,
    pub arena: Arc<Arena>,
    free: FreeList,
    /// Pages of the arena that nobody has but hedges may take.
    pub spare: u32,
}

impl Buffers {
    /// An arena with so many pages, of which `spare` are for hedges.
    pub fn new(lane: u32, arena: Arc<Arena>, pages: u32, spare: u32) -> Buffers {
        Buffers { lane, arena, free: FreeList::new(pages), spare }
    }

    /// A piece of the arena; `None` if no piece of this size is free.
    pub fn alloc(&mut self, pages: usize) -> Option<Buf> {
        let pages = u32::try_from(pages).ok()?;
        if pages.saturating_add(self.spare) > self.free.free_pages() {
            return None;
        }
        let page = self.free.alloc(pages)?;
        Some(Buf { lane: self.lane, page, pages })
    }

    pub fn give_back(&mut self, buf: Buf) {
        self.own(&buf);
        self.free.free(buf.page, buf.pages);
    }

    /// # Panics
    /// If the buffer is another lane's.
    pub fn own(&self, buf: &Buf) {
        assert_eq!(buf.lane, self.lane, "a buffer of lane {} was given to lane {}", buf.lane, self.lane);
    }

    /// A buffer's bytes.
    pub fn bytes(&self, buf: &Buf) -> &[u8] {
        self.own(buf);
        // SAFETY: the Buf exists outside the lane, so no operation on its range is in flight
        // (operations take it by value), ranges of distinct Bufs are disjoint (FreeList), and a
        // mutable view needs &mut self.
        unsafe { self.arena.bytes(buf.page as usize * PAGE_SIZE, buf.pages as usize * PAGE_SIZE) }
    }

    /// A buffer's bytes, to write.
    pub fn bytes_mut(&mut self, buf: &mut Buf) -> &mut [u8] {
        self.own(buf);
        // SAFETY: as in `bytes`; &mut self keeps every other view away.
        unsafe { self.arena.bytes_mut(buf.page as usize * PAGE_SIZE, buf.pages as usize * PAGE_SIZE) }
    }

    /// Spare pages, if there are as many next to each other: the first one.
    pub fn take_spare(&mut self, pages: u32) -> Option<u32> {
        if pages > self.spare {
            return None;
        }
        let page = self.free.alloc(pages)?;
        self.spare -= pages;
        Some(page)
    }

    pub fn return_spare(&mut self, buf: (u32, u32)) {
        self.free.free(buf.0, buf.1);
        self.spare += buf.1;
    }
}

/// The free ranges of an arena, sorted, never adjacent.
#[derive(Debug)]
pub(crate) struct FreeList {
    ranges: Vec<(u32, u32)>,
    pages: u32,
}

impl FreeList {
    pub fn new(pages: u32) -> Self {
        // Free ranges are separated by used pages, so there are never more than half as many.
        let mut ranges = Vec::with_capacity(pages as usize / 2 + 2);
        ranges.push((0, pages));
        FreeList { ranges, pages }
    }

    /// How many pages are free, together.
    pub fn free_pages(&self) -> u32 {
        self.pages
    }

    pub fn alloc(&mut self, pages: u32) -> Option<u32> {
        let i = self.ranges.iter().position(|r| pages > 0 && r.1 >= pages)?;
        let (at, len) = self.ranges[i];
        if len == pages {
            self.ranges.remove(i);
        } else {
            self.ranges[i] = (at + pages, len - pages);
        }
        self.pages -= pages;
        Some(at)
    }

    pub fn free(&mut self, at: u32, pages: u32) {
        self.pages += pages;
        let i = self.ranges.partition_point(|r| r.0 < at);
        let joins_left = i > 0 && self.ranges[i - 1].0 + self.ranges[i - 1].1 == at;
        let joins_right = i < self.ranges.len() && at + pages == self.ranges[i].0;
        match (joins_left, joins_right) {
            (true, true) => {
                self.ranges[i - 1].1 += pages + self.ranges[i].1;
                self.ranges.remove(i);
            }
            (true, false) => self.ranges[i - 1].1 += pages,
            (false, true) => self.ranges[i] = (at, pages + self.ranges[i].1),
            (false, false) => self.ranges.insert(i, (at, pages)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn pieces_never_overlap_and_everything_comes_back(steps in prop::collection::vec((any::<bool>(), 1u32..9, any::<prop::sample::Index>()), 1..200)) {
            let mut list = FreeList::new(64);
            let room = list.ranges.capacity();
            let mut used = [false; 64];
            let mut held: Vec<(u32, u32)> = Vec::new();
            for (take, pages, which) in steps {
                if take {
                    if let Some(at) = list.alloc(pages) {
                        for page in &mut used[at as usize..(at + pages) as usize] {
                            prop_assert!(!*page);
                            *page = true;
                        }
                        held.push((at, pages));
                    }
                } else if !held.is_empty() {
                    let (at, pages) = held.swap_remove(which.index(held.len()));
                    used[at as usize..(at + pages) as usize].fill(false);
                    list.free(at, pages);
                }
            }
            prop_assert_eq!(list.ranges.capacity(), room, "the list grew");
            for (at, pages) in held {
                list.free(at, pages);
            }
            prop_assert_eq!(&list.ranges, &vec![(0, 64)]);
        }
    }
}
