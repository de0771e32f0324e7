//! Which log pages and units are in use, and where the next record goes: appended, segment after
//! segment.
//!
//! A record of up to half a log page lies in one log page; a larger one may go on in the log pages
//! that follow by number. A log page whose records are all gone gives its slot back at once; a
//! segment without log pages in use is used anew. Log pages of which only a part is in use are
//! emptied by the compaction.

use super::log_pages::{LogPageIdx, RecordAddr, SEGMENT, SEGMENTS, UNITS};
use std::collections::BTreeSet;

/// Records of more units may cross the end of a log page.
const SPANNING: u32 = UNITS / 2;

/// Log pages are counted by how many eighths of them are in use, rounded up: who looks for the
/// emptiest need not look at all.
pub const FILLS: usize = 8;

/// The log pages of one segment.
struct Segment {
    /// Units in use or reserved, by log page.
    used: Box<[u8; SEGMENT as usize]>,
    units: u32,
    /// Log pages by their fill; those of which nothing is in use don't count.
    fills: [u16; FILLS + 1],
    /// Log pages that lie in a slot, and writes of log pages that are under way.
    busy: u32,
}

/// See the module's header.
#[derive(Default)]
pub struct Space {
    segments: Vec<Option<Segment>>,
    free: BTreeSet<u32>,
    /// The address after the last record. `None`: the next record opens a segment.
    next: Option<RecordAddr>,
    units: u64,
    log_pages: u64,
    /// Those of all segments.
    fills: [u64; FILLS + 1],
}

/// All log page numbers are in use: 4 TiB of records.
#[derive(Debug, PartialEq, Eq)]
pub struct Full;

impl Space {
    /// Units in use.
    pub fn units(&self) -> u64 {
        self.units
    }

    /// Log pages that lie in a slot.
    pub fn log_pages(&self) -> u64 {
        self.log_pages
    }

    /// Bytes of memory in use.
    pub fn bytes(&self) -> u64 {
        let segments = self.segments.iter().flatten().count() * SEGMENT as usize;
        (segments + self.segments.capacity() * size_of::<Option<Segment>>()) as u64
    }

    /// Reserves room for a record at the end.
    pub fn append(&mut self, units: u32) -> Result<RecordAddr, Full> {
        let addr = match self.next.and_then(|next| Self::fit(next, units)) {
            Some(addr) => addr,
            None => self.open(units)?,
        };
        self.take(addr, units);
        Ok(addr)
    }

    /// Reserves whole log pages at the end.
    pub fn append_log_pages(&mut self, log_pages: u32) -> Result<RecordAddr, Full> {
        let fresh = |next: RecordAddr| match next.unit {
            0 => next,
            _ => RecordAddr { log_page: LogPageIdx(next.log_page.0 + 1), unit: 0 },
        };
        let units = log_pages * UNITS;
        let addr = match self.next.and_then(|next| Self::fit(fresh(next), units)) {
            Some(addr) => addr,
            None => self.open(units)?,
        };
        self.take(addr, units);
        Ok(addr)
    }

    fn take(&mut self, addr: RecordAddr, units: u32) {
        let before = self.next.map(|next| next.log_page.segment());
        self.each(addr, units, |used, part| used + part);
        self.units += u64::from(units);
        let end = u64::from(addr.log_page.0) * u64::from(UNITS) + u64::from(addr.unit) + u64::from(units);
        let log_page = LogPageIdx((end / u64::from(UNITS)) as u32);
        // The next log page belongs to the same segment, or else to none yet.
        let goes_on = !end.is_multiple_of(u64::from(SEGMENT * UNITS));
        self.next = goes_on.then_some(RecordAddr { log_page, unit: (end % u64::from(UNITS)) as u8 });
        // All of its records may have gone while it was the one that is appended to.
        before.map(|nth| self.retire(nth));
    }

    /// Where a record would lie if it fits into the rest of the segment.
    fn fit(next: RecordAddr, units: u32) -> Option<RecordAddr> {
        let left = UNITS - u32::from(next.unit);
        let addr = match units <= left || units > SPANNING {
            true => next,
            false => RecordAddr { log_page: LogPageIdx(next.log_page.0 + 1), unit: 0 },
        };
        let first = next.log_page.segment() * SEGMENT;
        let end = u64::from(addr.log_page.0 - first) * u64::from(UNITS) + u64::from(addr.unit) + u64::from(units);
        (end <= u64::from(SEGMENT * UNITS)).then_some(addr)
    }

    /// An address at the start of enough free segments in a row.
    fn open(&mut self, units: u32) -> Result<RecordAddr, Full> {
        let needed = units.div_ceil(SEGMENT * UNITS).max(1);
        let first = match needed {
            1 => self.free.first().copied(),
            _ => None,
        };
        let first = first.unwrap_or(self.segments.len() as u32);
        if first + needed > SEGMENTS {
            return Err(Full);
        }
        for n in first..first + needed {
            self.free.remove(&n);
            self.segment(n);
        }
        Ok(RecordAddr { log_page: LogPageIdx(first * SEGMENT), unit: 0 })
    }

    fn segment(&mut self, nth: u32) -> &mut Segment {
        let nth = nth as usize;
        if nth >= self.segments.len() {
            self.segments.resize_with(nth + 1, || None);
        }
        self.segments[nth].get_or_insert_with(|| Segment {
            used: Box::new([0; SEGMENT as usize]),
            units: 0,
            fills: [0; FILLS + 1],
            busy: 0,
        })
    }

    /// Changes what is in use of each log page over which a record lies, by the record's part in
    /// it.
    fn each(&mut self, addr: RecordAddr, units: u32, change: impl Fn(u8, u8) -> u8) {
        for (log_page, part) in parts(addr, units) {
            let segment = self.segment(log_page.segment());
            let used = &mut segment.used[(log_page.0 % SEGMENT) as usize];
            let (old, new) = (*used, change(*used, part));
            *used = new;
            segment.units = segment.units - u32::from(old) + u32::from(new);
            if fill(old) != fill(new) {
                segment.fills[fill(old)] = segment.fills[fill(old)].wrapping_sub(1);
                segment.fills[fill(new)] = segment.fills[fill(new)].wrapping_add(1);
                self.fills[fill(old)] = self.fills[fill(old)].wrapping_sub(1);
                self.fills[fill(new)] = self.fills[fill(new)].wrapping_add(1);
            }
        }
    }

    /// Enters a record that was found where it is.
    pub fn adopt(&mut self, addr: RecordAddr, units: u32) {
        self.each(addr, units, u8::saturating_add);
        self.units += u64::from(units);
    }

    /// A record is gone. Tells the log pages of which nothing is in use any more.
    pub fn remove(&mut self, addr: RecordAddr, units: u32, empty: &mut Vec<LogPageIdx>) {
        self.each(addr, units, u8::saturating_sub);
        self.units = self.units.saturating_sub(u64::from(units));
        for (log_page, _) in parts(addr, units) {
            if self.used(log_page) == 0 {
                empty.push(log_page);
            }
        }
    }

    /// Units in use of a log page.
    pub fn used(&self, log_page: LogPageIdx) -> u8 {
        let segment = self.segments.get(log_page.segment() as usize).and_then(Option::as_ref);
        segment.map_or(0, |s| s.used[(log_page.0 % SEGMENT) as usize])
    }

    /// A log page lies in a slot now.
    pub fn stored(&mut self, log_page: LogPageIdx) {
        self.log_pages += 1;
        self.hold(log_page);
    }

    /// A log page lies in no slot any more.
    pub fn freed(&mut self, log_page: LogPageIdx) -> Option<u32> {
        self.log_pages -= 1;
        self.let_go(log_page)
    }

    /// A write of a log page is under way: its segment stays.
    pub fn hold(&mut self, log_page: LogPageIdx) {
        self.segment(log_page.segment()).busy += 1;
    }

    /// Ends what `hold` began. Tells the segment if nothing of it is in use any more; it may be
    /// used anew then.
    pub fn let_go(&mut self, log_page: LogPageIdx) -> Option<u32> {
        let nth = log_page.segment();
        self.segment(nth).busy -= 1;
        self.retire(nth)
    }

    /// Ends a segment of which nothing is in use.
    fn retire(&mut self, nth: u32) -> Option<u32> {
        let open = self.next.is_some_and(|next| next.log_page.segment() == nth);
        let segment = self.segments.get_mut(nth as usize)?;
        if open || segment.as_ref().is_none_or(|s| s.busy > 0 || s.units > 0) {
            return None;
        }
        *segment = None;
        self.free.insert(nth);
        Some(nth)
    }

    /// Segments that nothing was found in may be used.
    pub fn adopted(&mut self) {
        for nth in 0..self.segments.len() as u32 {
            if self.segments[nth as usize].is_none() {
                self.free.insert(nth);
            }
        }
    }

    /// Whether records may still be added to this log page.
    pub fn is_open(&self, log_page: LogPageIdx) -> bool {
        self.next.is_some_and(|next| next.log_page == log_page)
    }

    /// Adds log pages of one fill that nothing is added to, from the `first` segment on, until
    /// there are so many.
    pub fn filled(&self, fill: usize, first: usize, most: usize, found: &mut Vec<LogPageIdx>) {
        let count = self.segments.len();
        for nth in (0..count).filter(|_| self.fills[fill] > 0).map(|n| first.wrapping_add(n) % count) {
            if let Some(segment) = self.segments[nth].as_ref().filter(|segment| segment.fills[fill] > 0) {
                let log_pages = (nth as u32 * SEGMENT..).map(LogPageIdx).zip(&*segment.used);
                let here = log_pages.filter(|(log_page, used)| self::fill(**used) == fill && !self.is_open(*log_page));
                found.extend(here.map(|(log_page, _)| log_page).take(most - found.len()));
            }
            if found.len() == most {
                return;
            }
        }
    }
}

/// How many eighths of a log page so many units are.
fn fill(used: u8) -> usize {
    usize::from(used).div_ceil(UNITS as usize / FILLS).min(FILLS)
}
/// The log pages over which a record lies, and the units in each.
pub fn parts(addr: RecordAddr, units: u32) -> impl Iterator<Item = (LogPageIdx, u8)> {
    let mut left = units;
    let mut at = addr;
    std::iter::from_fn(move || {
        let part = left.min(UNITS - u32::from(at.unit));
        let log_page = at.log_page;
        left -= part;
        at = RecordAddr { log_page: LogPageIdx(log_page.0 + 1), unit: 0 };
        (part > 0).then_some((log_page, part as u8))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        /// Against a plain set of units: no unit is given twice, and what is gone is found to be
        /// gone.
        #[test]
        fn no_unit_belongs_to_two_records(steps in proptest::collection::vec((any::<bool>(), 1u32..300, any::<usize>()), 1..400)) {
            let mut space = Space::default();
            let mut records: Vec<(RecordAddr, u32)> = Vec::new();
            let mut log_pages: BTreeMap<LogPageIdx, u32> = BTreeMap::new();
            for (appends, units, which) in steps {
                if appends || records.is_empty() {
                    let addr = space.append(units).unwrap();
                    for (other, n) in &records {
                        let at = |p: &RecordAddr| u64::from(p.log_page.0) * 64 + u64::from(p.unit);
                        prop_assert!(at(&addr) + u64::from(units) <= at(other) || at(other) + u64::from(*n) <= at(&addr));
                    }
                    prop_assert!(units > SPANNING || u32::from(addr.unit) + units <= UNITS);
                    for (log_page, part) in parts(addr, units) {
                        *log_pages.entry(log_page).or_default() += u32::from(part);
                    }
                    records.push((addr, units));
                } else {
                    let (addr, units) = records.swap_remove(which % records.len());
                    let mut empty = Vec::new();
                    space.remove(addr, units, &mut empty);
                    for (log_page, part) in parts(addr, units) {
                        let left = log_pages.get_mut(&log_page).unwrap();
                        *left -= u32::from(part);
                        prop_assert_eq!(empty.contains(&log_page), *left == 0);
                    }
                }
            }
            prop_assert_eq!(space.units(), records.iter().map(|(_, n)| u64::from(*n)).sum::<u64>());
            for (log_page, used) in log_pages {
                prop_assert_eq!(u32::from(space.used(log_page)), used);
            }
        }
    }

    #[test]
    fn a_large_record_gets_segments_in_a_row() {
        let mut space = Space::default();
        space.append(10).unwrap();
        let addr = space.append(SEGMENT * UNITS * 2 + 5).unwrap();
        assert_eq!(addr, RecordAddr { log_page: LogPageIdx(SEGMENT), unit: 0 });
        assert_eq!(space.append(3).unwrap(), RecordAddr { log_page: LogPageIdx(3 * SEGMENT), unit: 5 });
    }

    #[test]
    fn a_segment_is_used_anew_when_all_of_it_is_gone_and_not_before() {
        let mut space = Space::default();
        let mut empty = Vec::new();
        let first = space.append(SEGMENT * UNITS).unwrap();
        space.stored(first.log_page);
        space.hold(LogPageIdx(1));
        space.append(1).unwrap();
        space.remove(first, SEGMENT * UNITS, &mut empty);
        assert_eq!(empty.len(), SEGMENT as usize);
        assert_eq!(space.freed(first.log_page), None);
        assert_eq!(space.let_go(LogPageIdx(1)), Some(0));
        let addr = space.append(SEGMENT * UNITS).unwrap();
        assert_eq!(addr.log_page, LogPageIdx(0));
    }

    #[test]
    fn log_pages_are_found_by_how_much_of_them_is_in_use() {
        let mut space = Space::default();
        let records: Vec<RecordAddr> = (0..12).map(|_| space.append(16).unwrap()).collect();
        space.append(1).unwrap();
        let mut empty = Vec::new();
        for n in [0, 4, 5, 6] {
            space.remove(records[n], 16, &mut empty);
        }
        let found = |fill, most| {
            let mut found = Vec::new();
            space.filled(fill, 7, most, &mut found);
            found
        };
        let log_pages = [1, 2, 6, 8].map(|fill| found(fill, 9));
        // The one of the single unit is still open.
        assert_eq!(log_pages, [vec![], vec![LogPageIdx(1)], vec![LogPageIdx(0)], vec![LogPageIdx(2)]]);
        assert_eq!(found(2, 0), []);
    }
}
