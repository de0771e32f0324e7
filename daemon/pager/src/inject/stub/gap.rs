//! Where the stub's memory is put in a program's address space: far from all that the program has.
//!
//! Whatever the kernel would choose may be a hole that the program has made in its own mappings. It
//! may map memory there again (MAP_FIXED) without asking anybody: then pages on their way out lie
//! in the program's memory. So the stub's memory lies in the middle of the largest gap, where no
//! program maps anything but by an address that it has made up.

use super::layout::HUGE;
use crate::kernel::process::{self, Mapping, Stat};
use std::time::{Duration, Instant};

/// From here on no program can have memory (x86-64, 47 bits).
const END: u64 = 0x7fff_ffff_f000;
/// Below it the kernel lets nobody map memory.
const START: u64 = 1 << 16;
/// How long a program may take to become another one.
const BECOMING: Duration = Duration::from_secs(1);

/// The middle of the largest gap of a process, 2 MiB-aligned. `None`: it has ended, or its mappings
/// can't be read. A program that becomes another one (exec) has none for a moment.
pub fn middle(pid: i32) -> Option<u64> {
    let until = Instant::now() + BECOMING;
    loop {
        let maps = process::living(pid).and_then(|task| process::maps(task).ok());
        match maps {
            Some(maps) => return middle_of(&maps),
            None if Instant::now() > until || Stat::read(pid).is_none_or(|stat| stat.is_zombie()) => return None,
            None => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}

fn middle_of(maps: &[Mapping]) -> Option<u64> {
    let ends = std::iter::once(START).chain(maps.iter().map(|m| m.end));
    let starts = maps.iter().map(|m| m.start.min(END)).chain(std::iter::once(END));
    let (start, end) = ends.zip(starts).max_by_key(|(from, to)| to.saturating_sub(*from))?;
    Some((start + (end.checked_sub(start)?) / 2) / HUGE * HUGE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_of_the_largest_gap_is_found() {
        let mapping = |start, end| Mapping { start, end, access: *b"rw-p", inode: 0, name: String::new() };
        let top = mapping(0xffff_ffff_ff60_0000, 0xffff_ffff_ff60_1000);
        let maps =
            [mapping(0x40_0000, 0x80_0000), mapping(0x1000_0000_0000, 0x1000_0010_0000), mapping(END - 4096, END), top];
        let start = 0x1000_0010_0000;
        assert_eq!(middle_of(&maps), Some((start + (END - 4096 - start) / 2) / HUGE * HUGE));
        assert_eq!(middle_of(&[]), Some((START + (END - START) / 2) / HUGE * HUGE));
    }

    #[test]
    fn nothing_is_near_it() {
        let pid = std::process::id() as i32;
        let at = middle(pid).unwrap();
        let near = |m: &Mapping| m.start < at + (1 << 38) && at < m.end + (1 << 38);
        assert!(!process::maps(pid).unwrap().iter().any(near));
    }
}
