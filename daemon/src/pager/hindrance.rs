//! What keeps an app's memory from being evicted, for as long as it does: whoever looks at an app that is above its limit reads why.

use parking_lot::Mutex;
use std::time::{Duration, Instant};

/// Silence of a stub that is not worth a word: its program may have been stopped for a moment.
const SILENCE: Duration = Duration::from_secs(3);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    PoolFull,
    /// No replica takes what is written.
    NoDonor,
    /// The stub does not answer.
    Silence,
}

#[derive(Debug, Default)]
pub struct Hindrance(Mutex<Option<(Cause, Instant)>>);

impl Hindrance {
    /// Something could not be evicted.
    pub fn met(&self, cause: Cause) {
        let mut present = self.0.lock();
        if present.is_none_or(|(before, _)| before != cause) {
            *present = Some((cause, Instant::now()));
        }
    }

    /// Something was evicted, or nothing needs to be.
    pub fn over(&self) {
        *self.0.lock() = None;
    }

    pub fn describe(&self) -> Option<String> {
        let (cause, since) = (*self.0.lock())?;
        describe(cause, since.elapsed())
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
    fn what_lasts_is_told_until_it_is_over() {
        let hindrance = Hindrance::default();
        hindrance.met(Cause::Silence);
        assert_eq!(hindrance.describe(), None, "it may be a moment");
        hindrance.met(Cause::PoolFull);
        assert!(hindrance.describe().is_some_and(|text| text.contains("full")));
        hindrance.over();
        assert_eq!(hindrance.describe(), None);
        assert!(describe(Cause::Silence, Duration::from_secs(12)).is_some_and(|text| text.contains("for 12 s")));
    }
}
