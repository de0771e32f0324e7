//! What the threads that are not fault workers are at, and since when: one that stands still is
//! noticed, and it is said where.

use crate::kernel::process;
use annex_host::repeats::say_counts;
use nix::unistd::gettid;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicI32, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

/// Evictors that there are at most, those included that are kept by a frozen program.
pub const MOST_EVICTORS: usize = 8;
/// How often they are looked at.
const LOOK: Duration = Duration::from_secs(1);
/// No step takes this long, unless a donor, the kernel or a frozen program does.
const LONG: Duration = Duration::from_secs(5);

/// One thread's present step.
pub struct Watched {
    name: &'static str,
    tid: AtomicI32,
    step: Mutex<Option<(&'static str, Instant)>>,
}

impl Watched {
    fn new(name: &'static str) -> Watched {
        Watched { name, tid: AtomicI32::new(0), step: Mutex::new(None) }
    }

    /// Whose steps these are: the thread that calls it.
    pub fn enlist(&self) {
        self.tid.store(gettid().as_raw(), Relaxed);
    }

    /// Linux's number of the thread; 0 before it has started.
    pub fn tid(&self) -> i32 {
        self.tid.load(Relaxed)
    }

    pub fn begin(&self, step: &'static str) {
        *self.step.lock() = Some((step, Instant::now()));
    }

    /// It sleeps until there is something to do.
    pub fn end(&self) {
        *self.step.lock() = None;
    }

    /// The thread ends.
    pub fn retire(&self) {
        self.end();
        self.tid.store(0, Relaxed);
    }

    /// Its present step, if that began before `LONG`.
    pub fn stuck(&self) -> Option<(&'static str, Instant)> {
        self.step.lock().filter(|(_, since)| since.elapsed() > LONG)
    }
}

/// The evictors' steps, by number, and the manager's.
pub struct Watchdog {
    pub evictors: [Watched; MOST_EVICTORS],
    pub manager: Watched,
}

impl Watchdog {
    /// Whether Linux's number of a thread is an evictor's.
    pub fn are_evictors(&self, thread: i32) -> bool {
        thread != 0 && self.evictors.iter().any(|watched| watched.tid() == thread)
    }

    /// The threads that evict now.
    pub fn evictor_threads(&self) -> impl Iterator<Item = i32> {
        self.evictors.iter().map(Watched::tid).filter(|tid| *tid != 0)
    }
}

impl Default for Watchdog {
    fn default() -> Watchdog {
        Watchdog { evictors: std::array::from_fn(|_| Watched::new("an evictor")), manager: Watched::new("the manager") }
    }
}

/// Says it when a thread has stopped making progress and when it goes on, until the other end of
/// `over` is dropped. `look` is called each time too.
pub fn watch(watchdog: &Watchdog, stalled: impl Fn() -> Option<String>, ended: &Receiver<()>, look: impl Fn()) {
    let mut said = [None; MOST_EVICTORS + 1];
    let mut is_stalled = false;
    while ended.recv_timeout(LOOK) == Err(RecvTimeoutError::Timeout) {
        for (watched, said) in watchdog.evictors.iter().chain([&watchdog.manager]).zip(&mut said) {
            let stuck = watched.stuck();
            match stuck {
                Some((step, since)) if *said != stuck => tracing::warn!(
                    "{} has been {step} for {} s; it is in {}",
                    watched.name,
                    since.elapsed().as_secs(),
                    process::where_in_kernel(watched.tid())
                ),
                None if said.is_some() => tracing::warn!("{} goes on", watched.name),
                _ => {}
            }
            *said = stuck;
        }
        look();
        say_counts(Instant::now());
        let stalled = stalled();
        match (&stalled, is_stalled) {
            (Some(what), false) => tracing::error!("{what}: programs may stand still"),
            (None, true) => tracing::warn!("the fault worker that had stalled goes on"),
            _ => {}
        }
        is_stalled = stalled.is_some();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_step_that_takes_long_is_stuck() {
        let watched = Watched::new("it");
        assert_eq!(watched.stuck(), None);
        watched.begin("waiting");
        assert_eq!(watched.stuck(), None);
        let long_ago = Instant::now().checked_sub(LONG * 2).expect("the host runs for longer than that");
        *watched.step.lock() = Some(("waiting", long_ago));
        assert_eq!(watched.stuck(), Some(("waiting", long_ago)));
        watched.end();
        assert_eq!(watched.stuck(), None);
    }

    #[test]
    fn a_thread_is_somewhere() {
        assert!(process::where_in_kernel(gettid().as_raw()).starts_with("state R"));
    }
}
