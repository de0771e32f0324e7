//! What a fork's child does not inherit: mappings that the program has marked with MADV_WIPEONFORK
//! (the child has zeros there) or MADV_DONTFORK (it has no mapping there). No message tells of the
//! marks; the parent's smaps do.
//!
//! The parent is looked at when its FORK has been read, and goes on at that moment. A mark that it
//! takes back within the fraction of a millisecond in between is missed. A parent that lives and
//! can't be looked at is an error: its child would find its parent's bytes where it is to find
//! zeros.

use crate::kernel::process;
use crate::kernel::process::Mapping;
use crate::page::{PageIdx, Range};
use std::io;
use std::time::Duration;

/// The flags of smaps: wiped on fork, not copied on fork.
const MARKS: [&[u8; 2]; 2] = [b"wf", b"dc"];

/// Whoever is looked at may end in that moment, though the address space lives on in others: so
/// many times the next one is looked at.
const TRIES: u32 = 200;
const PAUSE: Duration = Duration::from_millis(1);

/// What a child of the address space in which such a task lives does not inherit, in address order;
/// nothing is known of one that has ended meanwhile.
pub fn left_behind(task: impl Fn() -> Option<i32>, lives: impl Fn() -> bool) -> io::Result<Vec<Range>> {
    let mut tries = 0;
    loop {
        let nobody = || io::Error::other("no thread of it is known");
        match task().ok_or_else(nobody).and_then(process::flagged_maps) {
            Ok(mapped) => return Ok(marked(&mapped)),
            // Asked after the look. What the error is does not tell: a kernel without smaps has no
            // such file either.
            Err(_) if !lives() => return Ok(Vec::new()),
            Err(error) if tries == TRIES => return Err(error),
            Err(_) => std::thread::sleep(PAUSE),
        }
        tries += 1;
    }
}

fn marked(mapped: &[(Mapping, Vec<[u8; 2]>)]) -> Vec<Range> {
    let marked = mapped.iter().filter(|(_, flags)| flags.iter().any(|flag| MARKS.contains(&flag)));
    marked.map(|(mapping, _)| (PageIdx::of(mapping.start), PageIdx::of(mapping.end))).collect()
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
        let ranges = left_behind(|| Some(std::process::id() as i32), || true).unwrap();
        let first = PageIdx::of(map.as_ptr() as u64);
        let marked: Vec<u64> = (0..12).filter(|nth| is_in(&ranges, first.plus(*nth))).collect();
        assert_eq!(marked, [2, 3, 6]);
    }

    #[test]
    fn a_parent_that_lives_and_does_not_show_its_marks_is_an_error_and_one_that_has_ended_is_not() {
        assert_eq!(left_behind(|| Some(i32::MAX), || false).unwrap(), []);
        assert!(left_behind(|| Some(i32::MAX), || true).is_err());
        assert!(left_behind(|| None, || true).is_err());
    }

    /// A task that has ended and was not waited for yet has a list of mappings, with nothing in it.
    #[test]
    fn where_whoever_is_looked_at_has_just_ended_the_next_one_is() {
        let mut ended = std::process::Command::new("true").spawn().unwrap();
        let pid = ended.id() as i32;
        while process::Stat::read(pid).is_some_and(|stat| stat.state != 'Z') {
            std::thread::sleep(PAUSE);
        }
        let asked = std::cell::Cell::new(0);
        let next = || {
            asked.set(asked.get() + 1);
            Some(if asked.get() < 5 { pid } else { std::process::id() as i32 })
        };
        assert!(left_behind(next, || true).is_ok());
        assert_eq!(asked.get(), 5);
        ended.wait().unwrap();
    }
}
