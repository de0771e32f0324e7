//! The controller of one app: a state machine without a clock. Each tick it takes what was
//! measured and says what the limit is to be, and why.
//!
//! It lowers in steps that double while nothing comes of them, up to a sixteenth. It raises by what
//! came back since the last tick, doubled for each tick in a row that hurts. `docs/operations.md`
//! tells users the same in fewer words.

use annex_shared::api::{StallTarget, format_bytes, format_share};
use std::time::Duration;

/// No app is lowered below so many bytes: it is not worth the faults.
pub const LEAST: u64 = 4 << 20;

/// Between two steps down: what the one before has done shows.
const STEP_EVERY: Duration = Duration::from_millis(1900);
/// An app that grew so lately is left alone: what is new is in use.
const SETTLES: Duration = Duration::from_secs(5);
/// What hurts so soon after a step down is taken to come of it.
const BLAME: Duration = Duration::from_secs(10);
/// Until a size that hurt is tried again.
const SHORTEST_PAUSE: Duration = Duration::from_secs(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(3600);
/// What the average of the stall share goes back over.
const LATELY: Duration = Duration::from_secs(600);
/// Steps down, as parts of the limit.
const FIRST_STEP: u64 = 64;
const LARGEST_STEP: u64 = 16;
/// The least step up, in bytes: the watermarks lie so far below the limit.
const LEAST_RAISE: u64 = 1 << 20;

/// What was measured of an app.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sample {
    /// Bytes.
    pub resident: u64,
    /// Bytes in the pool and not resident.
    pub evicted: u64,
    /// How long its threads have waited for pages of the pool, added up. Only what it has grown by
    /// counts, as with `came_back`.
    pub waited: Duration,
    /// Bytes that have come back from the pool.
    pub came_back: u64,
    pub blocked: Option<Blocked>,
}

impl Sample {
    fn size(&self) -> u64 {
        self.resident + self.evicted
    }
}

/// Why nothing more of the app can be evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blocked {
    PoolFull,
    NoDonor,
    /// Its user's apps have all that they may have.
    Quota,
    /// The stub does not answer, or nothing that is left can be taken.
    Stuck,
}

/// What the limit is to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wish {
    /// Bytes.
    pub limit: u64,
    /// Bytes of the host's memory that the app may take until the next tick.
    pub need: u64,
}

/// What a controller does, and why. Shares of the time: 0.01 is 1 %.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Doing {
    /// Nothing was measured yet.
    Begins,
    Grows,
    Lowers {
        stall: f64,
    },
    Raised {
        stall: f64,
    },
    /// More than half the target.
    IsNear {
        stall: f64,
    },
    /// The same of the last minutes.
    WasNear {
        lately: f64,
    },
    Hurt {
        at: u64,
    },
    IsLeast,
    Blocked(Blocked),
    /// The host has less than the app needs.
    HostIsShort,
}

impl Doing {
    /// In a few words, for users.
    pub fn describe(self, target: StallTarget) -> String {
        match self {
            Doing::Begins => "watching: it was attached just now".into(),
            Doing::Grows => "watching: it grows".into(),
            Doing::Lowers { stall } => format!("lowering: waited {} of {target}", format_share(stall)),
            Doing::Raised { stall } => format!("raised: waited {} of {target}", format_share(stall)),
            Doing::IsNear { stall } => format!("holding: waited {} of {target}", format_share(stall)),
            Doing::WasNear { lately } => {
                format!("holding: waited {} of {target} in the last minutes", format_share(lately))
            }
            Doing::Hurt { at } => format!("holding: hurt at {}", format_bytes(at)),
            Doing::IsLeast => format!("holding: {} is the least", format_bytes(LEAST)),
            Doing::Blocked(Blocked::PoolFull) => "holding: the pool is full".into(),
            Doing::Blocked(Blocked::NoDonor) => "holding: too few donors are up".into(),
            Doing::Blocked(Blocked::Quota) => "holding: its user's apps have all that they may have".into(),
            Doing::Blocked(Blocked::Stuck) => "holding: nothing more of it can be evicted now".into(),
            Doing::HostIsShort => "held back: the host is short of memory".into(),
        }
    }
}

/// A limit at which an app that has so much resident is left alone: both watermarks lie below it.
pub fn that_keeps(resident: u64) -> u64 {
    resident + (resident / 32).max(2 << 20)
}

/// The limit that hurt last, or below which nothing could be evicted.
#[derive(Clone, Copy, Debug)]
struct Hurt {
    at: u64,
    /// What users read of it.
    shows: Doing,
    /// Not before this below it again.
    retry_at: Duration,
}

impl Hurt {
    /// The limit to stay at meanwhile: a little more, but not so much that what is saved is spent.
    fn floor(self, size: u64) -> u64 {
        self.at + self.at.min(size.saturating_sub(self.at)) / 16
    }
}

#[derive(Debug)]
pub struct Controller {
    target: StallTarget,
    limit: u64,
    doing: Doing,
    /// The last tick, and what was measured then.
    last: Option<(Duration, Sample)>,
    stall: f64,
    lately: f64,
    grew_at: Option<Duration>,
    lowered_at: Option<Duration>,
    /// The next step down is the limit divided by this.
    step: u64,
    /// Ticks in a row that hurt.
    streak: u32,
    hurt: Option<Hurt>,
    /// The lowest limit that hurt since the app changed by itself.
    lowest_hurt: Option<u64>,
    pause: Duration,
}

impl Controller {
    /// Begins with the limit that is, in bytes.
    pub fn new(target: StallTarget, limit: u64) -> Controller {
        Controller {
            target,
            limit,
            doing: Doing::Begins,
            last: None,
            stall: 0.0,
            lately: 0.0,
            grew_at: None,
            lowered_at: None,
            step: FIRST_STEP,
            streak: 0,
            hurt: None,
            lowest_hurt: None,
            pause: SHORTEST_PAUSE,
        }
    }

    pub fn target(&self) -> StallTarget {
        self.target
    }

    pub fn limit(&self) -> u64 {
        self.limit
    }

    pub fn doing(&self) -> Doing {
        self.doing
    }

    /// The stall share between the last two ticks.
    pub fn stall(&self) -> f64 {
        self.stall
    }

    /// One tick, a second or so after the one before. `now` counts from any moment.
    pub fn tick(&mut self, now: Duration, sample: &Sample) -> Wish {
        let Some((then, before)) = self.last.replace((now, *sample)) else {
            self.grew_at = Some(now);
            return Wish { limit: self.limit, need: 0 };
        };
        let elapsed = now.saturating_sub(then).as_secs_f64().max(1e-3);
        let came_back = sample.came_back.saturating_sub(before.came_back);
        let grew = sample.size().saturating_sub(before.size());
        self.stall = sample.waited.saturating_sub(before.waited).as_secs_f64() / elapsed;
        let weight = (elapsed / LATELY.as_secs_f64()).min(1.0);
        self.lately += (self.stall - self.lately) * weight;
        if grew > before.size() / 64 {
            self.grew_at = Some(now);
        }
        if self.stall > self.target.share() {
            self.raise(now, sample, came_back, grew);
        } else {
            self.streak = 0;
            self.lower(now, sample, grew);
        }
        Wish { limit: self.limit, need: self.limit.saturating_sub(sample.resident).min(sample.evicted + 2 * grew) }
    }

    /// What the host could give of what was wished for.
    pub fn grant(&mut self, limit: u64) {
        if limit < self.limit {
            self.doing = Doing::HostIsShort;
            self.limit = limit;
        }
    }

    fn raise(&mut self, now: Duration, sample: &Sample, came_back: u64, grew: u64) {
        let at = self.limit.min(sample.size());
        if self.streak == 0 {
            self.judge_pause(now, at);
        }
        self.streak += 1;
        self.remember(now, at, Doing::Hurt { at });
        self.raise_by((came_back << self.streak.min(8)).max(LEAST_RAISE) + 2 * grew, sample);
        self.doing = Doing::Raised { stall: self.stall };
    }

    /// How long it is to be until this limit, which hurts, is tried again.
    fn judge_pause(&mut self, now: Duration, at: u64) {
        // What hurts by itself means that the app has changed: what hurt before may not any more.
        let is_blamed = self.lowered_at.is_some_and(|at| now.saturating_sub(at) <= BLAME);
        // It has come further than ever: some of what left first was in use, no more.
        let is_further = self.lowest_hurt.is_none_or(|lowest| at + at / 16 < lowest);
        if is_further || !is_blamed {
            self.lowest_hurt = Some(at);
        }
        self.pause = if is_blamed && !is_further { (self.pause * 2).min(LONGEST_PAUSE) } else { SHORTEST_PAUSE };
    }

    fn remember(&mut self, now: Duration, at: u64, shows: Doing) {
        self.step = FIRST_STEP;
        self.hurt = Some(Hurt { at, shows, retry_at: now + self.pause });
    }

    /// Not beyond all of it and some room to grow: that makes no difference.
    fn raise_by(&mut self, step: u64, sample: &Sample) {
        let most = sample.size() + (sample.size() / 8).max(16 << 20);
        self.limit = self.limit.max((self.limit.max(sample.resident) + step).min(most));
    }

    fn lower(&mut self, now: Duration, sample: &Sample, grew: u64) {
        if let Some(blocked) = sample.blocked {
            let kept = that_keeps(sample.resident);
            if blocked == Blocked::Stuck && self.limit < kept {
                self.judge_pause(now, kept);
                self.remember(now, kept, Doing::Blocked(blocked));
            }
            self.limit = self.limit.max(kept);
            self.doing = Doing::Blocked(blocked);
            return;
        }
        let half = self.target.share() / 2.0;
        // What is above the limit is no more than is needed.
        let present = self.limit.min(sample.resident);
        let floor = self.hurt.filter(|hurt| now < hurt.retry_at).map_or(0, |hurt| hurt.floor(sample.size()));
        self.doing = if self.grew_at.is_some_and(|at| now.saturating_sub(at) < SETTLES) {
            // It goes on growing, as a rule: the next tick's has room already.
            self.raise_by(2 * grew, sample);
            Doing::Grows
        } else if self.stall > half {
            Doing::IsNear { stall: self.stall }
        } else if self.lately > half {
            Doing::WasNear { lately: self.lately }
        } else if present <= LEAST {
            Doing::IsLeast
        } else if let Some(hurt) = self.hurt.filter(|_| present <= floor) {
            hurt.shows
        } else {
            // As long as eviction has not come down to the limit, there is no next step.
            let is_down = sample.resident <= self.limit + LEAST_RAISE;
            let is_time = self.lowered_at.is_none_or(|at| now.saturating_sub(at) >= STEP_EVERY);
            if is_down && is_time {
                self.step_down(now, sample.size(), present, floor);
            }
            Doing::Lowers { stall: self.stall }
        };
    }

    fn step_down(&mut self, now: Duration, size: u64, present: u64, floor: u64) {
        if self.hurt.is_some_and(|hurt| now >= hurt.retry_at && self.limit + self.limit / FIRST_STEP < hurt.at) {
            // It was tried again, and did not hurt.
            self.hurt = None;
        }
        // Whoever comes near to what hurt goes slowly.
        let near = self.hurt.is_some_and(|hurt| present <= hurt.floor(size) + present / LARGEST_STEP);
        let part = if near { FIRST_STEP } else { self.step };
        self.limit = (present - present / part).max(floor).max(LEAST);
        self.lowered_at = Some(now);
        if !near && self.stall < self.target.share() / 4.0 {
            self.step = (self.step / 2).max(LARGEST_STEP);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const SECOND: Duration = Duration::from_secs(1);

    fn one_percent() -> StallTarget {
        "1%".parse().unwrap()
    }

    /// An app whose memory is where the limit wants it, and what it has counted.
    struct Still {
        controller: Controller,
        size: u64,
        sample: Sample,
        now: Duration,
    }

    impl Still {
        fn new(size: u64) -> Still {
            Still { controller: Controller::new(one_percent(), 64 << 30), size, sample: Sample::default(), now: SECOND }
        }

        /// One second in which its threads wait for so long, for so many bytes.
        fn tick(&mut self, waited: Duration, came_back: u64) -> u64 {
            self.now += SECOND;
            self.sample.waited += waited;
            self.sample.came_back += came_back;
            let is_stuck = self.sample.blocked.is_some() && came_back == 0;
            let most = if is_stuck { self.sample.resident } else { self.size };
            self.sample.resident = self.controller.limit().min(most);
            self.sample.evicted = self.size - self.sample.resident;
            self.controller.tick(self.now, &self.sample).limit
        }

        fn quiet(&mut self, seconds: u32) -> u64 {
            (0..seconds).map(|_| self.tick(Duration::ZERO, 0)).last().unwrap_or_default()
        }
    }

    #[test]
    fn what_is_idle_falls_to_the_least_and_no_further() {
        let mut app = Still::new(256 * MIB);
        assert_eq!(app.quiet(600), LEAST);
        assert_eq!(app.controller.doing(), Doing::IsLeast);
    }

    #[test]
    fn what_just_began_or_grows_is_left_alone() {
        let mut app = Still::new(256 * MIB);
        assert_eq!(app.quiet(5), 64 << 30);
        assert_eq!(app.controller.doing(), Doing::Grows);
        app.quiet(60);
        let before = app.controller.limit();
        app.size += 100 * MIB;
        assert_eq!(app.quiet(1), before + 200 * MIB, "and as much again in the next second");
        assert_eq!(app.controller.doing(), Doing::Grows);
    }

    #[test]
    fn what_hurts_is_raised_in_the_same_tick_and_faster_each_time() {
        let mut app = Still::new(1024 * MIB);
        let low = app.quiet(80);
        assert!(low < 200 * MIB, "{low}");
        let waits = Duration::from_millis(70);
        assert_eq!(app.tick(waits, 10 * MIB), low + 20 * MIB);
        assert_eq!(app.controller.doing().describe(one_percent()), "raised: waited 7 % of 1 %");
        assert_eq!(app.tick(waits, 10 * MIB), low + 60 * MIB);
        assert_eq!(app.tick(waits, 10 * MIB), low + 140 * MIB);
    }

    #[test]
    fn what_hurt_is_tried_again_after_ever_longer_pauses() {
        let mut app = Still::new(256 * MIB);
        let mut hurts = Vec::new();
        // Below 100 MiB it hurts.
        for second in 0..40_000 {
            let is_short = app.controller.limit() < 100 * MIB;
            let waited = if is_short { 30 } else { 0 };
            app.tick(Duration::from_millis(waited), if is_short { 2 * MIB } else { 0 });
            if is_short {
                hurts.push(second);
            }
        }
        let gaps: Vec<i32> = hurts.windows(2).map(|two| two[1] - two[0]).filter(|gap| *gap > 5).collect();
        assert!(gaps.windows(2).all(|two| two[0] <= two[1] + 5) && gaps.len() < 20, "{gaps:?}");
        assert!(*gaps.last().unwrap() >= 3600, "{gaps:?}");
        assert!(app.controller.limit() < 115 * MIB, "{}", app.controller.limit());
    }

    #[test]
    fn whoever_comes_further_each_time_does_not_wait_longer() {
        let mut app = Still::new(1024 * MIB);
        // A bit of what is in use is evicted first, wherever that begins.
        let mut hurting = vec![900 * MIB, 800 * MIB, 600 * MIB, 400 * MIB, 200 * MIB];
        while app.controller.limit() > 8 * MIB {
            let hurts = hurting.first().is_some_and(|at| app.controller.limit() < *at);
            if hurts {
                hurting.remove(0);
            }
            app.tick(Duration::from_millis(if hurts { 30 } else { 0 }), if hurts { MIB } else { 0 });
            assert!(app.now < Duration::from_secs(400), "{:?}", app.controller);
        }
    }

    #[test]
    fn below_half_the_target_it_lowers_and_above_it_holds() {
        let mut app = Still::new(256 * MIB);
        app.quiet(10);
        let before = app.controller.limit();
        for _ in 0..10 {
            app.tick(Duration::from_millis(7), 0);
        }
        assert_eq!(app.controller.limit(), before);
        assert_eq!(app.controller.doing().describe(one_percent()), "holding: waited 0.7 % of 1 %");
        for _ in 0..10 {
            app.tick(Duration::from_millis(2), 0);
        }
        assert!(app.controller.limit() < before);
        assert_eq!(app.controller.doing().describe(one_percent()), "lowering: waited 0.2 % of 1 %");
    }

    #[test]
    fn an_app_that_has_waited_for_long_is_not_lowered_for_a_while() {
        let mut app = Still::new(4096 * MIB);
        app.quiet(60);
        // It needs half a minute to bring back what it has.
        for _ in 0..30 {
            app.tick(SECOND, 100 * MIB);
        }
        let high = app.controller.limit();
        assert_eq!(app.quiet(120), high);
        assert!(matches!(app.controller.doing(), Doing::WasNear { .. }), "{:?}", app.controller.doing());
        assert!(app.quiet(3600) < high);
    }

    #[test]
    fn nothing_is_lowered_that_nobody_takes() {
        let mut app = Still::new(256 * MIB);
        app.quiet(20);
        app.sample.blocked = Some(Blocked::PoolFull);
        let before = app.controller.limit();
        app.quiet(1);
        assert_eq!(app.quiet(600), that_keeps(before), "what it has is not tried again and again");
        assert_eq!(app.controller.doing().describe(one_percent()), "holding: the pool is full");
        app.sample.blocked = None;
        assert!(app.quiet(10) < before);
    }

    #[test]
    fn what_can_not_be_taken_is_tried_seldom() {
        let mut controller = Controller::new(one_percent(), 64 << 30);
        let mut tries = Vec::new();
        for second in 0..20_000 {
            // All of it is locked.
            let is_tried = controller.limit() < 100 * MIB;
            let blocked = is_tried.then_some(Blocked::Stuck);
            let sample = Sample { resident: 100 * MIB, blocked, ..Sample::default() };
            controller.tick(SECOND * second, &sample);
            tries.extend(is_tried.then_some(second));
        }
        assert!((5..20).contains(&tries.len()), "{tries:?}");
        let before = "holding: nothing more of it can be evicted now";
        assert_eq!(controller.doing().describe(one_percent()), before);
    }

    #[test]
    fn counters_that_begin_anew_tell_nothing() {
        let mut app = Still::new(256 * MIB);
        app.tick(Duration::from_secs(100), 100 * MIB);
        app.tick(Duration::ZERO, 0);
        (app.sample.waited, app.sample.came_back) = (Duration::ZERO, 0);
        app.tick(Duration::ZERO, 0);
        assert_eq!(app.controller.stall(), 0.0);
    }

    #[test]
    fn it_goes_no_further_before_eviction_has_come_down_to_the_limit() {
        let mut controller = Controller::new(one_percent(), 256 * MIB);
        let sample = Sample { resident: 256 * MIB, ..Sample::default() };
        for second in 0..100 {
            controller.tick(SECOND * second, &sample);
        }
        assert_eq!(controller.limit(), 252 * MIB);
    }

    #[test]
    fn what_the_host_lacks_is_not_granted() {
        let mut controller = Controller::new(one_percent(), 256 * MIB);
        controller.grant(200 * MIB);
        assert_eq!((controller.limit(), controller.doing()), (200 * MIB, Doing::HostIsShort));
        controller.grant(300 * MIB);
        assert_eq!(controller.limit(), 200 * MIB);
    }
}
