//! Controllers against modelled apps, over days of virtual time.
//!
//! The model evicts as annexd does: a clock hand that knows refaults and nothing of reads, down to
//! the low watermark whenever the high one is passed. A thread of the app touches units of memory,
//! and waits for those that are away.

use super::controller::{Controller, Sample};
use crate::app::Watermarks;
use crate::evict::policy::{heat_after_refault, pass};
use annex_shared::api::{Limit, StallTarget};
use annex_shared::page::PAGE_SIZE;
use proptest::prelude::*;
use std::time::Duration;

const MIB: u64 = 1 << 20;
/// What the model moves at once.
const UNIT: u64 = 256 << 10;
/// 64 pages at 20 µs each.
const FAULT: f64 = 64.0 * 20e-6;
/// A thread touches so many units a second while it does not wait.
const TOUCHES: f64 = 2000.0;

/// What the app does in a second: how many of its first units it goes over, and what share of the
/// second it works.
type Second = (usize, f64);

#[derive(Clone, Copy)]
struct Unit {
    is_resident: bool,
    heat: u8,
    left: u8,
}

struct Model {
    units: Vec<Unit>,
    resident: u64,
    hand: usize,
    lap: u8,
    next: usize,
    waited: f64,
    came_back: u64,
}

impl Model {
    fn new(size: u64) -> Model {
        let unit = Unit { is_resident: true, heat: 0, left: 0 };
        let units = vec![unit; (size / UNIT) as usize];
        Model { resident: size, units, hand: 0, lap: 0, next: 0, waited: 0.0, came_back: 0 }
    }

    fn size(&self) -> u64 {
        self.units.len() as u64 * UNIT
    }

    /// One second under this limit.
    fn second(&mut self, (set, works): Second, limit: u64) {
        let marks = Watermarks::of(Limit::Bytes(limit), 0, 0);
        let (high, low) = (marks.high * PAGE_SIZE as u64, marks.low * PAGE_SIZE as u64);
        self.evict(high, low);
        let mut left = works;
        while left > 0.0 && set > 0 {
            self.next = if self.next + 1 < set { self.next + 1 } else { 0 };
            left -= 1.0 / TOUCHES;
            let unit = &mut self.units[self.next];
            if !unit.is_resident {
                *unit = Unit { is_resident: true, heat: heat_after_refault(self.lap, unit.left), left: 0 };
                self.resident += UNIT;
                self.came_back += UNIT;
                self.waited += FAULT;
                left -= FAULT;
                self.evict(high, low);
            }
        }
    }

    fn evict(&mut self, high: u64, low: u64) {
        if self.resident <= high {
            return;
        }
        while self.resident > low {
            let unit = &mut self.units[self.hand];
            if unit.is_resident {
                let (goes, heat) = pass(unit.heat);
                *unit = Unit { is_resident: !goes, heat, left: self.lap };
                self.resident -= if goes { UNIT } else { 0 };
            }
            self.hand += 1;
            if self.hand == self.units.len() {
                (self.hand, self.lap) = (0, (self.lap + 1) % 16);
            }
        }
    }

    fn sample(&self) -> Sample {
        Sample {
            resident: self.resident,
            evicted: self.size() - self.resident,
            waited: Duration::from_secs_f64(self.waited),
            came_back: self.came_back,
            blocked: None,
        }
    }
}

/// What came of it.
#[derive(Debug, Default)]
struct Outcome {
    /// Share of the time that was waited, but for the five seconds after each change of the app.
    stall: f64,
    /// Bytes that were not resident, on average.
    saved: f64,
    /// Seconds in which a limit was raised, in each tenth of the run.
    raises: [u32; 10],
}

/// Runs an app of this size under limits that `limit` gives.
fn run(size: u64, seconds: u64, app: impl Fn(u64) -> Second, mut limit: impl FnMut(u64, &Model) -> u64) -> Outcome {
    let mut model = Model::new(size);
    let (mut outcome, mut counted, mut changed, mut last_limit) = (Outcome::default(), 0u64, 0, u64::MAX);
    for now in 0..seconds {
        let bytes = limit(now, &model);
        outcome.raises[(now * 10 / seconds) as usize] += u32::from(bytes > last_limit);
        last_limit = bytes;
        if now > 0 && app(now) != app(now - 1) {
            changed = now;
        }
        let before = model.waited;
        model.second(app(now), bytes);
        outcome.saved += (size - model.resident) as f64 / seconds as f64;
        if now >= changed + 5 {
            outcome.stall += model.waited - before;
            counted += 1;
        }
    }
    outcome.stall /= counted.max(1) as f64;
    outcome
}

fn target() -> StallTarget {
    StallTarget::default()
}

fn automatic(size: u64, seconds: u64, app: impl Fn(u64) -> Second) -> Outcome {
    let mut controller = Controller::new(target(), 64 << 30);
    run(size, seconds, app, |now, model| controller.tick(Duration::from_secs(now), &model.sample()).limit)
}

/// What the lowest fixed limit saves that keeps to the target, found by search.
fn best_fixed(size: u64, seconds: u64, app: impl Fn(u64) -> Second) -> f64 {
    let (mut bad, mut good) = (0, 4 * size / 3 / MIB);
    let mut saved = 0.0;
    while good - bad > 1 {
        let limit = (bad + good) / 2;
        let outcome = run(size, seconds, &app, |_, _| limit * MIB);
        if outcome.stall <= target().share() {
            (good, saved) = (limit, outcome.saved);
        } else {
            bad = limit;
        }
    }
    saved
}

fn units(bytes: u64) -> usize {
    (bytes / UNIT) as usize
}

/// The promises: little is waited, and nearly as much is saved as could be.
fn keeps_its_promises(size: u64, seconds: u64, app: impl Fn(u64) -> Second) -> Outcome {
    let outcome = automatic(size, seconds, &app);
    let best = best_fixed(size, seconds.min(7200), &app);
    assert!(outcome.stall <= 2.0 * target().share(), "{outcome:?}");
    assert!(outcome.saved >= 0.85 * best, "{} MiB of {} MiB: {outcome:?}", outcome.saved / 1e6, best / 1e6);
    outcome
}

const HOUR: u64 = 3600;
const DAY: u64 = 24 * HOUR;

#[test]
fn a_steady_app_keeps_what_it_uses_and_is_left_in_peace() {
    let outcome = keeps_its_promises(128 * MIB, DAY, |_| (units(32 * MIB), 0.5));
    let last: u32 = outcome.raises[5..].iter().sum();
    assert!(last <= 30, "about one try an hour, each raised in a tick or two: {outcome:?}");
}

#[test]
fn an_app_that_uses_all_it_has_keeps_it() {
    let outcome = automatic(64 * MIB, DAY, |_| (units(64 * MIB), 1.0));
    assert!(outcome.stall <= 2.0 * target().share(), "{outcome:?}");
    assert!(outcome.raises[5..].iter().sum::<u32>() <= 40, "{outcome:?}");
}

#[test]
fn an_app_that_is_idle_and_comes_back_is_served_within_seconds() {
    keeps_its_promises(
        256 * MIB,
        8 * HOUR,
        |now| {
            if now % (2 * HOUR) < HOUR { (units(64 * MIB), 0.8) } else { (0, 0.0) }
        },
    );
}

#[test]
fn nights_are_saved_and_mornings_do_not_hurt() {
    let app = |now| if now % DAY < DAY / 2 { (units(96 * MIB), 0.7) } else { (units(8 * MIB), 0.1) };
    let outcome = keeps_its_promises(256 * MIB, 3 * DAY, app);
    // Half of the time nearly all is saved, which no fixed limit can.
    assert!(outcome.saved >= 180.0 * MIB as f64, "{outcome:?}");
}

#[test]
fn phases_of_different_size_are_followed() {
    let sizes = [16, 80, 40, 120, 24];
    keeps_its_promises(192 * MIB, 10 * HOUR, |now| (units(sizes[(now / HOUR) as usize % 5] * MIB), 0.6));
}

#[test]
fn a_scan_now_and_then_spoils_nothing() {
    keeps_its_promises(128 * MIB, 12 * HOUR, |now| {
        if now % (2 * HOUR) < 2 { (units(128 * MIB), 1.0) } else { (units(24 * MIB), 0.5) }
    });
}

#[test]
fn a_change_is_over_within_five_seconds() {
    let mut controller = Controller::new(target(), 64 << 30);
    let mut model = Model::new(512 * MIB);
    let mut late = 0.0;
    for now in 0..1200 {
        let limit = controller.tick(Duration::from_secs(now), &model.sample()).limit;
        let before = model.waited;
        model.second(if now < 1000 { (units(16 * MIB), 0.5) } else { (units(400 * MIB), 1.0) }, limit);
        if now >= 1005 {
            late += model.waited - before;
        }
    }
    assert!(late / 195.0 <= 2.0 * target().share(), "waited {late} s after it");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn whatever_it_uses_it_waits_little_and_settles(
        size in 16u64..512,
        sets in prop::collection::vec((1u64..100, 0u8..11), 1..5),
        period in 300u64..4000,
    ) {
        let app = |now: u64| {
            let (percent, works) = sets[(now / period) as usize % sets.len()];
            (units(size * MIB) * percent as usize / 100, f64::from(works) / 10.0)
        };
        let outcome = automatic(size * MIB, 6 * HOUR, app);
        prop_assert!(outcome.stall <= 2.0 * target().share(), "{:?}", outcome);
        if sets.len() == 1 {
            prop_assert!(outcome.raises[5..].iter().sum::<u32>() <= 30, "{:?}", outcome);
        }
    }
}
