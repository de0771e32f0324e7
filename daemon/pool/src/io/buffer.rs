//! Which pages of a lane's arena are in use: first fit over a sorted list of free ranges, without
//! allocation once made.

/// A contiguous piece of a lane's arena. Move-only: while an operation is in flight the lane holds
/// it, so the owner can't touch the bytes that the fabric is moving.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a buffer that is dropped is lost to its lane: give it back with Lane::free"]
pub struct Buf {
    pub(crate) lane: u32,
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
