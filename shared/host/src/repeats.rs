//! Lines of a log that one incident yields by the hundred: the first is said at once, the others
//! are counted.
//!
//! A donor that goes fails each page that is read from it. The log then says the first failure,
//! and "509 more in the last 10 s" once for each period in which there were more.
//!
//! [`repeated!`](crate::repeated) is for whoever logs. What it decides by is [`Repeats`], which
//! reads no clock. Somebody calls [`say_counts`] every few seconds; without that, a count is said
//! with the next line of its kind.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use tracing::Level;

/// Lines of one kind are counted for so long, and then it is said how many there were.
pub const PERIOD: Duration = Duration::from_secs(10);

/// Lines of one kind: about what (an app, a donor) they were, since when, and how many were not
/// said.
#[derive(Debug, Default)]
pub struct Repeats(BTreeMap<String, Burst>);

#[derive(Debug)]
struct Burst {
    since: Instant,
    more: u64,
}

/// How many lines about one thing were not said, and in which time.
#[derive(Debug, PartialEq, Eq)]
pub struct Count {
    pub of: String,
    pub more: u64,
    pub within: Duration,
}

/// Whether a line is to be said.
#[derive(Debug, PartialEq, Eq)]
pub enum Verdict {
    Say,
    /// After it is said how many were not.
    SayAfter(Count),
    Count,
}

impl Repeats {
    pub const fn new() -> Repeats {
        Repeats(BTreeMap::new())
    }

    /// There would be a line about `of`.
    pub fn met(&mut self, of: &str, now: Instant) -> Verdict {
        let fresh = Burst { since: now, more: 0 };
        let Some(burst) = self.0.get_mut(of) else {
            self.0.insert(of.to_owned(), fresh);
            return Verdict::Say;
        };
        let within = now.saturating_duration_since(burst.since);
        if within < PERIOD {
            burst.more += 1;
            return Verdict::Count;
        }
        match std::mem::replace(burst, fresh).more {
            0 => Verdict::Say,
            more => Verdict::SayAfter(Count { of: of.to_owned(), more, within }),
        }
    }

    /// Ends the periods that are over. What had lines that were not said begins another one; the
    /// rest is forgotten.
    pub fn counts(&mut self, now: Instant) -> Vec<Count> {
        let mut counts = Vec::new();
        self.0.retain(|of, burst| {
            let within = now.saturating_duration_since(burst.since);
            if within < PERIOD {
                return true;
            }
            match std::mem::replace(burst, Burst { since: now, more: 0 }).more {
                0 => false,
                more => {
                    counts.push(Count { of: of.clone(), more, within });
                    true
                }
            }
        });
        counts
    }
}

/// One place that logs. The macro makes it.
#[derive(Debug)]
pub struct Place {
    what: &'static str,
    level: Level,
    repeats: Mutex<Repeats>,
}

/// All places that have logged.
static PLACES: Mutex<Vec<&'static Place>> = Mutex::new(Vec::new());

impl Place {
    pub const fn new(what: &'static str, level: Level) -> Place {
        Place { what, level, repeats: Mutex::new(Repeats::new()) }
    }

    /// True: the line is to be said.
    pub fn met(&'static self, of: &str) -> bool {
        let verdict = {
            let mut repeats = self.repeats.lock();
            if repeats.0.is_empty() {
                let mut places = PLACES.lock();
                if !places.iter().any(|place| std::ptr::eq(*place, self)) {
                    places.push(self);
                }
            }
            repeats.met(of, Instant::now())
        };
        if let Verdict::SayAfter(count) = &verdict {
            self.say(count);
        }
        verdict != Verdict::Count
    }

    fn say(&self, count: &Count) {
        let line = sentence(self.what, count);
        match self.level {
            Level::ERROR => tracing::error!("{line}"),
            Level::WARN => tracing::warn!("{line}"),
            _ => tracing::info!("{line}"),
        }
    }
}

fn sentence(what: &str, Count { of, more, within }: &Count) -> String {
    let of = if of.is_empty() { String::new() } else { format!("{}: ", annex_shared::printable::printable(of)) };
    format!("{of}{what}: {more} more in the last {} s", within.as_secs())
}

/// Says of every place what it did not.
pub fn say_counts(now: Instant) {
    let places = PLACES.lock().clone();
    for place in places {
        let counts = place.repeats.lock().counts(now);
        counts.iter().for_each(|count| place.say(count));
    }
}

/// `repeated!(WARN, "failed to read a page" of name, …)` logs `…` as `tracing::event!` does, the
/// first time about `name`. Lines that follow within [`PERIOD`] are counted.
#[macro_export]
macro_rules! repeated {
    ($level:ident, $what:literal of $of:expr, $($line:tt)+) => {{
        static PLACE: $crate::repeats::Place = $crate::repeats::Place::new($what, ::tracing::Level::$level);
        if PLACE.met($of) {
            ::tracing::event!(::tracing::Level::$level, $($line)+);
        }
    }};
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// A donor that went was told by 510 equal lines within 40 ms.
    #[test]
    fn of_many_equal_lines_one_is_said_and_the_rest_counted() {
        let (mut repeats, began) = (Repeats::new(), Instant::now());
        let said = (0..510).filter(|i| repeats.met("redis", began + MS * *i / 12) == Verdict::Say).count();
        assert_eq!(said, 1);
        assert_eq!(repeats.counts(began + PERIOD - MS), []);
        let counts = repeats.counts(began + PERIOD);
        assert_eq!(counts, [Count { of: "redis".into(), more: 509, within: PERIOD }]);
        assert_eq!(
            sentence("failed to read a page", &counts[0]),
            "redis: failed to read a page: 509 more in the last 10 s"
        );
    }

    #[test]
    fn each_app_has_a_first_line_of_its_own() {
        let (mut repeats, now) = (Repeats::new(), Instant::now());
        assert_eq!(repeats.met("a", now), Verdict::Say);
        assert_eq!(repeats.met("b", now), Verdict::Say);
        assert_eq!(repeats.met("a", now), Verdict::Count);
    }

    #[test]
    fn what_goes_on_is_counted_period_by_period_and_what_has_ended_is_forgotten() {
        let (mut repeats, began) = (Repeats::new(), Instant::now());
        repeats.met("a", began);
        repeats.met("a", began + MS);
        assert_eq!(repeats.counts(began + PERIOD).len(), 1);
        assert_eq!(repeats.met("a", began + PERIOD + MS), Verdict::Count, "it goes on");
        assert_eq!(repeats.counts(began + PERIOD * 2)[0].more, 1);
        assert_eq!(repeats.counts(began + PERIOD * 3), []);
        assert_eq!(repeats.met("a", began + PERIOD * 3), Verdict::Say, "it had ended");
    }

    #[test]
    fn where_nobody_asks_for_counts_the_next_line_brings_them() {
        let (mut repeats, began) = (Repeats::new(), Instant::now());
        repeats.met("", began);
        repeats.met("", began + MS);
        let count = Count { of: String::new(), more: 1, within: PERIOD * 3 };
        assert_eq!(repeats.met("", began + PERIOD * 3), Verdict::SayAfter(count));
        assert_eq!(repeats.met("", began + PERIOD * 6), Verdict::Say);
    }
}
