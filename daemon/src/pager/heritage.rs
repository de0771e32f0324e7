//! What a fork's child does not inherit: mappings that the program has marked with MADV_WIPEONFORK (the child has zeros there) or
//! MADV_DONTFORK (it has no mapping there). No message tells of the marks; the parent's smaps do.
//!
//! The parent is looked at when its FORK has been read, and goes on at that moment. A mark that it takes back within the fraction of a millisecond in between is missed.
//! A parent that lives and can't be looked at is an error: its child would find its parent's bytes where it is to find zeros.

use super::process::{self, Mapping};
use super::table::PageIdx;
use super::window::Range;
use std::io;

/// The flags of smaps: wiped on fork, not copied on fork.
const MARKS: [&[u8; 2]; 2] = [b"wf", b"dc"];

/// What a child of the address space in which this task lives does not inherit, in address order; nothing is known of one that has ended meanwhile.
pub fn left_behind(task: Option<i32>, lives: impl Fn() -> bool) -> io::Result<Vec<Range>> {
    let nobody = || io::Error::other("no thread of it is known");
    judge(task.ok_or_else(nobody).and_then(process::flagged_maps), lives)
}

fn judge(looked: io::Result<Vec<(Mapping, Vec<[u8; 2]>)>>, lives: impl Fn() -> bool) -> io::Result<Vec<Range>> {
    let mapped = match looked {
        // What the error is does not tell the two apart: a kernel without smaps has no such file either.
        Err(error) if lives() => return Err(error),
        Ok(mapped) if mapped.is_empty() && lives() => return Err(io::Error::other("it shows no mapping")),
        looked => looked.unwrap_or_default(),
    };
    let marked = mapped.iter().filter(|(_, flags)| flags.iter().any(|flag| MARKS.contains(&flag)));
    Ok(marked.map(|(mapping, _)| (PageIdx::of(mapping.start), PageIdx::of(mapping.end))).collect())
}

/// Whether a page lies in one of the ranges, which are in address order.
pub fn is_in(ranges: &[Range], page: PageIdx) -> bool {
    let next = ranges.partition_point(|(_, end)| *end <= page);
    ranges.get(next).is_some_and(|(start, _)| *start <= page)
}

#[cfg(test)]
mod tests {
    use super::*;
    use memmap2::MmapMut;

    #[test]
    fn marked_mappings_are_left_behind_and_others_are_not() {
        let map = MmapMut::map_anon(12 * 4096).unwrap();
        map.advise_range(memmap2::Advice::DontFork, 6 * 4096, 4096).unwrap();
        // SAFETY: the range lies in the mapping, and the mark matters to children only.
        let wiped =
            unsafe { libc::madvise(map.as_ptr().add(2 * 4096).cast_mut().cast(), 2 * 4096, libc::MADV_WIPEONFORK) };
        assert_eq!(wiped, 0);
        let ranges = left_behind(Some(std::process::id() as i32), || true).unwrap();
        let first = PageIdx::of(map.as_ptr() as u64);
        let marked: Vec<u64> = (0..12).filter(|nth| is_in(&ranges, first.plus(*nth))).collect();
        assert_eq!(marked, [2, 3, 6]);
    }

    #[test]
    fn a_parent_that_lives_and_does_not_show_its_marks_is_an_error_and_one_that_has_ended_is_not() {
        let refused = || Err(io::ErrorKind::NotFound.into());
        assert!(judge(refused(), || true).is_err());
        assert!(judge(Ok(Vec::new()), || true).is_err());
        assert_eq!(judge(refused(), || false).unwrap(), []);
        assert_eq!(left_behind(Some(i32::MAX), || false).unwrap(), []);
        assert!(left_behind(None, || true).is_err());
    }
}
