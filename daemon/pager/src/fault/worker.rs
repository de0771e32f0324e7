//! What one fault worker has: a lane to the pool of its own, reads under way, and what it has to
//! try again.
//!
//! A worker never waits for anything but its epoll set. What can't be done at once goes to `again`
//! and is tried on the next turns ([`put_off`](crate::fault::put_off)). A space whose lock somebody
//! keeps (an evictor, with a stub that stands still because its program is frozen) is taken out of
//! the epoll set until it can be had: its messages would wake the worker without end, and all other
//! programs would wait for that.

use crate::app::{App, LONGEST_DELAY};
use crate::fault::busy_poll::BusyPoll;
use crate::fault::fetch::Stretch;
use crate::fault::page_fault::Fault;
use crate::fault::put_off::PutOff;
use crate::page::PageIdx;
use crate::sched::affinity::Bell;
use crate::sched::{WorkerClass, affinity};
use crate::space::{Registry, Shared, Space, SpaceGuard, SpaceId};
use annex_pool::{Buf, Done, Lane};
use annex_shared::ids::SlotIdx;
use crossbeam::channel::Receiver;
use nix::sys::epoll::Epoll;
use nix::sys::eventfd::EventFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::{Duration, Instant};

/// Pages of transfer buffers a worker has: 1 MiB.
pub(super) const BUFFERS: usize = 256;
/// How long a space's lock may be held by somebody else before the worker turns to other spaces.
pub(super) const PATIENCE: Duration = Duration::from_millis(2);

/// A read under way.
pub(super) struct Pending {
    pub(super) space: Arc<Space>,
    pub(super) stretch: Stretch,
    /// `None`: nobody waits for it.
    pub(super) fault: Option<Fault>,
}

/// A space whose ring is polled.
pub(super) struct Polled {
    pub(super) space: Arc<Space>,
    pub(super) found_at: Instant,
}

/// What could not be done at once.
pub(super) enum Again {
    /// Since when somebody may be waiting.
    Drain(SpaceId, Instant),
    Ring(Arc<Space>),
    Fault(Arc<Space>, Fault),
    Install(Pending, Buf),
    Lose(Arc<Space>, PageIdx, SlotIdx),
}

/// Of what a space puts off, what is tried again once, however often it was put off.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Once {
    Drain,
    Ring,
    Fault { page: PageIdx, write: bool, thread: i32, evictors: bool },
}

pub(super) struct Worker {
    pub(super) number: usize,
    /// All workers', by number.
    pub(super) epolls: Arc<[Arc<Epoll>]>,
    pub(super) class: Arc<WorkerClass>,
    pub(super) looking: Arc<Bell>,
    pub(super) since_ring: u32,
    pub(super) epoll: Arc<Epoll>,
    pub(super) bell: Arc<EventFd>,
    pub(super) mail: Receiver<(Arc<Space>, Fault)>,
    pub(super) busy_since: Arc<AtomicU64>,
    pub(super) lane: Lane,
    /// See [`Waiting`](crate::sched::waiting::Waiting).
    pub(super) polls_for: Duration,
    pub(super) last_woken: Instant,
    pub(super) busy_poll: BusyPoll,
    pub(super) shared: Arc<Shared>,
    pub(super) registry: Arc<Registry>,
    pub(super) stop: Arc<AtomicBool>,
    pub(super) pending: Vec<Option<Pending>>,
    pub(super) free: Vec<usize>,
    pub(super) again: PutOff<Once, Again>,
    /// Of what was put off, something could be done in the latest turn.
    pub(super) goes_on: bool,
    /// Spaces that somebody keeps: not watched, and tried again with what is in `again`.
    pub(super) held_up: Vec<SpaceId>,
    pub(super) done: Vec<Done>,
    pub(super) faults: Vec<Fault>,
    /// Apps that hold faults of ours, and when those have waited long enough.
    pub(super) delaying: Vec<(Arc<App>, Instant)>,
    /// A space that had faults in this turn, and whose stub is to have this CPU after it.
    pub(super) faulted: Option<Arc<Space>>,
    /// Rings that it polls, if it does such things.
    pub(super) rings: Vec<Polled>,
    pub(super) polls_rings: bool,
}

impl Worker {
    /// The space's core, if it can be had soon by the way that is wanted; if not, whoever asks must
    /// try `again`.
    pub(super) fn core_of<'a>(
        &mut self,
        space: &Space,
        take: impl Fn(Duration) -> Option<SpaceGuard<'a>>,
    ) -> Option<SpaceGuard<'a>> {
        let held_up = self.held_up.iter().position(|id| *id == space.id);
        let core = take(if held_up.is_some() { Duration::ZERO } else { PATIENCE });
        match (held_up, &core) {
            (None, None) => {
                self.held_up.push(space.id);
                // The worker of the space's CPU alone may have been watching.
                let _ = self.epoll.delete(space.uffd.as_fd());
            }
            (Some(at), Some(core)) => {
                self.held_up.swap_remove(at);
                if core.affinity.is_watched_by(self.number)
                    && let Err(error) = affinity::watch(&self.epoll, space, self.epolls.len())
                {
                    space.app.stop(&format!("a userfaultfd can't be watched any more: {error}"));
                }
            }
            _ => {}
        }
        core
    }

    /// On one of the next turns, then.
    pub(super) fn try_again(&mut self, again: Again) {
        let (space, once) = match &again {
            Again::Drain(id, _) => (*id, Some(Once::Drain)),
            Again::Ring(space) => (space.id, Some(Once::Ring)),
            Again::Fault(space, Fault { page, write, thread, evictors, .. }) => {
                let once = Once::Fault { page: *page, write: *write, thread: *thread, evictors: *evictors };
                (space.id, Some(once))
            }
            // These hold a buffer, or a page that nobody else will see to.
            Again::Install(pending, _) => (pending.space.id, None),
            Again::Lose(space, ..) => (space.id, None),
        };
        self.again.push(space, once, again);
    }

    /// A fault waits for the evictor, but not for longer than it may.
    pub(super) fn delay(&mut self, app: &Arc<App>) {
        if !self.delaying.iter().any(|(held, _)| Arc::ptr_eq(held, app)) {
            self.delaying.push((app.clone(), Instant::now() + LONGEST_DELAY));
        }
    }
}
