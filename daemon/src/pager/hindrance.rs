//! What keeps an app's memory from being evicted, for as long as it does: whoever looks at an app that is above its limit reads why.

use parking_lot::Mutex;
use std::time::{Duration, Instant};

/// Silence of a stub that is not worth a word: its program may have been stopped for a moment.
const SILENCE: Duration = Duration::from_secs(3);
/// Where nothing stood in the way for so long, nothing does: a pool that is full has room for a few pages now and then.
const PASSING: Duration = Duration::from_secs(2);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    PoolFull,
    /// No replica takes what is written.
    NoDonor,
    /// The stub does not answer.
    Silence,
}

/// What stands in the way, since when, and when it was met last.
#[derive(Clone, Copy, Debug)]
struct Present {
    cause: Cause,
    since: Instant,
    last: Instant,
}

#[derive(Debug, Default)]
pub struct Hindrance(Mutex<Option<Present>>);

impl Hindrance {
    /// Something could not be evicted.
    pub fn met(&self, cause: Cause) {
        self.met_at(cause, Instant::now());
    }

    fn met_at(&self, cause: Cause, now: Instant) {
        let mut present = self.0.lock();
        let since = present.filter(|before| before.cause == cause).map_or(now, |before| before.since);
        *present = Some(Present { cause, since, last: now });
    }

    /// Something was evicted, or nothing needs to be.
    pub fn not_met(&self) {
        self.not_met_at(Instant::now());
    }

    fn not_met_at(&self, now: Instant) {
        let mut present = self.0.lock();
        *present = present.filter(|present| now.saturating_duration_since(present.last) < PASSING);
    }

    pub fn describe(&self) -> Option<String> {
        let present = (*self.0.lock())?;
        describe(present.cause, present.since.elapsed())
    }
}

fn describe(cause: Cause, lasts: Duration) -> Option<String> {
    match cause {
        Cause::PoolFull => Some("the pool is full: the app keeps its pages until donors lend more".into()),
        Cause::NoDonor => Some("no donor takes pages: eviction is suspended".into()),
        Cause::Silence => (lasts >= SILENCE).then(|| {
            format!(
                "its stub has not answered for {} s: nothing of it is evicted until that goes on; is the program stopped or frozen?",
                lasts.as_secs()
            )
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lasts_is_told_until_it_has_been_over_for_a_while() {
        let (hindrance, began) = (Hindrance::default(), Instant::now());
        hindrance.met_at(Cause::Silence, began);
        assert_eq!(hindrance.describe(), None, "it may be a moment");
        hindrance.met_at(Cause::PoolFull, began);
        let is_told = || hindrance.describe().is_some_and(|text| text.contains("full"));
        hindrance.not_met_at(began + PASSING / 2);
        assert!(is_told(), "a few pages had room");
        hindrance.met_at(Cause::PoolFull, began + PASSING);
        hindrance.not_met_at(began + PASSING * 3 / 2);
        assert!(is_told());
        hindrance.not_met_at(began + PASSING * 2);
        assert_eq!(hindrance.describe(), None);
        assert!(describe(Cause::Silence, Duration::from_secs(12)).is_some_and(|text| text.contains("for 12 s")));
    }
}
