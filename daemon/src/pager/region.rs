//! The parts of an address space that eviction may look at.
//!
//! A region is a mapping found fit in /proc (private, anonymous, writable, with no special flags), or what is left of it after UNMAP
//! and REMAP events cut pieces out. The list is a snapshot: what it names is probed before it is moved, what it misses is
//! found at the next scan.

use super::process::{self, Mapping};
use std::io;

/// Mappings smaller than this are left alone: they cost more than they bring.
const SMALLEST: u64 = 64 << 10;

/// Flags in smaps that make a mapping none of our business: locked, I/O, raw PFNs, huge-page file, grows down (stack), wiped or dropped
/// on fork (secrets), memory tagging, shadow stack, not to be dumped or copied for a reason.
const SPECIAL: [&[u8; 2]; 9] = [b"lo", b"io", b"pf", b"ht", b"gd", b"wf", b"mt", b"ss", b"sl"];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    pub start: u64,
    pub end: u64,
    /// The mapping that this was found as (registered whole).
    pub mapping: (u64, u64),
    pub registered: bool,
    /// The kernel would not register or move it: not asked again until it changes.
    pub refused: bool,
    /// Pages just above a guard (thread stacks and their control blocks) at the region's end are spared: bytes.
    pub spared_top: u64,
}

/// Sorted, not overlapping.
#[derive(Clone, Debug, Default)]
pub struct Regions {
    list: Vec<Region>,
}

impl Regions {
    pub fn iter(&self) -> impl Iterator<Item = &Region> {
        self.list.iter()
    }

    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// The region that contains `addr`.
    pub fn containing(&self, addr: u64) -> Option<&Region> {
        let i = self.list.partition_point(|r| r.end <= addr);
        self.list.get(i).filter(|r| r.start <= addr)
    }

    /// The first region that ends above `addr`.
    pub fn from(&self, addr: u64) -> Option<&Region> {
        self.list.get(self.list.partition_point(|r| r.end <= addr))
    }

    /// Takes `start..end` out.
    pub fn cut(&mut self, start: u64, end: u64) {
        let first = self.list.partition_point(|r| r.end <= start);
        let last = self.list.partition_point(|r| r.start < end);
        if first >= last {
            return;
        }
        let left = self.list[first];
        let right = self.list[last - 1];
        let mut rest = Vec::with_capacity(2);
        if left.start < start {
            rest.push(Region { end: start, ..left });
        }
        if right.end > end {
            rest.push(Region { start: end, ..right });
        }
        self.list.splice(first..last, rest);
    }

    /// Marks every region of `mapping`.
    pub fn mark(&mut self, mapping: (u64, u64), mut change: impl FnMut(&mut Region)) {
        self.list.iter_mut().filter(|r| r.mapping == mapping).for_each(&mut change);
    }

    /// Replaces the list by what is there now; what is known of mappings that did not change is kept.
    pub fn refresh(&mut self, found: Vec<Region>) {
        let old = std::mem::replace(&mut self.list, found);
        for region in &mut self.list {
            let i = old.partition_point(|r| r.end <= region.start);
            if let Some(known) = old.get(i).filter(|r| r.start <= region.start && r.end >= region.end) {
                region.registered = known.registered;
                region.refused = known.refused && known.mapping == region.mapping;
            }
        }
    }
}

/// The regions of process `pid` now, without `ours` (the stub's mappings).
pub fn scan(pid: i32, ours: &[(u64, u64)]) -> io::Result<Vec<Region>> {
    let mapped = process::flagged_maps(pid)?;
    let mut guard_ends_at = 0;
    let mut found = Vec::new();
    for (mapping, flags) in &mapped {
        let Mapping { start, end, .. } = *mapping;
        if mapping.access[..3] == *b"---" {
            guard_ends_at = end;
            continue;
        }
        let special = flags.iter().any(|f| SPECIAL.contains(&f));
        let mine = ours.iter().any(|(at, len)| start < at + len && *at < end);
        if mapping.is_private_anonymous() && end - start >= SMALLEST && !special && !mine {
            let spared_top = if guard_ends_at == start { 2 * 4096 } else { 0 };
            found.push(Region { start, end, mapping: (start, end), registered: false, refused: false, spared_top });
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region(start: u64, end: u64) -> Region {
        Region { start, end, mapping: (start, end), registered: true, refused: false, spared_top: 0 }
    }

    fn spans(regions: &Regions) -> Vec<(u64, u64)> {
        regions.iter().map(|r| (r.start, r.end)).collect()
    }

    #[test]
    fn cutting_leaves_what_lies_outside() {
        let mut regions = Regions { list: vec![region(10, 20), region(30, 40), region(50, 60)] };
        regions.cut(15, 55);
        assert_eq!(spans(&regions), [(10, 15), (55, 60)]);
        regions.cut(11, 12);
        assert_eq!(spans(&regions), [(10, 11), (12, 15), (55, 60)]);
        regions.cut(0, 100);
        assert_eq!(spans(&regions), []);
    }

    #[test]
    fn a_cut_that_touches_nothing_changes_nothing() {
        let mut regions = Regions { list: vec![region(10, 20)] };
        regions.cut(20, 30);
        regions.cut(0, 10);
        assert_eq!(spans(&regions), [(10, 20)]);
        assert_eq!(regions.containing(19).map(|r| r.start), Some(10));
        assert_eq!(regions.containing(20), None);
    }

    #[test]
    fn a_mapping_that_grew_is_not_taken_for_registered() {
        let mut regions = Regions { list: vec![region(10, 20)] };
        regions.refresh(vec![Region { registered: false, ..region(10, 30) }]);
        assert!(!regions.containing(10).unwrap().registered);
        let mut same = Regions { list: vec![region(10, 20)] };
        same.refresh(vec![Region { registered: false, ..region(10, 20) }]);
        assert!(same.containing(10).unwrap().registered);
    }
}
