//! Changes whose company is not known to be complete, see `changes`; and their saved form.
//!
//! What is displaced is in no table's records, so the window is saved with every change (`table`'s
//! window words, u32): lists, each its length first. Ranges are four words (first page low, high,
//! end low, high); an ambiguous unmap is a range and two words for its origin; a displaced range
//! is followed by its records (length, then page low, high, record, policy each); a past change is
//! its kind, then the child's number (two words), a range, or a range and the page it moved to.
//! The last list, of ranges, is what the space has changed of its own while it was young.

use crate::events::ambiguous_unmap::{AmbiguousUnmap, Origin};
use crate::page::{PageIdx, Range, overlap, without};
use crate::space::{Record, SpaceId};

/// Kinds of past changes.
const FORK: u32 = 1;
const UNMAP: u32 = 2;
const ECHO: u32 = 3;
const REMAP: u32 = 4;
const REMOVE: u32 = 5;
/// Origins that are no pages.
const PARENT: u64 = u64::MAX;
const BELOW: u64 = u64::MAX - 1;

/// Records of a mapping that another one has landed upon, until the message that says where it
/// went.
#[derive(Clone)]
pub struct Displaced {
    pub at: Range,
    pub records: Vec<(PageIdx, Record, u8)>,
}

/// A change of mappings, for the children that may have been forked after it.
#[derive(Clone, Debug)]
pub enum Past {
    Fork(SpaceId),
    Unmap(Range),
    /// The UNMAP of what a REMAP had left.
    Echo(Range),
    Remap(Range, PageIdx),
    /// Of a young child's own only: a parent's does not concern children.
    Remove(Range),
}

impl Past {
    /// Where other mappings lie than before it.
    pub fn maps_anew(&self) -> Vec<Range> {
        match *self {
            Past::Fork(..) | Past::Remove(_) => Vec::new(),
            Past::Unmap(range) | Past::Echo(range) => vec![range],
            Past::Remap(source, to) => vec![source, target_of(source, to)],
        }
    }
}

pub fn target_of(source: Range, to: PageIdx) -> Range {
    (to, to.plus(source.1.0 - source.0.0))
}

/// Changes that were read since it was last known that none was unread.
#[derive(Default)]
pub struct Window {
    pub landed: Vec<Range>,
    /// What REMAPs have left: each is followed by an UNMAP of the same range, which says nothing
    /// new.
    pub echoes: Vec<Range>,
    /// Oldest first.
    pub displaced: Vec<Displaced>,
    pub ambiguous: Vec<AmbiguousUnmap>,
    /// All changes since the first fork, and the forks.
    pub past: Vec<Past>,
    /// What a young child (see `young`) has changed of its own.
    pub own: Vec<Past>,
}

impl Window {
    pub fn is_open(&self) -> bool {
        let nothing_moved = self.landed.is_empty() && self.displaced.is_empty() && self.ambiguous.is_empty();
        !(nothing_moved && self.past.is_empty() && self.own.is_empty())
    }

    /// Takes what is displaced in `range` out: the records found, and the parts of the range in
    /// which nothing was displaced.
    pub fn vacate(&mut self, range: Range) -> (Vec<(PageIdx, Record, u8)>, Vec<Range>) {
        let (mut found, mut rest) = (Vec::new(), vec![range]);
        let mut kept = Vec::new();
        for mut displaced in std::mem::take(&mut self.displaced) {
            let mut left = Vec::new();
            let mut at = vec![displaced.at];
            for part in std::mem::take(&mut rest) {
                match overlap(part, displaced.at) {
                    None => left.push(part),
                    Some(both) => {
                        found.extend(displaced.records.extract_if(.., |(page, ..)| both.0 <= *page && *page < both.1));
                        left.extend(without(part, both));
                        at = at.into_iter().flat_map(|a| without(a, both).collect::<Vec<_>>()).collect();
                    }
                }
            }
            rest = left;
            for range in at {
                let mine = |(page, ..): &mut (PageIdx, Record, u8)| range.0 <= *page && *page < range.1;
                kept.push(Displaced { at: range, records: displaced.records.extract_if(.., mine).collect() });
            }
        }
        self.displaced = kept;
        (found, rest)
    }
}

impl Window {
    /// Something has landed: what had landed there before is not there any more.
    pub fn land(&mut self, target: Range) {
        self.landed = self.landed.iter().flat_map(|landed| without(*landed, target)).collect();
        self.landed.push(target);
    }

    /// Takes what is ambiguous of a part of what moves from `from` to `to`: as they are there.
    pub fn carry(&mut self, part: Range, from: PageIdx, to: PageIdx) -> Vec<AmbiguousUnmap> {
        let mut carried = Vec::new();
        for unmap in std::mem::take(&mut self.ambiguous) {
            let both = overlap(unmap.range, part);
            let left = both.map_or_else(|| vec![unmap.range], |both| without(unmap.range, both).collect());
            self.ambiguous.extend(left.into_iter().map(|range| AmbiguousUnmap { range, ..unmap }));
            carried.extend(both.map(|range| AmbiguousUnmap { range, ..unmap }.carried(from, to)));
        }
        carried
    }

    /// The saved form; nothing if the window is closed.
    pub fn save(&self) -> Vec<u32> {
        let mut words = Words::default();
        if !self.is_open() {
            return words.0;
        }
        words.ranges(&self.landed);
        words.ranges(&self.echoes);
        words.0.push(self.displaced.len() as u32);
        for displaced in &self.displaced {
            words.range(displaced.at);
            words.0.push(displaced.records.len() as u32);
            for (page, record, policy) in &displaced.records {
                words.wide(page.0);
                words.0.extend([record.encode(), u32::from(*policy)]);
            }
        }
        words.0.push(self.ambiguous.len() as u32);
        for unmap in &self.ambiguous {
            words.range(unmap.range);
            words.wide(match unmap.origin {
                Origin::Here(page) => page.0,
                Origin::Below => BELOW,
                Origin::Parent => PARENT,
            });
        }
        words.past(&self.past);
        words.past(&self.own);
        words.0
    }

    /// The window that was saved; `None` if the words are none.
    pub fn restored(words: &[u32]) -> Option<Window> {
        let mut words = words.iter().copied();
        if words.len() == 0 {
            return Some(Window::default());
        }
        let mut window = Window { landed: ranges(&mut words)?, echoes: ranges(&mut words)?, ..Window::default() };
        for _ in 0..words.next()? {
            let at = range(&mut words)?;
            let record = |words: &mut dyn Iterator<Item = u32>| {
                Some((PageIdx(wide(words)?), Record::decode(words.next()?), words.next()? as u8))
            };
            let records = (0..words.next()?).map(|_| record(&mut words)).collect::<Option<_>>()?;
            window.displaced.push(Displaced { at, records });
        }
        for _ in 0..words.next()? {
            let (range, origin) = (range(&mut words)?, wide(&mut words)?);
            let origin = match origin {
                PARENT => Origin::Parent,
                BELOW => Origin::Below,
                page => Origin::Here(PageIdx(page)),
            };
            window.ambiguous.push(AmbiguousUnmap { range, origin });
        }
        window.past = past(&mut words)?;
        window.own = past(&mut words)?;
        Some(window)
    }

    /// A change, if there are children that may have it too.
    pub fn remember(&mut self, change: Past) {
        if !self.past.is_empty() {
            self.past.push(change);
        }
    }

    /// A child of a child that has ended takes that one's place: it was forked after the same
    /// changes.
    pub fn adopt(&mut self, dead: SpaceId, child: SpaceId) {
        let is = |past: &Past, id| matches!(past, Past::Fork(child) if *child == id);
        if self.past.iter().any(|past| is(past, child)) {
            return;
        }
        if let Some(nth) = self.past.iter().position(|past| is(past, dead)) {
            self.past.insert(nth + 1, Past::Fork(child));
        }
    }

    /// Those that were forked in this window; some may have ended.
    pub fn children(&self) -> Vec<SpaceId> {
        let child = |past: &Past| if let Past::Fork(child) = past { Some(*child) } else { None };
        self.past.iter().filter_map(child).collect()
    }

    /// The first page of `range` that the space has not unmapped or moved itself while it was
    /// young.
    pub fn first_untouched(&self, range: Range) -> Option<PageIdx> {
        let mut untouched = vec![range];
        for own in self.own.iter().flat_map(Past::maps_anew) {
            untouched = untouched.into_iter().flat_map(|part| without(part, own).collect::<Vec<_>>()).collect();
        }
        untouched.first().map(|part| part.0)
    }

    /// The slots of displaced records: they are referred to from nowhere else.
    pub fn slots(&self) -> impl Iterator<Item = annex_shared::ids::SlotIdx> + '_ {
        self.displaced.iter().flat_map(|d| &d.records).filter_map(|(_, record, _)| record.slot())
    }
}

#[derive(Default)]
struct Words(Vec<u32>);

impl Words {
    fn wide(&mut self, value: u64) {
        self.0.extend([value as u32, (value >> 32) as u32]);
    }

    fn range(&mut self, range: Range) {
        self.wide(range.0.0);
        self.wide(range.1.0);
    }

    fn past(&mut self, past: &[Past]) {
        self.0.push(past.len() as u32);
        for past in past {
            let (kind, range) = match past {
                Past::Fork(child) => {
                    self.0.push(FORK);
                    self.wide(child.0);
                    continue;
                }
                Past::Unmap(range) => (UNMAP, range),
                Past::Echo(range) => (ECHO, range),
                Past::Remap(range, _) => (REMAP, range),
                Past::Remove(range) => (REMOVE, range),
            };
            self.0.push(kind);
            self.range(*range);
            if let Past::Remap(_, to) = past {
                self.wide(to.0);
            }
        }
    }

    fn ranges(&mut self, ranges: &[Range]) {
        self.0.push(ranges.len() as u32);
        ranges.iter().for_each(|range| self.range(*range));
    }
}

fn past(words: &mut dyn Iterator<Item = u32>) -> Option<Vec<Past>> {
    let one = |words: &mut dyn Iterator<Item = u32>| {
        Some(match words.next()? {
            FORK => Past::Fork(SpaceId(wide(words)?)),
            UNMAP => Past::Unmap(range(words)?),
            ECHO => Past::Echo(range(words)?),
            REMAP => Past::Remap(range(words)?, PageIdx(wide(words)?)),
            REMOVE => Past::Remove(range(words)?),
            _ => return None,
        })
    };
    (0..words.next()?).map(|_| one(words)).collect()
}

fn wide(words: &mut dyn Iterator<Item = u32>) -> Option<u64> {
    Some(u64::from(words.next()?) | u64::from(words.next()?) << 32)
}

fn range(words: &mut dyn Iterator<Item = u32>) -> Option<Range> {
    Some((PageIdx(wide(words)?), PageIdx(wide(words)?)))
}

fn ranges(words: &mut dyn Iterator<Item = u32>) -> Option<Vec<Range>> {
    (0..words.next()?).map(|_| range(words)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use annex_shared::ids::SlotIdx;

    fn range(from: u64, to: u64) -> Range {
        (PageIdx(from), PageIdx(to))
    }

    #[test]
    fn what_was_displaced_leaves_once_and_by_parts() {
        let record = |page| (PageIdx(page), Record::Evicted(SlotIdx(page as u32)), 0);
        let mut window = Window::default();
        window.displaced.push(Displaced { at: range(10, 20), records: vec![record(11), record(15), record(19)] });
        let (found, rest) = window.vacate(range(5, 16));
        assert_eq!(found, [record(11), record(15)]);
        assert_eq!(rest, [range(5, 10)], "only where nothing was displaced does the message mean what is there now");
        let (found, rest) = window.vacate(range(10, 30));
        assert_eq!(found, [record(19)]);
        assert_eq!(rest, [range(10, 16), range(20, 30)]);
        assert_eq!(window.vacate(range(10, 20)).1, [range(10, 20)]);
    }

    #[test]
    fn a_page_that_was_not_touched_is_found_between_those_that_were() {
        let own =
            vec![Past::Unmap(range(10, 12)), Past::Remove(range(12, 13)), Past::Remap(range(13, 14), PageIdx(14))];
        let own = own.into_iter().chain([Past::Unmap(range(15, 20))]).collect();
        let window = Window { own, ..Window::default() };
        assert_eq!(window.first_untouched(range(5, 30)), Some(PageIdx(5)));
        assert_eq!(window.first_untouched(range(10, 20)), Some(PageIdx(12)));
        assert_eq!(window.first_untouched(range(13, 20)), None);
    }

    #[test]
    fn a_saved_window_comes_back_and_half_of_one_does_not() {
        let mut window = Window { landed: vec![range(1, 2)], echoes: vec![range(3, 1 << 35)], ..Window::default() };
        let records = vec![(PageIdx(11), Record::Evicted(SlotIdx(4)), 3), (PageIdx(12), Record::Removed, 0)];
        window.displaced.push(Displaced { at: range(10, 20), records: records.clone() });
        window.ambiguous.push(AmbiguousUnmap { range: range(7, 8), origin: Origin::Here(PageIdx(6)) });
        window.ambiguous.push(AmbiguousUnmap { range: range(8, 9), origin: Origin::Below });
        window.ambiguous.push(AmbiguousUnmap { range: range(9, 10), origin: Origin::Parent });
        window.past.push(Past::Fork(SpaceId(1 << 33)));
        window.past.extend([Past::Unmap(range(1, 2)), Past::Echo(range(3, 4)), Past::Remap(range(5, 6), PageIdx(7))]);
        window.own.push(Past::Remove(range(20, 22)));
        let words = window.save();
        let back = Window::restored(&words).unwrap();
        assert_eq!((back.landed, back.echoes, back.ambiguous), (window.landed, window.echoes, window.ambiguous));
        assert_eq!((back.displaced[0].at, &back.displaced[0].records), (range(10, 20), &records));
        assert_eq!(format!("{:?}", (back.past, back.own)), format!("{:?}", (window.past, window.own)));
        assert!((1..words.len()).all(|n| Window::restored(&words[..n]).is_none()));
        assert!(Window::default().save().is_empty());
    }
}
