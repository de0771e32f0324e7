//! Which syncing replica is filled next, and how fast. Pure.

use annex_shared::ids::ExtentId;
use std::time::{Duration, Instant};

/// A fill that could not go on is tried again after this.
const RETRY: Duration = Duration::from_millis(100);
/// A backup is looked at so often for what was written meanwhile.
const FOLLOW_EVERY: Duration = Duration::from_millis(100);
/// If for this long no page could be copied since every live replica gave wrong bytes for all that
/// are left, those are lost.
const GIVE_UP: Duration = Duration::from_secs(10);

/// A syncing replica and how far it is.
#[derive(Clone, Debug)]
pub(crate) struct Fill {
    pub extent: ExtentId,
    pub index: u8,
    pub generation: u16,
    /// Live replicas its extent has: the fewer, the more urgent.
    pub live: usize,
    /// Where this round goes on.
    pub cursor: u32,
    /// Pages that no replica could give count as copied: nobody has what is asked for.
    pub forgives: bool,
    not_before: Option<Instant>,
    copied: bool,
    /// Something else was in the way than wrong bytes.
    hindered: bool,
    fruitless_since: Option<Instant>,
}

impl Fill {
    pub fn new(extent: ExtentId, index: u8, generation: u16, live: usize) -> Fill {
        Fill {
            extent,
            index,
            generation,
            live,
            cursor: 0,
            forgives: false,
            not_before: None,
            copied: false,
            hindered: false,
            fruitless_since: None,
        }
    }

    /// Some pages were copied.
    pub fn progressed(&mut self) {
        self.copied = true;
    }

    /// It can't go on now.
    pub fn stuck(&mut self, now: Instant) {
        self.not_before = Some(now + RETRY);
    }

    /// A backup lacks nothing that could be copied now.
    pub fn rests(&mut self, now: Instant) {
        (self.cursor, self.copied, self.hindered) = (0, false, false);
        self.not_before = Some(now + FOLLOW_EVERY);
    }

    /// Pages could not be copied for another reason than that no replica gave them right.
    pub fn hindered(&mut self, now: Instant) {
        self.hindered = true;
        self.stuck(now);
    }

    /// A round over all that is missed is over, and something is still missed.
    pub fn round_completed(&mut self, now: Instant) {
        self.cursor = 0;
        if std::mem::take(&mut self.copied) | std::mem::take(&mut self.hindered) {
            self.fruitless_since = None;
        } else {
            let since = *self.fruitless_since.get_or_insert(now);
            self.forgives = now.duration_since(since) >= GIVE_UP;
        }
        self.stuck(now);
    }
}

/// The fills to be done.
#[derive(Debug, Default)]
pub(crate) struct Fills {
    all: Vec<Fill>,
}

impl Fills {
    /// A newer one for the same replica takes the older one's.
    pub fn add(&mut self, fill: Fill) {
        self.all.retain(|f| (f.extent, f.index) != (fill.extent, fill.index));
        self.all.push(fill);
    }

    /// Puts one back that was taken and is not completed, unless a newer one came for its replica
    /// meanwhile.
    pub fn put_back(&mut self, fill: Fill) {
        if !self.all.iter().any(|f| (f.extent, f.index) == (fill.extent, fill.index)) {
            self.all.push(fill);
        }
    }

    /// Takes the most urgent one that can go on now. Put it back with [`Fills::put_back`] unless it
    /// is over.
    pub fn next(&mut self, now: Instant) -> Option<Fill> {
        let can = |f: &Fill| f.not_before.is_none_or(|at| at <= now);
        let ready = self.all.iter().enumerate().filter(|(_, f)| can(f));
        let (at, _) = ready.min_by_key(|(_, f)| (f.live, f.extent, f.index))?;
        Some(self.all.swap_remove(at))
    }

    /// When the next one can go on; `None` = one can now, or there is none.
    pub fn due(&self) -> Option<Instant> {
        self.all.iter().map(|f| f.not_before).min().flatten()
    }

    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }
}

/// What was not spent this long ago may still be: copying takes time itself, and what waits is
/// woken late.
const BEHIND: Duration = Duration::from_millis(100);

/// So many bytes per second on average, and no more at once than are due in `BEHIND`.
#[derive(Debug)]
pub(crate) struct Pace {
    rate: u64,
    free_at: Option<Instant>,
}

impl Pace {
    /// 0 = no limit.
    pub fn new(rate: u64) -> Pace {
        Pace { rate, free_at: None }
    }

    pub fn spend(&mut self, bytes: u64, now: Instant) {
        if self.rate > 0 {
            let from = self.free_at.map_or(now, |at| at.max(now - BEHIND));
            self.free_at = Some(from + Duration::from_secs_f64(bytes as f64 / self.rate as f64));
        }
    }

    /// How long to wait before more may be spent.
    pub fn wait(&self, now: Instant) -> Duration {
        self.free_at.map_or(Duration::ZERO, |at| at.saturating_duration_since(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extents_with_the_fewest_replicas_are_filled_first_and_one_that_is_stuck_holds_up_none() {
        let now = Instant::now();
        let mut fills = Fills::default();
        for (extent, live) in [(1, 2), (2, 1), (3, 1)] {
            fills.add(Fill::new(ExtentId(extent), 0, 0, live));
        }
        let mut first = fills.next(now).unwrap();
        assert_eq!(first.extent, ExtentId(2));
        first.stuck(now);
        fills.add(first);
        assert_eq!(fills.next(now).unwrap().extent, ExtentId(3));
        assert_eq!(fills.next(now).unwrap().extent, ExtentId(1));
        assert!(fills.next(now).is_none());
        assert_eq!(fills.next(fills.due().unwrap()).unwrap().extent, ExtentId(2));
    }

    /// Backups are looked at again and again, and were what the repair thread waited for.
    #[test]
    fn what_rests_keeps_nothing_waiting_that_can_go_on() {
        let now = Instant::now();
        let mut fills = Fills::default();
        let mut backup = Fill::new(ExtentId(1), 0, 0, usize::MAX);
        backup.rests(now);
        fills.add(backup);
        assert_eq!(fills.due(), Some(now + FOLLOW_EVERY));
        fills.add(Fill::new(ExtentId(2), 0, 0, 1));
        assert_eq!(fills.due(), None);
        assert_eq!(fills.next(now + FOLLOW_EVERY).unwrap().extent, ExtentId(2));
    }

    #[test]
    fn a_page_that_nobody_has_is_given_up_only_after_long_without_any_progress() {
        let mut now = Instant::now();
        let mut fill = Fill::new(ExtentId(1), 0, 0, 1);
        for _ in 0..50 {
            now += GIVE_UP / 5;
            fill.progressed();
            fill.round_completed(now);
        }
        assert!(!fill.forgives);
        fill.round_completed(now);
        fill.hindered(now + GIVE_UP);
        fill.round_completed(now + GIVE_UP);
        fill.round_completed(now + GIVE_UP);
        assert!(!fill.forgives, "a replica that could not be reached is not one that gives wrong bytes");
        fill.round_completed(now + GIVE_UP * 2);
        assert!(fill.forgives);
    }

    /// However long each piece takes, as long as it is less than the rate leaves for it.
    #[test]
    fn the_rate_is_kept_on_average() {
        const PIECE: u64 = 256 << 10;
        for takes in [Duration::from_micros(50), Duration::from_millis(10), Duration::from_millis(20)] {
            let start = Instant::now();
            let (mut now, mut pace, mut bytes) = (start, Pace::new(10 << 20), 0u64);
            while now < start + Duration::from_secs(10) {
                now += pace.wait(now) + takes;
                pace.spend(PIECE, now);
                bytes += PIECE;
            }
            let rate = bytes / 10;
            assert!((9 << 20..=11 << 20).contains(&rate), "{rate}, with {takes:?} for each piece");
        }
    }

    #[test]
    fn what_was_not_spent_for_long_is_not_spent_at_once() {
        let start = Instant::now();
        let mut pace = Pace::new(10 << 20);
        pace.spend(1, start);
        let now = start + Duration::from_secs(60);
        let mut bytes = 0u64;
        while pace.wait(now).is_zero() {
            pace.spend(64 << 10, now);
            bytes += 64 << 10;
        }
        assert!(bytes <= (1 << 20) + (64 << 10), "{bytes} at once");
    }
}
