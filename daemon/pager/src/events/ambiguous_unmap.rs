//! Ambiguous UNMAPs: did it mean what had landed there (by mremap), or what was there before
//! that?
//!
//! When the window closes no message is unread, and the kernel is asked what lies there. If nothing
//! of ours does, the UNMAP meant what had landed. If something does, it may be what had landed; or
//! that is gone, and a mapping has grown over the place since, which no message tells: mremap grows
//! mappings in place, and its message about one that moves and grows gives the old length. Pages
//! that have grown are not there: their faults waited for us. And they belong to a mapping that
//! begins below the place: below where the landed one began, if the UNMAP took that one's
//! beginning.

use crate::page::{PageIdx, Range, overlap};
use crate::space::Record;

/// Pages of which it is not known whether they are mapped as the records have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AmbiguousUnmap {
    pub range: Range,
    pub origin: Origin,
}

/// Where the mapping that may be gone began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Not below this page, and the UNMAP was of that page too.
    Here(PageIdx),
    /// Below what the UNMAP was of: it may have grown again itself.
    Below,
    /// A forked child's, which may never have been there.
    Parent,
}

impl AmbiguousUnmap {
    /// About the pages of a mapping that landed at `landed` which an UNMAP of `range` may have
    /// meant.
    pub fn of(landed: Range, range: Range) -> Option<AmbiguousUnmap> {
        let origin = if range.0 <= landed.0 { Origin::Here(landed.0) } else { Origin::Below };
        overlap(range, landed).map(|range| AmbiguousUnmap { range, origin })
    }

    /// Something else has landed on `target`: what that leaves ambiguous. What lies behind it
    /// may be its rest, which is not in its message.
    pub fn landed_upon(self, target: Range) -> Vec<AmbiguousUnmap> {
        let AmbiguousUnmap { range, origin } = self;
        let behind = match origin {
            Origin::Here(page) if page < target.1 && target.0 < range.1 => Origin::Here(target.1),
            origin => origin,
        };
        let below = AmbiguousUnmap { range: (range.0, range.1.min(target.0)), origin };
        let above = AmbiguousUnmap { range: (range.0.max(target.1), range.1), origin: behind };
        [below, above].into_iter().filter(|part| part.range.0 < part.range.1).collect()
    }

    /// The same of what has moved from `from` to `to`.
    pub fn carried(self, from: PageIdx, to: PageIdx) -> AmbiguousUnmap {
        let there = |page: PageIdx| to.plus(page.0.saturating_sub(from.0));
        let origin = match self.origin {
            Origin::Here(page) => Origin::Here(there(page)),
            origin => origin,
        };
        AmbiguousUnmap { range: (there(self.range.0), there(self.range.1)), origin }
    }
}

/// What the kernel says about ambiguous pages.
#[derive(Debug)]
pub struct Evidence<'a> {
    /// The first ambiguous page that is mapped with us.
    pub page: PageIdx,
    /// First page and end of the mappings, in order.
    pub mappings: &'a [Range],
    /// Some ambiguous page that is mapped with us is in memory.
    pub any_present: bool,
}

/// What became of a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is there.
    Stays,
    /// It was unmapped, and another one lies there.
    Removed,
    Unknown,
}

/// About pages that are mapped with us, with these records.
pub fn judge(unmap: &AmbiguousUnmap, records: &[Record], evidence: &Evidence<'_>) -> Verdict {
    let is_there = match unmap.origin {
        Origin::Parent => true,
        Origin::Here(origin) => begins_there(origin, evidence.page, evidence.mappings),
        Origin::Below => false,
    };
    if is_there || evidence.any_present {
        return Verdict::Stays;
    }
    match records {
        // They would be present.
        records if records.iter().any(|r| matches!(r, Record::Clean(_))) => Verdict::Removed,
        records if records.iter().any(|r| matches!(r, Record::Evicted(_) | Record::Poisoned)) => Verdict::Unknown,
        // Absent pages read as zeros in both.
        _ => Verdict::Removed,
    }
}

/// Whether what lies at `page` begins at `origin`, or somewhere between: an adjacent mapping may be
/// another part of the same.
fn begins_there(origin: PageIdx, page: PageIdx, mappings: &[Range]) -> bool {
    let mut at = page;
    for (start, end) in mappings.iter().rev().filter(|(start, _)| *start <= page) {
        if *end <= page && *end != at {
            break;
        }
        at = *start;
        if at <= origin {
            break;
        }
    }
    at >= origin
}

#[cfg(test)]
mod tests {
    use super::*;
    use annex_shared::ids::SlotIdx;

    const EVICTED: Record = Record::Evicted(SlotIdx(7));
    const CLEAN: Record = Record::Clean(SlotIdx(8));

    fn range(from: u64, to: u64) -> Range {
        (PageIdx(from), PageIdx(to))
    }

    fn unmap(from: u64, to: u64, origin: u64) -> AmbiguousUnmap {
        AmbiguousUnmap { range: range(from, to), origin: Origin::Here(PageIdx(origin)) }
    }

    fn verdict(unmap: AmbiguousUnmap, records: &[Record], mappings: &[Range], any_present: bool) -> Verdict {
        judge(&unmap, records, &Evidence { page: unmap.range.0, mappings, any_present })
    }

    #[test]
    fn a_mapping_that_begins_where_it_landed_is_there() {
        let landed = unmap(20, 30, 20);
        assert_eq!(verdict(landed, &[EVICTED, CLEAN], &[range(20, 30)], false), Verdict::Stays);
        assert_eq!(verdict(landed, &[EVICTED], &[range(5, 10), range(20, 40)], false), Verdict::Stays);
        // Not the one below it, from which it is told apart by where it begins.
        assert_eq!(verdict(landed, &[EVICTED], &[range(5, 20), range(20, 40)], false), Verdict::Stays);
        // In parts, of which the first is not ambiguous.
        let part = unmap(24, 30, 20);
        assert_eq!(verdict(part, &[EVICTED], &[range(20, 22), range(22, 26), range(26, 30)], false), Verdict::Stays);
        // Its beginning was unmapped since.
        assert_eq!(verdict(part, &[EVICTED], &[range(23, 30)], false), Verdict::Stays);
    }

    #[test]
    fn what_has_grown_over_it_from_below_has_none_of_its_pages() {
        let landed = unmap(20, 30, 20);
        let grown = [range(2, 4), range(10, 30)];
        assert_eq!(verdict(landed, &[EVICTED, CLEAN], &grown, false), Verdict::Removed);
        assert_eq!(verdict(landed, &[Record::Removed], &grown, false), Verdict::Removed);
        assert_eq!(
            verdict(landed, &[CLEAN], &grown, true),
            Verdict::Stays,
            "the kernel has merged it with the one below"
        );
        assert_eq!(verdict(landed, &[EVICTED], &grown, false), Verdict::Unknown);
        // The mapping that grew is in two parts by now.
        let parts = [range(10, 25), range(25, 40)];
        assert_eq!(verdict(unmap(26, 30, 20), &[CLEAN], &parts, false), Verdict::Removed);
    }

    #[test]
    fn doubts_move_with_what_they_are_about() {
        assert_eq!(unmap(24, 30, 20).carried(PageIdx(20), PageIdx(50)), unmap(54, 60, 50));
        // Its tail moves: that begins where it lands.
        assert_eq!(unmap(24, 30, 20).carried(PageIdx(22), PageIdx(50)), unmap(52, 58, 50));
        // What has grown over it moves, with what lies below.
        let grown = unmap(24, 30, 24).carried(PageIdx(10), PageIdx(50));
        assert_eq!(grown, unmap(64, 70, 64));
        assert_eq!(verdict(grown, &[CLEAN], &[range(50, 70)], false), Verdict::Removed);
    }

    #[test]
    fn of_a_mapping_that_shrank_only_pages_tell_whether_it_grew_again() {
        let tail = AmbiguousUnmap::of(range(20, 30), range(25, 40)).unwrap();
        assert_eq!(tail, AmbiguousUnmap { range: range(25, 30), origin: Origin::Below });
        let whole = [range(20, 30)];
        assert_eq!(verdict(tail, &[CLEAN], &whole, true), Verdict::Stays);
        assert_eq!(verdict(tail, &[CLEAN], &whole, false), Verdict::Removed);
        assert_eq!(verdict(tail, &[EVICTED], &whole, false), Verdict::Unknown);
        assert_eq!(AmbiguousUnmap::of(range(20, 30), range(15, 30)), Some(unmap(20, 30, 20)));
        assert_eq!(AmbiguousUnmap::of(range(20, 30), range(30, 40)), None);
    }

    #[test]
    fn a_childs_mapping_is_there_if_it_is_mapped() {
        let childs = AmbiguousUnmap { range: range(20, 30), origin: Origin::Parent };
        assert_eq!(verdict(childs, &[EVICTED], &[range(10, 30)], false), Verdict::Stays);
    }

    #[test]
    fn what_lands_leaves_doubts_beside_it_and_may_go_on_behind_it() {
        let landed = unmap(20, 30, 18);
        assert_eq!(landed.landed_upon(range(22, 24)), [unmap(20, 22, 18), unmap(24, 30, 24)]);
        assert_eq!(landed.landed_upon(range(20, 30)), []);
        assert_eq!(landed.landed_upon(range(18, 19)), [unmap(20, 30, 19)], "below, where the mapping in doubt was");
        assert_eq!(landed.landed_upon(range(10, 12)), [landed], "below that: where mappings begin tells it");
        assert_eq!(landed.landed_upon(range(40, 50)), [landed]);
        // So what has moved to 18 and grown over the rest is not taken for it.
        let [rest] = landed.landed_upon(range(18, 19))[..] else { panic!("one part") };
        assert_eq!(verdict(rest, &[CLEAN], &[range(18, 40)], false), Verdict::Removed);
    }
}
