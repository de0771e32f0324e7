//! [`Replacement`], annexd's own code, with a hand over the model's pages.

use crate::policy::annexd::{Chooser, MOST_SPANS, Pages, Place};
use annex_pager::policy::{Class, PageIdx, Replacement, Verdict};

pub struct Learned {
    policy: Replacement,
    /// The policy bits of each page.
    bits: Vec<u8>,
    hand: usize,
}

impl Learned {
    /// For pages below `end`.
    pub fn new(end: u32) -> Learned {
        Learned { policy: Replacement::default(), bits: vec![0; end as usize], hand: 0 }
    }

    fn of_the_queue(&mut self, pages: &Pages, want: usize, victims: &mut Vec<u32>) {
        while victims.len() < want
            && let Some(page) = self.policy.next_young()
        {
            let at = page.0 as usize;
            let class = Class::from_bits(self.bits[at]);
            if pages.places[at] != Place::Local || !class.is_young() {
                continue;
            }
            match self.policy.grows_up(page, class) {
                Verdict::Goes => victims.push(at as u32),
                Verdict::Stays(class) => self.bits[at] = class.bits(),
            }
        }
    }

    fn of_the_hand(&mut self, pages: &mut Pages, want: usize, victims: &mut Vec<u32>) {
        let (mut spans, mut last) = (0, None);
        for _ in 0..3 * pages.places.len() {
            if victims.len() >= want || spans == MOST_SPANS {
                break;
            }
            let at = self.hand;
            self.hand = (at + 1) % pages.places.len();
            if pages.places[at] != Place::Local {
                continue;
            }
            pages.scanned += 1;
            match self.policy.pass(PageIdx(at as u64), Class::from_bits(self.bits[at])) {
                Verdict::Goes => {
                    spans += usize::from(last.is_none_or(|last| last + 1 != at));
                    last = Some(at);
                    victims.push(at as u32);
                }
                Verdict::Stays(class) => self.bits[at] = class.bits(),
            }
        }
    }
}

impl Chooser for Learned {
    fn is_new(&mut self, page: u32) {
        self.bits[page as usize] = self.policy.is_new(PageIdx(page.into())).bits();
    }

    fn comes_back(&mut self, page: u32, alone: bool) {
        let bits = &mut self.bits[page as usize];
        *bits = self.policy.came_back(PageIdx(page.into()), *bits, alone).bits();
    }

    fn is_gone(&mut self, page: u32, was_local: bool) {
        let bits = std::mem::take(&mut self.bits[page as usize]);
        if was_local {
            self.policy.local_gone(Class::from_bits(bits));
        } else {
            self.policy.evicted_gone(PageIdx(page.into()));
        }
    }

    fn batch(&mut self, pages: &mut Pages, want: usize) -> Vec<u32> {
        let of_hand = self.policy.begin(pages.local, want);
        let mut victims = Vec::with_capacity(want);
        self.of_the_queue(pages, want - of_hand, &mut victims);
        self.of_the_hand(pages, want, &mut victims);
        victims.sort_unstable();
        // The queue knows one that came twice in two places, and the hand passes what is in it.
        victims.dedup();
        victims
    }

    fn have_left(&mut self, left: &[u32]) {
        for page in left {
            let class = Class::from_bits(self.bits[*page as usize]);
            self.bits[*page as usize] = self.policy.left(PageIdx((*page).into()), class);
        }
    }
}
