//! Which page is next, and whether it is written: the patterns.

use super::dice::Dice;
use super::zipf::Zipf;
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// How far apart the pages of the strided pattern are: so far that reading neighbours along is no
/// help, and no divisor of any window's size.
const STRIDE: usize = 7;
/// In the phase pattern the working set is this part of the pages: it fits in memory at every share
/// that is measured.
const PHASE_PART: usize = 8;
/// And it moves when each of its pages has been read so often, on average.
const PHASE_TOUCHES: usize = 8;

/// Which page is next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Pattern {
    /// Whole pages read, each as likely as any other.
    Random,
    /// Whole pages read in order, over and over.
    Sequential,
    /// Every 7th page read, in order; the next pass takes the pages after those, until all have
    /// been read.
    Strided,
    /// Zipf with exponent 0.99 over scattered pages; one access in ten writes.
    Zipf,
    /// Random reads within an eighth of the pages, which moves elsewhere as soon as it has been
    /// read eight times over.
    Phase,
}

impl Pattern {
    pub const ALL: [Pattern; 5] =
        [Pattern::Random, Pattern::Sequential, Pattern::Strided, Pattern::Zipf, Pattern::Phase];

    pub fn name(self) -> &'static str {
        match self {
            Pattern::Random => "random",
            Pattern::Sequential => "sequential",
            Pattern::Strided => "strided",
            Pattern::Zipf => "zipf",
            Pattern::Phase => "phase",
        }
    }
}

/// A sequence of pages without end.
pub struct Walk {
    pages: usize,
    dice: Dice,
    way: Way,
}

enum Way {
    Random,
    Stride { by: usize, next: usize },
    Zipf(Zipf),
    Phase { first: usize, left: usize },
}

impl Walk {
    pub fn new(pattern: Pattern, pages: usize, seed: u64) -> Walk {
        let way = match pattern {
            Pattern::Random => Way::Random,
            Pattern::Sequential => Way::Stride { by: 1, next: 0 },
            Pattern::Strided => Way::Stride { by: STRIDE.min(pages), next: 0 },
            Pattern::Zipf => Way::Zipf(Zipf::new(pages, 0.99)),
            Pattern::Phase => Way::Phase { first: 0, left: 0 },
        };
        Walk { pages, dice: Dice::new(seed), way }
    }

    /// A page, and whether it is written.
    pub fn step(&mut self) -> (usize, bool) {
        match &mut self.way {
            Way::Random => (self.dice.below(self.pages), false),
            Way::Stride { by, next } => {
                let page = *next;
                *next = if page + *by < self.pages { page + *by } else { (page + 1) % *by };
                (page, false)
            }
            Way::Zipf(zipf) => {
                let page = zipf.scattered(self.dice.roll());
                (page, self.dice.one_in(10))
            }
            Way::Phase { first, left } => {
                let set = (self.pages / PHASE_PART).max(1);
                if *left == 0 {
                    *first = self.dice.below(self.pages - set + 1);
                    *left = set * PHASE_TOUCHES;
                }
                *left -= 1;
                (*first + self.dice.below(set), false)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn pages_of(pattern: Pattern, pages: usize, steps: usize) -> Vec<usize> {
        let mut walk = Walk::new(pattern, pages, 1);
        (0..steps).map(|_| walk.step().0).collect()
    }

    #[test]
    fn strides_reach_every_page_once_before_any_again() {
        let pages = pages_of(Pattern::Strided, 100, 100);
        assert_eq!(pages[..3], [0, 7, 14]);
        assert_eq!(pages.iter().collect::<BTreeSet<_>>().len(), 100);
        assert_eq!(pages_of(Pattern::Strided, 100, 101)[100], 0);
    }

    #[test]
    fn a_phase_stays_within_its_part_and_the_next_is_elsewhere() {
        let (pages, set) = (8000, 1000);
        let steps = pages_of(Pattern::Phase, pages, 2 * set * PHASE_TOUCHES);
        let (one, two) = steps.split_at(set * PHASE_TOUCHES);
        let span = |steps: &[usize]| (*steps.iter().min().unwrap(), *steps.iter().max().unwrap());
        assert!(span(one).1 - span(one).0 < set && span(two).1 - span(two).0 < set);
        assert_ne!(span(one), span(two));
    }

    #[test]
    fn no_pattern_leaves_its_pages() {
        for pattern in Pattern::ALL {
            for pages in [1, 5, 100] {
                assert!(pages_of(pattern, pages, 1000).iter().all(|page| *page < pages), "{pattern:?} of {pages}");
            }
        }
    }
}
