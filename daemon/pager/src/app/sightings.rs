//! The processes of the host as the manager has seen them last, for whoever follows rules: a look
//! at all of them is dear, and one serves both.

use crate::kernel::process::Stat;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// A process may become another program at any time, which the kernel tells nobody: not later than
/// this it is looked at again.
const AT_THE_LATEST: Duration = Duration::from_secs(10);
/// Most do so soon after they were made: for this long they are looked at more often.
const YOUNG: Duration = Duration::from_secs(5);
/// That often. As often as rules are followed.
pub const OFTEN: Duration = Duration::from_secs(1);

/// All processes of the host, with their PIDs.
pub type Processes = Arc<Vec<(i32, Stat)>>;

#[derive(Default)]
pub struct Sightings {
    wanted: AtomicBool,
    last: Mutex<Option<Processes>>,
}

impl Sightings {
    /// From now on somebody wants to know.
    pub fn want(&self) {
        self.wanted.store(true, Relaxed);
    }

    pub fn is_wanted(&self) -> bool {
        self.wanted.load(Relaxed)
    }

    /// Whether all are to be looked at although none is new, `looked` and `newest` ago.
    pub fn is_due(&self, looked: Duration, newest: Duration) -> bool {
        self.is_wanted() && (looked >= AT_THE_LATEST || (looked >= OFTEN && newest <= YOUNG))
    }

    pub fn put(&self, processes: impl FnOnce() -> Vec<(i32, Stat)>) {
        if self.is_wanted() {
            *self.last.lock() = Some(Arc::new(processes()));
        }
    }

    /// The last look, if it was not taken yet.
    pub fn take(&self) -> Option<Processes> {
        self.last.lock().take()
    }
}

/// When the manager has looked at all processes last, and when there was a new one last.
pub struct Looked {
    pub at: Instant,
    pub newest: Instant,
}

impl Default for Looked {
    fn default() -> Looked {
        let now = Instant::now();
        Looked { at: now, newest: now }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_young_are_looked_at_often_and_all_now_and_then() {
        let sightings = Sightings::default();
        let second = Duration::from_secs;
        assert!(!sightings.is_due(second(100), second(0)), "nobody wants to know");
        sightings.put(Vec::new);
        assert!(sightings.take().is_none());
        sightings.want();
        assert!(sightings.is_due(second(1), second(2)));
        assert!(!sightings.is_due(Duration::from_millis(900), second(0)));
        assert!(!sightings.is_due(second(9), second(20)));
        assert!(sightings.is_due(second(10), second(20)));
        sightings.put(Vec::new);
        assert!(sightings.take().is_some() && sightings.take().is_none());
    }
}
