//! Which operations are spoilt, and the count of those that were.

use annex_shared::page::PAGE_SIZE;
use std::fmt;
use std::ops::Range;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// How often a fault strikes: `count` of every `every` operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    pub count: u32,
    pub every: u32,
}

/// What to spoil. Read from a string such as
/// `fail=1/97,drop=1/5003,corrupt=1/1009,delay=1/211:2ms,seed=7,timeout=200ms`; every part may be
/// left out. With `seed=0` (the default) and `1/N`, every Nth operation is hit; another seed shifts
/// each fault's turn. `corrupt=1/1009:even` leaves WRITEs to odd pages of the slab alone, `:odd`
/// those to even ones: two donors with one each never spoil both copies of a page. If several
/// faults fall on one operation, the gravest is taken (drop, fail, corrupt, delay).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FaultPlan {
    pub fail: Option<Rate>,
    pub drop: Option<Rate>,
    pub corrupt: Option<Rate>,
    /// Which of the slab's pages a corrupted WRITE may spoil.
    pub spoils: Pages,
    pub delay: Option<(Rate, Duration)>,
    pub seed: u64,
    /// After how long a dropped operation breaks its endpoint.
    pub timeout: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pages {
    All,
    Even,
    Odd,
}

/// A plan that could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "bad fault plan at '{0}': expected fail=1/97, drop=1/5003, corrupt=1/1009 or corrupt=1/1009:even, delay=1/211:2ms, seed=7 or timeout=200ms"
)]
pub struct PlanError(String);

/// What happens to one operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    None,
    FailUndone,
    FailDone,
    DropUndone,
    DropDone,
    Corrupt,
    Delay(Duration),
}

/// A plan being carried out: how many operations there were, and how many of them were spoilt. A
/// fault counts when it takes effect; one that finds nothing to spoil (an operation that failed by
/// itself) does not.
#[derive(Debug)]
pub struct Faults {
    plan: FaultPlan,
    operations: AtomicU64,
    pub(super) fail_turns: AtomicU64,
    pub(super) drop_turns: AtomicU64,
    pub(super) failed: AtomicU64,
    pub(super) dropped: AtomicU64,
    pub(super) corrupted_reads: AtomicU64,
    pub(super) corrupted_writes: AtomicU64,
    pub(super) delayed: AtomicU64,
}

impl Default for FaultPlan {
    fn default() -> Self {
        let timeout = Duration::from_secs(5);
        FaultPlan { fail: None, drop: None, corrupt: None, spoils: Pages::All, delay: None, seed: 0, timeout }
    }
}

impl FromStr for FaultPlan {
    type Err = PlanError;

    fn from_str(s: &str) -> Result<Self, PlanError> {
        let mut plan = FaultPlan::default();
        for part in s.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let bad = || PlanError(part.to_owned());
            let (key, value) = part.split_once('=').ok_or_else(bad)?;
            match key.trim() {
                "fail" => plan.fail = Some(value.parse().map_err(|()| bad())?),
                "drop" => plan.drop = Some(value.parse().map_err(|()| bad())?),
                "corrupt" => {
                    let (rate, pages) = value.split_once(':').unwrap_or((value, "all"));
                    plan.corrupt = Some(rate.parse().map_err(|()| bad())?);
                    plan.spoils = pages.parse().map_err(|()| bad())?;
                }
                "delay" => {
                    let (rate, time) = value.split_once(':').ok_or_else(bad)?;
                    plan.delay = Some((rate.parse().map_err(|()| bad())?, duration(time).ok_or_else(bad)?));
                }
                "seed" => plan.seed = value.trim().parse().map_err(|_| bad())?,
                "timeout" => plan.timeout = duration(value).ok_or_else(bad)?,
                _ => return Err(bad()),
            }
        }
        Ok(plan)
    }
}

impl FromStr for Rate {
    type Err = ();

    fn from_str(s: &str) -> Result<Self, ()> {
        let (count, every) = s.split_once('/').ok_or(())?;
        let rate = Rate { count: count.trim().parse().map_err(drop)?, every: every.trim().parse().map_err(drop)? };
        if rate.every == 0 || rate.count > rate.every { Err(()) } else { Ok(rate) }
    }
}

impl FromStr for Pages {
    type Err = ();

    fn from_str(s: &str) -> Result<Self, ()> {
        match s.trim() {
            "all" => Ok(Pages::All),
            "even" => Ok(Pages::Even),
            "odd" => Ok(Pages::Odd),
            _ => Err(()),
        }
    }
}

impl Pages {
    fn has(self, addr: u64) -> bool {
        let page = addr / PAGE_SIZE as u64;
        match self {
            Pages::All => true,
            Pages::Even => page.is_multiple_of(2),
            Pages::Odd => !page.is_multiple_of(2),
        }
    }

    /// An aligned word in `range` to spoil, by the operation's number; `None` if there is none.
    pub(super) fn word(self, range: Range<u64>, number: u64) -> Option<u64> {
        let first = range.start.next_multiple_of(8);
        let words = range.end.saturating_sub(first) / 8;
        let word = first + scramble(number).checked_rem(words)? * 8;
        let page = PAGE_SIZE as u64;
        let near = [Some(word), word.checked_add(page), word.checked_sub(page)];
        near.into_iter().flatten().find(|at| self.has(*at) && (first..first + words * 8).contains(at))
    }
}

/// `200ms`, `2s`, `50us`.
fn duration(s: &str) -> Option<Duration> {
    let s = s.trim();
    let (number, unit) = s.split_at(s.find(|c: char| !c.is_ascii_digit())?);
    let number = number.parse().ok()?;
    match unit {
        "us" => Some(Duration::from_micros(number)),
        "ms" => Some(Duration::from_millis(number)),
        "s" => Some(Duration::from_secs(number)),
        _ => None,
    }
}

impl Rate {
    /// Is it operation `n`'s turn? `salt` tells the kinds of faults apart.
    fn strikes(self, n: u64, seed: u64, salt: u64) -> bool {
        let every = u64::from(self.every);
        let shift = if seed == 0 { 0 } else { scramble(seed ^ salt << 32) % every };
        (n + shift) % every >= every - u64::from(self.count)
    }
}

impl Faults {
    pub(super) fn new(plan: FaultPlan) -> Self {
        let zero = AtomicU64::default;
        Faults {
            plan,
            operations: zero(),
            fail_turns: zero(),
            drop_turns: zero(),
            failed: zero(),
            dropped: zero(),
            corrupted_reads: zero(),
            corrupted_writes: zero(),
            delayed: zero(),
        }
    }

    /// The next operation's number and fate.
    pub(super) fn draw(&self) -> (u64, Fault) {
        let n = self.operations.fetch_add(1, Ordering::Relaxed);
        let plan = &self.plan;
        let strikes = |rate: Option<Rate>, salt| rate.is_some_and(|rate| rate.strikes(n, plan.seed, salt));
        let is_even = |turns: &AtomicU64| turns.fetch_add(1, Ordering::Relaxed).is_multiple_of(2);
        let fault = if strikes(plan.drop, 1) {
            if is_even(&self.drop_turns) { Fault::DropUndone } else { Fault::DropDone }
        } else if strikes(plan.fail, 2) {
            if is_even(&self.fail_turns) { Fault::FailUndone } else { Fault::FailDone }
        } else if strikes(plan.corrupt, 3) {
            Fault::Corrupt
        } else {
            match plan.delay {
                Some((rate, time)) if rate.strikes(n, plan.seed, 4) => Fault::Delay(time),
                _ => Fault::None,
            }
        };
        (n, fault)
    }

    pub(super) fn spoils(&self) -> Pages {
        self.plan.spoils
    }

    pub(super) fn timeout(&self) -> Duration {
        self.plan.timeout
    }

    /// Operations posted.
    pub fn operations(&self) -> u64 {
        self.operations.load(Ordering::Relaxed)
    }

    /// Operations that were reported as failed.
    pub fn failed(&self) -> u64 {
        self.failed.load(Ordering::Relaxed)
    }

    /// Operations that were never answered.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// READs that brought wrong bytes.
    pub fn corrupted_reads(&self) -> u64 {
        self.corrupted_reads.load(Ordering::Relaxed)
    }

    /// WRITEs that left wrong bytes.
    pub fn corrupted_writes(&self) -> u64 {
        self.corrupted_writes.load(Ordering::Relaxed)
    }

    /// Operations whose completion was held back.
    pub fn delayed(&self) -> u64 {
        self.delayed.load(Ordering::Relaxed)
    }
}

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} operations: {} failed, {} dropped, {} READs and {} WRITEs corrupted, {} delayed",
            self.operations(),
            self.failed(),
            self.dropped(),
            self.corrupted_reads(),
            self.corrupted_writes(),
            self.delayed()
        )
    }
}

/// splitmix64's finaliser: numbers that look random from numbers that don't.
pub(super) fn scramble(n: u64) -> u64 {
    let n = n.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let n = (n ^ n >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let n = (n ^ n >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    n ^ n >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_reads_as_written() {
        let plan: FaultPlan =
            "fail=1/97, drop=1/5003,corrupt=2/1009,delay=1/211:2ms,seed=7,timeout=200ms".parse().unwrap();
        let rate = |count, every| Some(Rate { count, every });
        assert_eq!((plan.fail, plan.drop, plan.corrupt), (rate(1, 97), rate(1, 5003), rate(2, 1009)));
        assert_eq!(plan.delay, Some((Rate { count: 1, every: 211 }, Duration::from_millis(2))));
        assert_eq!((plan.seed, plan.timeout), (7, Duration::from_millis(200)));
        assert_eq!("".parse(), Ok(FaultPlan::default()));
    }

    #[test]
    fn a_bad_part_is_named() {
        let rates = ["fail", "fail=1", "fail=1/0", "fail=3/2", "corrupt=1/2:some", "delay=1/2", "delay=1/2:3"];
        for bad in rates.into_iter().chain(["sleep=1/2", "timeout=5h", "seed=x"]) {
            let plan = format!("corrupt=1/2,{bad}");
            assert_eq!(plan.parse::<FaultPlan>(), Err(PlanError(bad.to_owned())));
        }
    }

    #[test]
    fn even_and_odd_pages_are_spoilt_by_different_plans() {
        let even: FaultPlan = "corrupt=1/7:even".parse().unwrap();
        let odd: FaultPlan = "corrupt=1/7:odd".parse().unwrap();
        assert_eq!((even.spoils, odd.spoils), (Pages::Even, Pages::Odd));
        for number in 0..1000 {
            for (from, to) in [(0, 4096), (4096, 8192), (4096, 16384), (100, 9000), (8190, 8195)] {
                let word = |pages: Pages| pages.word(from..to, number);
                let inside = |at: u64| at.is_multiple_of(8) && from <= at && at + 8 <= to;
                assert!(word(Pages::Even).is_none_or(|at| inside(at) && at / 4096 % 2 == 0));
                assert!(word(Pages::Odd).is_none_or(|at| inside(at) && at / 4096 % 2 == 1));
                assert_eq!(word(Pages::All).is_some(), to - from > 8);
            }
            assert!(even.spoils.word(0..4096, number).is_some() && odd.spoils.word(0..4096, number).is_none());
            assert!(odd.spoils.word(0..8192, number).is_some() && even.spoils.word(0..8192, number).is_some());
        }
    }

    #[test]
    fn every_nth_operation_is_hit_whatever_the_seed() {
        for seed in 0..50 {
            let plan = FaultPlan { corrupt: Some(Rate { count: 2, every: 7 }), seed, ..FaultPlan::default() };
            let faults = Faults::new(plan);
            let hits: Vec<u64> = (0..700).filter(|_| faults.draw().1 == Fault::Corrupt).collect();
            assert_eq!(hits.len(), 200, "seed {seed}");
        }
        let faults = Faults::new("fail=1/3".parse().unwrap());
        let drawn: Vec<_> = (0..6).map(|_| faults.draw().1).collect();
        use Fault::{FailDone, FailUndone, None};
        assert_eq!(drawn, [None, None, FailUndone, None, None, FailDone]);
    }
}
