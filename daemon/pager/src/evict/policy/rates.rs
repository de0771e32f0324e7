//! How soon the evicted pages of each [`Class`] come back.
//!
//! A class's *rate* is the number of its evicted pages that came back, divided by the time that its
//! evicted pages were out. It is taken of samples, [`SAMPLES`] at most of each class. Time is
//! counted in pages evicted. A page that stays out tells as much as one that comes back: its time
//! counts from the beginning.

use crate::evict::policy::class::{CLASSES, Class};
use crate::page::PageIdx;
use std::collections::{HashMap, VecDeque};

/// Pages of each class that are followed while they are out.
const SAMPLES: usize = 256;
/// A sample is followed while so many times the local pages leave.
const HORIZON: u64 = 2;
/// What of earlier counts is kept when as many pages have left as a quarter of the local ones.
pub const KEPT: f64 = 0.8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Sample {
    class: Class,
    left: u64,
}

#[derive(Debug, Default)]
struct Counts {
    out: u32,
    returns: f64,
    time_out: f64,
    followed: VecDeque<(PageIdx, u64)>,
    last: Option<u64>,
}

#[derive(Debug, Default)]
pub struct Rates {
    classes: [Counts; CLASSES],
    /// Grows when pages leave, never when they come back.
    samples: HashMap<PageIdx, Sample>,
    now: u64,
    horizon: u64,
}

impl Rates {
    /// So many pages have left in all, and so many are local.
    pub fn advance(&mut self, now: u64, local: u64) {
        let past = (now - self.now) as f64;
        (self.now, self.horizon) = (now, local * HORIZON);
        for counts in &mut self.classes {
            counts.time_out += f64::from(counts.out) * past;
        }
    }

    /// What was counted before counts less from now on.
    pub fn fade(&mut self) {
        for counts in &mut self.classes {
            counts.returns *= KEPT;
            counts.time_out *= KEPT;
        }
    }

    pub fn left(&mut self, page: PageIdx, class: Class) {
        let (now, horizon) = (self.now, self.horizon);
        let counts = &mut self.classes[class.index()];
        if counts.last.is_some_and(|last| now - last < horizon / SAMPLES as u64) {
            return;
        }
        counts.last = Some(now);
        let mut over = Vec::new();
        while counts.followed.len() >= SAMPLES || counts.followed.front().is_some_and(|(_, left)| left + horizon < now)
        {
            over.extend(counts.followed.pop_front());
        }
        counts.followed.push_back((page, now));
        for (page, left) in over {
            if self.samples.get(&page) == Some(&Sample { class, left }) {
                self.forget(page);
            }
        }
        self.forget(page);
        self.samples.insert(page, Sample { class, left: now });
        self.classes[class.index()].out += 1;
    }

    pub fn came_back(&mut self, page: PageIdx) {
        if let Some(class) = self.forget(page) {
            self.classes[class.index()].returns += 1.0;
        }
    }

    /// The page is not followed any more. Its class, if it was.
    pub fn forget(&mut self, page: PageIdx) -> Option<Class> {
        let sample = self.samples.remove(&page)?;
        self.classes[sample.class.index()].out -= 1;
        Some(sample.class)
    }

    /// How many came back, of late.
    pub fn returns(&self, class: Class) -> f64 {
        self.classes[class.index()].returns
    }

    /// An estimate that takes a class of which little is known for an average one.
    pub fn likely(&self, class: Class) -> f64 {
        let sum = |of: fn(&Counts) -> f64| 1.0 + self.classes.iter().map(of).sum::<f64>();
        let average = sum(|counts| counts.returns) / sum(|counts| counts.time_out);
        let counts = &self.classes[class.index()];
        (counts.returns + 2.0) / (counts.time_out + 2.0 / average)
    }

    /// An estimate that is more likely too high than too low.
    pub fn at_most(&self, class: Class) -> f64 {
        let counts = &self.classes[class.index()];
        let returns = counts.returns + 1.0;
        (returns + returns.sqrt() / 2.0) / counts.time_out.max(f64::MIN_POSITIVE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evict::policy::class::{Age, Origin};

    const SOON: Class = Class::of(Origin::AfterMoment, Age::Settled);
    const LATE: Class = Class::of(Origin::Streamed, Age::Young);

    #[test]
    fn pages_that_come_back_sooner_have_a_higher_rate() {
        let mut rates = Rates::default();
        for round in 0..100 {
            let (soon, late) = (PageIdx(1_000 + round), PageIdx(2_000 + round));
            rates.advance(round * 100, 1_000);
            rates.left(soon, SOON);
            rates.left(late, LATE);
            rates.advance(round * 100 + 10, 1_000);
            rates.came_back(soon);
            rates.advance(round * 100 + 90, 1_000);
            rates.came_back(late);
        }
        assert!(rates.likely(SOON) > 5.0 * rates.likely(LATE));
        assert!(rates.at_most(LATE) < rates.likely(SOON));
        assert!(rates.samples.is_empty() && rates.classes.iter().all(|counts| counts.out == 0));
    }

    #[test]
    fn what_stays_out_lowers_the_rate_of_its_class() {
        let mut rates = Rates::default();
        rates.advance(0, 1_000);
        for page in 0..10 {
            rates.advance(page * 10, 1_000);
            rates.left(PageIdx(page), LATE);
        }
        let before = rates.at_most(LATE);
        rates.advance(2_000, 1_000);
        assert!(rates.at_most(LATE) < before / 10.0);
    }

    #[test]
    fn no_more_pages_are_followed_than_there_are_samples_for() {
        let mut rates = Rates::default();
        for page in 0..100_000 {
            rates.advance(page, 1_000);
            rates.left(PageIdx(page), SOON);
        }
        assert!(rates.samples.len() <= SAMPLES, "{}", rates.samples.len());
        assert_eq!(rates.classes[SOON.index()].out as usize, rates.samples.len());
    }
}
