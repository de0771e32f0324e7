//! The parts of an address space that eviction may look at.
//!
//! A region is a mapping found fit in /proc (private, anonymous, writable, with no special flags),
//! or what is left of it after UNMAP and REMAP events cut pieces out. The list is a snapshot: what
//! it names is probed before it is moved, what it misses is found at the next scan.

use crate::kernel::process::{self, Mapping};
use annex_shared::mapping;
use std::io;

/// Looks at the mappings (of which there are two a second at most) after which a refused one is
/// tried again: a mapping that was locked for a moment looks as it did before.
const RESPITE: u8 = 8;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Region {
    pub start: u64,
    pub end: u64,
    /// The mapping that this was found as (registered whole).
    pub mapping: (u64, u64),
    /// That and the mappings right beside it, of which it may be one again: a part of it was made
    /// read-only or inaccessible for a moment.
    pub run: (u64, u64),
    pub registered: bool,
    /// The kernel would not register or move it: not asked again until it changes, or for
    /// [`RESPITE`] looks.
    pub refused: bool,
    /// The program puts guards over memory that it has used: it is refused for good (see `guards`).
    pub guarded: bool,
    /// At how many looks in a row it has been.
    looks_refused: u8,
    /// Pages just above a guard (thread stacks and their control blocks) at the region's end are
    /// spared: bytes.
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

    /// Guards were found in the region that begins at `start`.
    pub fn guarded(&mut self, start: u64) {
        self.list.iter_mut().filter(|r| r.start == start).for_each(|r| (r.guarded, r.refused) = (true, true));
    }

    /// Replaces the list by what is there now; what is known of mappings that did not change is
    /// kept.
    pub fn refresh(&mut self, found: Vec<Region>) {
        let old = std::mem::replace(&mut self.list, found);
        for region in &mut self.list {
            let i = old.partition_point(|r| r.end <= region.start);
            if let Some(known) = old.get(i).filter(|r| r.start <= region.start && r.end >= region.end) {
                region.registered = known.registered;
                region.guarded = known.guarded;
                region.looks_refused = if known.refused { known.looks_refused.saturating_add(1) } else { 0 };
                let still = known.mapping == region.mapping && region.looks_refused < RESPITE;
                region.refused = known.guarded || (known.refused && still);
            }
        }
    }
}

/// The regions of process `pid` now, without `ours` (the stub's mappings).
pub fn scan(pid: i32, ours: &[(u64, u64)]) -> io::Result<Vec<Region>> {
    let mapped = process::flagged_maps(pid)?;
    let mut guard_ends_at = 0;
    let mut found = Vec::new();
    let mut runs: Vec<(u64, u64)> = Vec::new();
    for (mapping, flags) in &mapped {
        let Mapping { start, end, .. } = *mapping;
        if mapping.access[..3] == *b"---" {
            guard_ends_at = end;
        }
        // Accounted for, or with pages: it has been writable before, and may be a part of its
        // neighbour again.
        let has_been_used = flags.contains(b"ac") || flags.contains(&process::HAS_PAGES);
        let is_withheld = mapping.is_inaccessible_anonymous() && has_been_used;
        let special = mapping::special(flags).is_some();
        let mine = ours.iter().any(|(at, len)| start < at + len && *at < end);
        if !(mapping.is_readable_anonymous() || is_withheld) || special || mine {
            continue;
        }
        match runs.last_mut() {
            Some(run) if run.1 == start => run.1 = end,
            _ => runs.push((start, end)),
        }
        if mapping.obstacle(flags).is_none() {
            let spared_top = if guard_ends_at == start { 2 * 4096 } else { 0 };
            let mapping = (start, end);
            found.push(Region { start, end, mapping, spared_top, ..Region::default() });
        }
    }
    for region in &mut found {
        region.run = runs[runs.partition_point(|run| run.1 <= region.start)];
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region(start: u64, end: u64) -> Region {
        let mapping = (start, end);
        Region { start, end, mapping, registered: true, ..Region::default() }
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

    /// One that was locked while pages moved was never evicted from again.
    #[test]
    fn a_refused_mapping_is_tried_again_after_a_respite() {
        let mut regions = Regions { list: vec![region(10, 20)] };
        regions.mark((10, 20), |r| r.refused = true);
        let mut refused_at = Vec::new();
        for look in 0..2 * RESPITE {
            regions.refresh(vec![region(10, 20)]);
            refused_at.extend(regions.containing(10).unwrap().refused.then_some(look));
        }
        assert_eq!(refused_at, (0..RESPITE - 1).collect::<Vec<_>>());
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
