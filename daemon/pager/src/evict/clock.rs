//! The clock: which pages of a space go next.
//!
//! The hand goes over the space's regions in address order. PAGEMAP_SCAN says what is resident,
//! the records say what may go, the heat ([`policy`](super::policy)) what is cold. Cold pages are
//! gathered into *spans*: consecutive pages, across pages that are evicted already. A span moves
//! in one call, and on every call the kernel interrupts each CPU that runs the app, so long spans
//! are worth having.

use crate::inject::stub::{STAGING_PART, Stub};
use crate::kernel::{Pagemap, Run};
use crate::page::PageIdx;
use crate::space::{INTENT_RANGES, Identity};
use annex_host::failpoint::failpoint;
use std::io;
use std::time::{Duration, Instant};

/// A span does not go on over more evicted pages than this.
const WIDEST_GAP: u64 = 512;
/// How long the app may take to get its own copies of pages that a fork left shared.
const UNSHARING: Duration = Duration::from_millis(100);
/// Spans of one batch at most. Each is a call, and after each time that the app has run the kernel
/// interrupts its CPUs for the next one: 12 us a call in a virtual machine. Faults are served
/// meanwhile, but not those on pages of the batch. 96 spans in place of 40: random reads of a set
/// of which a quarter is resident 47 thousand a second for 46, p99.9 330 us for 297; zipf 151 for
/// 161, 204 us for 204.
const MOST_SPANS: usize = 40;
const _: () = assert!(MOST_SPANS <= INTENT_RANGES);

/// Where the hand is and what it goes by.
#[derive(Default)]
pub struct Clock {
    pub(super) hand: u64,
    pub(super) pagemap: Option<Pagemap>,
    pub(super) scanned: Option<(Instant, Duration)>,
    pub(super) runs: Vec<Run>,
    /// Where the hand went back to, for pages that should not be shared any more.
    unshared: Option<PageIdx>,
    /// When the stub answered last.
    pub last_answer: Option<Instant>,
}

/// Pages to move.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Victims {
    /// In address order; whether each seems unwritten since its pool copy was made.
    pub pages: Vec<(PageIdx, bool)>,
    /// First page and length of each span; what is not a victim in it is evicted already.
    pub spans: Vec<(PageIdx, u64)>,
    /// Sum of the spans' lengths.
    pub covered: u64,
}

impl Victims {
    pub(super) fn is_full(&self, want: usize) -> bool {
        self.pages.len() >= want || self.spans.len() >= MOST_SPANS || self.covered >= STAGING_PART
    }

    /// Adds a page behind all others: in the last span, if `bridge` lets that go on from its end to
    /// the page, else in one of its own. False: there is no room for it.
    pub(super) fn push(
        &mut self,
        page: PageIdx,
        unwritten: bool,
        bridge: impl FnOnce(PageIdx, PageIdx) -> bool,
    ) -> bool {
        let extended = match self.spans.last_mut() {
            Some((first, len)) if first.0 + *len <= page.0 => {
                let end = first.plus(*len);
                let grown = page.0 + 1 - end.0;
                let fits = self.covered + grown <= STAGING_PART && grown <= WIDEST_GAP;
                (fits && bridge(end, page)).then(|| {
                    *len += grown;
                    grown
                })
            }
            _ => None,
        };
        match extended {
            Some(grown) => self.covered += grown,
            None if self.spans.len() < MOST_SPANS && self.covered < STAGING_PART => {
                self.spans.push((page, 1));
                self.covered += 1;
            }
            None => return false,
        }
        self.pages.push((page, unwritten));
        true
    }
}

impl Clock {
    /// The moves are over, and this page's never began: the hand goes back to it.
    pub fn resume(&mut self, pagemap: Pagemap, rest: Option<PageIdx>) {
        self.pagemap = Some(pagemap);
        rest.into_iter().for_each(|page| self.hand = page.addr());
    }

    /// Pages that the kernel did not move because a fork left them shared: the stub has it give the
    /// app its own copies, and the hand goes back for those. Pages that are pinned for I/O look the
    /// same and stay so: what the hand comes back to in vain is passed. False: no use trying again
    /// now.
    pub fn unshare(&mut self, stub: &mut Stub, busy: &[PageIdx]) -> bool {
        let Some(first) = busy.first() else { return false };
        if self.unshared == Some(*first) {
            self.unshared = None;
            self.hand = first.plus(1).addr();
            return false;
        }
        failpoint("pages-shared");
        self.unshared = Some(*first);
        self.hand = first.addr();
        stub.populate(busy, UNSHARING).is_ok()
    }

    /// The mappings are not what they were: look at them before the next choice.
    pub fn forget_regions(&mut self) {
        self.scanned = None;
    }

    /// Open already, as a rule; whoever is done with it gives it back.
    pub fn take_pagemap(&mut self, space: &Identity) -> io::Result<Pagemap> {
        self.pagemap.take().map_or_else(|| space.pagemap(), Ok)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_bridges_what_is_evicted_and_nothing_else() {
        let mut victims = Victims::default();
        let evicted = |from: PageIdx, to: PageIdx| from == to || (from.0 >= 10 && to.0 <= 14);
        for page in [8, 9, 14, 20] {
            assert!(victims.push(PageIdx(page), false, evicted));
        }
        assert_eq!(victims.spans, [(PageIdx(8), 7), (PageIdx(20), 1)]);
        assert_eq!(victims.pages.len(), 4);
    }

    #[test]
    fn a_batch_of_scattered_pages_has_few_spans() {
        let mut victims = Victims::default();
        let taken = (0..).take_while(|i| victims.push(PageIdx(i * 2), false, |_, _| false)).count();
        assert_eq!((taken, victims.spans.len()), (MOST_SPANS, MOST_SPANS));
        assert!(victims.is_full(usize::MAX));
    }

    #[test]
    fn spans_never_cover_more_than_staging_holds() {
        let mut victims = Victims::default();
        let mut page = 0;
        while !victims.is_full(usize::MAX) && victims.push(PageIdx(page), false, |_, _| true) {
            page += 300;
        }
        assert!(victims.covered <= STAGING_PART);
        assert_eq!(victims.covered, victims.spans.iter().map(|(_, len)| len).sum::<u64>());
    }
}
