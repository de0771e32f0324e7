//! CLIENT PAUSE: no command, or none that writes, begins until the time is over or somebody ends
//! it.

use std::cell::Cell;
use std::time::Instant;
use tokio::sync::Notify;

/// What waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Paused {
    Writes,
    All,
}

#[derive(Default)]
pub struct Pause {
    until: Cell<Option<(Instant, Paused)>>,
    changed: Notify,
}

impl Pause {
    /// A pause that is stricter or longer than the one before keeps its strictness and length.
    pub fn begin(&self, until: Instant, what: Paused) {
        let (until, what) = match self.current() {
            Some((old_until, old)) => (until.max(old_until), if old == Paused::All { old } else { what }),
            None => (until, what),
        };
        self.until.set(Some((until, what)));
        self.changed.notify_waiters();
    }

    pub fn end(&self) {
        self.until.set(None);
        self.changed.notify_waiters();
    }

    fn current(&self) -> Option<(Instant, Paused)> {
        self.until.get().filter(|(until, _)| *until > Instant::now())
    }

    pub fn holds_up(&self, writes: bool) -> bool {
        // The clock is read only if there was a pause at all.
        self.until.get().is_some() && self.current().is_some_and(|(_, what)| what == Paused::All || writes)
    }

    /// Waits until such a command may begin.
    pub async fn over(&self, writes: bool) {
        while self.holds_up(writes) {
            let changed = self.changed.notified();
            let Some((until, _)) = self.current() else { return };
            tokio::select! {
                () = changed => {}
                () = tokio::time::sleep_until(until.into()) => {}
            }
        }
    }
}
