//! PAGEMAP_SCAN: which pages of a process are resident, written, huge. The numbers are those of
//! `include/uapi/linux/fs.h` (Linux 6.7).

use crate::page::PageIdx;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

const WRITTEN: u64 = 1 << 1;
const FILE: u64 = 1 << 2;
const PRESENT: u64 = 1 << 3;
const SWAPPED: u64 = 1 << 4;
const PFNZERO: u64 = 1 << 5;
const HUGE: u64 = 1 << 6;
const GUARD: u64 = 1 << 8;

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct PageRegion {
    start: u64,
    end: u64,
    categories: u64,
}

#[repr(C)]
#[derive(Default)]
struct ScanArg {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

nix::ioctl_readwrite!(pagemap_scan, b'f', 16, ScanArg);

/// Consecutive resident anonymous pages of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    pub first: PageIdx,
    pub pages: u64,
    /// Written since it was last write-protected (or never protected).
    pub written: bool,
    /// Part of a transparent huge page.
    pub huge: bool,
}

impl Run {
    pub fn end(&self) -> PageIdx {
        self.first.plus(self.pages)
    }
}

const VECTOR: usize = 512;

/// /proc/PID/pagemap, open for scans.
pub struct Pagemap {
    file: File,
    vector: Box<[PageRegion; VECTOR]>,
}

impl Pagemap {
    pub fn open(pid: i32) -> io::Result<Pagemap> {
        File::open(format!("/proc/{pid}/pagemap")).map(Pagemap::over)
    }

    /// Over such a file that is open already.
    pub fn over(file: File) -> Pagemap {
        Pagemap { file, vector: Box::new([PageRegion::default(); VECTOR]) }
    }

    /// Appends runs of anonymous pages from `start` up to `end` that have content, swapped out or
    /// not; returns where to go on.
    pub fn in_memory(&mut self, start: u64, end: u64, runs: &mut Vec<Run>) -> io::Result<u64> {
        let mask = ScanArg { category_anyof_mask: PRESENT | SWAPPED, return_mask: PRESENT, ..ScanArg::default() };
        self.scan(start, end, 0, mask, runs)
    }

    /// Appends runs of resident anonymous pages from `start` up to `end`, at most `max_pages`
    /// pages; returns where to go on.
    pub fn resident(&mut self, start: u64, end: u64, max_pages: u64, runs: &mut Vec<Run>) -> io::Result<u64> {
        let mask = ScanArg {
            // Present, and neither file-backed nor the shared zero page.
            category_inverted: PFNZERO | FILE,
            category_mask: PRESENT | PFNZERO | FILE,
            return_mask: WRITTEN | HUGE,
            ..ScanArg::default()
        };
        self.scan(start, end, max_pages, mask, runs)
    }

    /// Appends runs of guard pages (MADV_GUARD_INSTALL) from `start` up to `end`; returns where to
    /// go on.
    pub fn guarded(&mut self, start: u64, end: u64, runs: &mut Vec<Run>) -> io::Result<u64> {
        self.scan(start, end, 0, ScanArg { category_mask: GUARD, return_mask: GUARD, ..ScanArg::default() }, runs)
    }

    /// Where the first guard page from `start` up to `end` is. A kernel that knows no guards says
    /// that there is none.
    pub fn first_guard(file: &File, start: u64, end: u64) -> Option<u64> {
        let mut found = PageRegion::default();
        let mut arg = ScanArg {
            size: size_of::<ScanArg>() as u64,
            start,
            end,
            vec: (&raw mut found) as u64,
            vec_len: 1,
            max_pages: 1,
            category_mask: GUARD,
            return_mask: GUARD,
            ..ScanArg::default()
        };
        // SAFETY: `arg` is the struct this ioctl takes, and the vector that it names has room for
        // one entry; both outlive the call.
        let regions = unsafe { pagemap_scan(file.as_raw_fd(), &mut arg) };
        matches!(regions, Ok(1)).then_some(found.start)
    }

    fn scan(&mut self, start: u64, end: u64, max_pages: u64, mask: ScanArg, runs: &mut Vec<Run>) -> io::Result<u64> {
        let mut arg = ScanArg {
            size: size_of::<ScanArg>() as u64,
            start,
            end,
            vec: self.vector.as_mut_ptr() as u64,
            vec_len: VECTOR as u64,
            max_pages,
            ..mask
        };
        // SAFETY: `arg` is the struct this ioctl takes, and its vector is ours and as long as it
        // says.
        let found = unsafe { pagemap_scan(self.file.as_raw_fd(), &mut arg) }? as usize;
        runs.extend(self.vector[..found.min(VECTOR)].iter().map(|r| Run {
            first: PageIdx::of(r.start),
            pages: (r.end - r.start) >> annex_shared::page::PAGE_SHIFT,
            written: r.categories & WRITTEN != 0,
            huge: r.categories & HUGE != 0,
        }));
        Ok(arg.walk_end.max(start))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use memmap2::MmapMut;

    #[test]
    fn touched_pages_are_found_and_untouched_ones_are_not() {
        let mut map = MmapMut::map_anon(64 * 4096).unwrap();
        map.advise(memmap2::Advice::NoHugePage).unwrap();
        for page in [3usize, 4, 5, 40] {
            map[page * 4096] = 1;
        }
        let start = map.as_ptr() as u64;
        let mut runs = Vec::new();
        let mut pagemap = Pagemap::open(std::process::id() as i32).unwrap();
        let end = pagemap.resident(start, start + 64 * 4096, 1000, &mut runs).unwrap();
        let found: Vec<_> = runs.iter().map(|r| (r.first.0 - (start >> 12), r.pages)).collect();
        assert_eq!((found, end), (vec![(3, 3), (40, 1)], start + 64 * 4096));
    }
}
