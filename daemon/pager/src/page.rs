//! Pages and ranges of pages: all arithmetic between them and addresses.

use annex_shared::page::PAGE_SHIFT;

/// A page's number: its address divided by the page size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageIdx(pub u64);

impl PageIdx {
    pub fn of(addr: u64) -> PageIdx {
        PageIdx(addr >> PAGE_SHIFT)
    }

    pub fn addr(self) -> u64 {
        self.0 << PAGE_SHIFT
    }

    pub fn plus(self, pages: u64) -> PageIdx {
        PageIdx(self.0 + pages)
    }
}

/// Pages from the first up to the second.
pub type Range = (PageIdx, PageIdx);

pub fn overlap(a: Range, b: Range) -> Option<Range> {
    let both = (a.0.max(b.0), a.1.min(b.1));
    (both.0 < both.1).then_some(both)
}

/// `a` without `b`.
pub fn without(a: Range, b: Range) -> impl Iterator<Item = Range> {
    [(a.0, a.1.min(b.0)), (a.0.max(b.1), a.1)].into_iter().filter(|r| r.0 < r.1)
}
