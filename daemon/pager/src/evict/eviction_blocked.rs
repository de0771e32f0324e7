//! What keeps an app's memory from being evicted, for as long as it does: whoever looks at an app
//! that is above its limit reads why.

use annex_shared::api::format_bytes;
use parking_lot::Mutex;
use std::time::{Duration, Instant};

/// What is not worth a word: a program may have been stopped for a moment, or change its mappings
/// just now.
const MOMENT: Duration = Duration::from_secs(3);
/// Where nothing stood in the way for so long, nothing does: a pool that is full has room for a few
/// pages now and then.
const PASSING: Duration = Duration::from_secs(2);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    PoolFull,
    /// All of its user's apps together have as much in the pool as they may: so many bytes.
    UsersPool(u64),
    /// Their page tables take as much as they may.
    UsersTables(u64),
    /// No replica takes what is written.
    NoDonor,
    /// The stub does not answer.
    Silence,
    /// More is resident than may be, and nothing of it can be taken.
    NothingToTake,
}

/// What stands in the way, since when, and when it was met last.
#[derive(Clone, Copy, Debug)]
struct Present {
    cause: Cause,
    since: Instant,
    last: Instant,
    told: bool,
}

#[derive(Debug, Default)]
pub struct EvictionBlocked(Mutex<Option<Present>>);

impl EvictionBlocked {
    /// Something could not be evicted.
    pub fn met(&self, cause: Cause) {
        self.met_at(cause, Instant::now());
    }

    fn met_at(&self, cause: Cause, now: Instant) {
        let mut present = self.0.lock();
        let before = present.filter(|before| before.cause == cause);
        let (since, told) = before.map_or((now, false), |before| (before.since, before.told));
        *present = Some(Present { cause, since, last: now, told });
    }

    /// Something was evicted, or nothing needs to be.
    pub fn not_met(&self) {
        self.not_met_at(Instant::now());
    }

    fn not_met_at(&self, now: Instant) {
        let mut present = self.0.lock();
        // Where anything can be taken, it is not true that nothing can.
        let lasts = |present: &Present| {
            present.cause != Cause::NothingToTake && now.saturating_duration_since(present.last) < PASSING
        };
        *present = present.filter(lasts);
    }

    /// What [`EvictionBlocked::describe`] tells, the first time that there is something.
    pub fn news(&self, lack: impl FnOnce() -> String) -> Option<String> {
        // Nobody waits for `lack` with this lock.
        let present = (*self.0.lock()).filter(|present| !present.told)?;
        let said = describe(present.cause, present.since.elapsed(), lack)?;
        if let Some(now) = &mut *self.0.lock() {
            now.told |= now.cause == present.cause;
        }
        Some(said)
    }

    /// What stands in the way, unless it may be over at once. A little before users are told of it.
    pub fn lasting(&self) -> Option<Cause> {
        let Present { cause, since, .. } = (*self.0.lock())?;
        let may_pass = matches!(cause, Cause::Silence | Cause::NothingToTake);
        (!may_pass || since.elapsed() >= MOMENT / 2).then_some(cause)
    }

    /// `lack` says why the pool has no room.
    pub fn describe(&self, lack: impl FnOnce() -> String) -> Option<String> {
        let present = (*self.0.lock())?;
        describe(present.cause, present.since.elapsed(), lack)
    }
}

fn describe(cause: Cause, lasts: Duration, lack: impl FnOnce() -> String) -> Option<String> {
    match cause {
        Cause::PoolFull => Some(format!("the pool is full: {}; the app keeps its pages until then", lack())),
        Cause::UsersPool(bytes) => Some(format!(
            "its user's apps have all of the pool that they may have ({}, pool_bytes in [users]): it keeps its pages; detach one of them, or have that raised",
            format_bytes(bytes)
        )),
        Cause::UsersTables(bytes) => Some(format!(
            "the page tables of its user's apps take all that they may ({}, table_bytes in [users]): it keeps its pages; detach one of them, or have that raised",
            format_bytes(bytes)
        )),
        Cause::NoDonor => Some(format!("no donor takes pages, so none is evicted: {}", lack())),
        Cause::NothingToTake => (lasts >= MOMENT).then(|| {
            "more is resident than its limit, and nothing of that can be evicted: it is locked, pinned, on stacks or in small mappings".into()
        }),
        Cause::Silence => (lasts >= MOMENT).then(|| {
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
        let lack = || "no donor has room".to_owned();
        let (blocked, began) = (EvictionBlocked::default(), Instant::now());
        blocked.met_at(Cause::Silence, began);
        assert_eq!(blocked.describe(lack), None, "it may be a moment");
        blocked.met_at(Cause::PoolFull, began);
        let is_told = || blocked.describe(lack).is_some_and(|text| text.contains("full: no donor has room; the app"));
        blocked.not_met_at(began + PASSING / 2);
        assert!(is_told(), "a few pages had room");
        blocked.met_at(Cause::PoolFull, began + PASSING);
        blocked.not_met_at(began + PASSING * 3 / 2);
        assert!(is_told());
        blocked.not_met_at(began + PASSING * 2);
        assert_eq!(blocked.describe(lack), None);
        assert!(describe(Cause::Silence, Duration::from_secs(12), lack).is_some_and(|text| text.contains("for 12 s")));
    }

    #[test]
    fn each_cause_is_news_once() {
        let (blocked, began) = (EvictionBlocked::default(), Instant::now());
        let news = || blocked.news(|| "no donor has room".to_owned());
        assert_eq!(news(), None);
        blocked.met_at(Cause::Silence, began);
        assert_eq!(news(), None, "it may be a moment");
        blocked.met_at(Cause::PoolFull, began);
        assert!(news().is_some_and(|said| said.starts_with("the pool is full")));
        blocked.met_at(Cause::PoolFull, began);
        assert_eq!(news(), None, "it was said");
        blocked.met_at(Cause::NoDonor, began);
        assert!(news().is_some());
    }

    #[test]
    fn that_nothing_can_be_taken_is_told_after_a_while_and_until_something_could() {
        let (blocked, began) = (EvictionBlocked::default(), Instant::now());
        let told = |lasts| describe(Cause::NothingToTake, lasts, String::new);
        assert_eq!(told(MOMENT / 2), None, "its mappings may be changing");
        assert!(told(MOMENT).is_some_and(|text| text.contains("nothing of that can be evicted")));
        blocked.met_at(Cause::NothingToTake, began);
        blocked.not_met_at(began);
        assert!(blocked.0.lock().is_none(), "a page was evicted");
    }
}
