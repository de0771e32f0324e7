//! The guard of a space: its lock, and the stub quiesced.
//!
//! While an eviction moves pages, nobody may read a change from the userfaultfd: an unread one is
//! what keeps MOVE from touching an address that has become something else. But a batch takes
//! hundreds of microseconds, and a fault must not wait for that. So whoever takes the core's lock
//! shuts the gate between two calls of the stub ([`stub::gate`](crate::inject::stub)), and makes
//! the records say what has moved by then ([`MoveBatch::settle`]): as long as the [`SpaceGuard`]
//! lasts nothing moves, and all is as if the batch had been that short. With its end the stub goes
//! on, unless the plan is not true any more: a change was applied, the app is being let go of, or
//! is dead. Then the rest of the calls is given up.
//!
//! Even one call is long where an interrupt between processors is (20 us in a virtual machine, for
//! a MOVE of 2). Faults are served *concurrently*:
//!
//! - Faults are read while pages move if some are pending. The kernel hands those out before any
//!   change, and whoever has the lock is the only reader. Should a change come all the same (a
//!   signal took the thread that waited, in that very moment), the stub is stopped; had a call
//!   ended meanwhile, the app is, for what was moved may have been something else already.
//! - Records of pages that no unfinished call goes over are as true as ever: those pages can be
//!   looked at, read and installed ([`SpaceGuard::has_to_itself`]). For others the stub is
//!   quiesced.
//!
//! Who evicts waits for the end of the stub's calls without the lock, and takes it
//! [quiesced](Space::core_quiesced) afterwards.

use crate::evict::MoveBatch;
use crate::page::Range;
use crate::space::address_space::Space;
use crate::space::core::Core;
use annex_host::failpoint::failpoint;
use annex_shared::api::AppState;
use parking_lot::MutexGuard;
use std::ops::{Deref, DerefMut};
use std::time::{Duration, Instant};

/// For how long a core's holder is waited for without sleeping.
const SOON: Duration = Duration::from_micros(100);
/// A call of the stub takes microseconds. One that does not end in this time is waited for without
/// the lock: its evictor may need that.
const CALL: Duration = Duration::from_millis(2);
/// With a change in hand it must be waited for.
const MUST: Duration = Duration::from_secs(2);
/// Looks between two turns for others.
const LOOKS: u32 = 100;

/// How long whoever has so much time waits for a call of the stub.
fn for_a_call(limit: Duration) -> Duration {
    limit.clamp(SOON, CALL)
}

/// A space's core.
pub struct SpaceGuard<'a> {
    space: &'a Space,
    core: MutexGuard<'a, Core>,
    /// While the stub goes on.
    concurrent: Option<Concurrent>,
}

#[derive(Clone, Copy)]
struct Concurrent {
    /// Calls that were still to be made when this began.
    left: u32,
    /// Messages that may be read: there are so many faults.
    faults: usize,
}

impl<'a> SpaceGuard<'a> {
    /// `None`: the stub's present call takes longer than `limit`.
    fn quiesced(space: &'a Space, core: MutexGuard<'a, Core>, limit: Duration) -> Option<SpaceGuard<'a>> {
        let mut guard = SpaceGuard::concurrent(space, core);
        guard.quiesce(limit).then_some(guard)
    }

    fn concurrent(space: &'a Space, core: MutexGuard<'a, Core>) -> SpaceGuard<'a> {
        let concurrent = core.moves.as_ref().map(|moves| Concurrent { left: moves.gate.left(), faults: 0 });
        SpaceGuard { space, core, concurrent }
    }

    /// How many messages may be read.
    pub fn readable(&self) -> usize {
        self.concurrent.map_or(usize::MAX, |concurrent| concurrent.faults)
    }

    /// Has nothing move any more. False: the stub's present call takes longer than `limit`.
    fn quiesce(&mut self, limit: Duration) -> bool {
        if self.concurrent.is_none() {
            return true;
        }
        if let Some(mut moves) = self.core.moves.take() {
            let is_shut = moves.gate.shut(limit);
            if is_shut {
                moves.settle(&mut self.space.records(&mut self.core));
                self.concurrent = None;
                failpoint("moves-interrupted");
            }
            self.core.moves = Some(moves);
        }
        self.concurrent.is_none()
    }

    /// Sees that no unfinished call goes over these pages. False: the one that does takes long.
    pub fn has_to_itself(&mut self, pages: Range) -> bool {
        self.core.moves.as_ref().is_none_or(|moves| !moves.still_covers(pages)) || self.quiesce(CALL)
    }

    /// A change was read: nothing more may move. Stops the app unless it is certain that nothing
    /// has since the guard was taken.
    pub fn quiesce_for_change(&mut self) {
        let Some(Concurrent { left, .. }) = self.concurrent else { return };
        let is_certain = self.quiesce(MUST) && self.core.moves.as_ref().is_none_or(|m| m.gate.left() == left);
        if !is_certain {
            self.space.app.stop(
                "its mappings changed as pages of it were moved, in the moment in which a signal took away the fault that was to be read: \
                 whether the right pages moved can't be told",
            );
        }
    }
}

impl Deref for SpaceGuard<'_> {
    type Target = Core;

    fn deref(&self) -> &Core {
        &self.core
    }
}

impl DerefMut for SpaceGuard<'_> {
    fn deref_mut(&mut self) -> &mut Core {
        &mut self.core
    }
}

impl Drop for SpaceGuard<'_> {
    fn drop(&mut self) {
        let frozen = self.core.frozen;
        let Some(moves) = &self.core.moves else { return };
        if moves.is_given_up() || frozen || self.space.is_dead() || self.space.app.state() == AppState::Detaching {
            moves.gate.end();
        } else if self.concurrent.is_none() {
            moves.gate.open();
        }
    }
}

impl Core {
    /// Whether anything but the records of single pages is in question.
    fn is_plain(&self) -> bool {
        !self.window.is_open() && self.guards.is_none() && self.suspects.is_empty()
    }
}

impl Space {
    pub fn core(&self) -> SpaceGuard<'_> {
        loop {
            if let Some(guard) = SpaceGuard::quiesced(self, self.lock(), CALL) {
                return guard;
            }
            std::thread::sleep(SOON);
        }
    }

    /// The core, unless it can't be had for longer than `limit` (an app frozen in the middle of an
    /// eviction).
    pub fn core_within(&self, limit: Duration) -> Option<SpaceGuard<'_>> {
        SpaceGuard::quiesced(self, self.lock_within(limit)?, for_a_call(limit))
    }

    /// The core, if nobody has it and nothing moves.
    pub fn core_at_once(&self) -> Option<SpaceGuard<'_>> {
        SpaceGuard::quiesced(self, self.core.try_lock()?, SOON)
    }

    /// The same, for whoever reads no messages, and only looks at pages that he [has to
    /// himself](SpaceGuard::has_to_itself): the stub goes on meanwhile.
    pub fn core_concurrent(&self, limit: Duration) -> Option<SpaceGuard<'_>> {
        let core = self.lock_within(limit)?;
        if core.is_plain() {
            Some(SpaceGuard::concurrent(self, core))
        } else {
            SpaceGuard::quiesced(self, core, for_a_call(limit))
        }
    }

    /// The same, to read messages: concurrently with the stub if there are faults to be read.
    pub fn core_for_messages(&self, limit: Duration) -> Option<SpaceGuard<'_>> {
        let mut guard = SpaceGuard::concurrent(self, self.lock_within(limit)?);
        if guard.moves.as_ref().is_some_and(|moves| moves.is_between_chunks()) {
            return guard.quiesce(CALL).then_some(guard);
        }
        let is_plain = guard.is_plain();
        if let Some(concurrent) = guard.concurrent.as_mut().filter(|_| is_plain) {
            concurrent.faults = self.uffd.pending_faults();
            failpoint("faults-counted");
        }
        (guard.readable() > 0 || guard.quiesce(for_a_call(limit))).then_some(guard)
    }

    /// A fault was served, or waits for a donor, and the worker has nothing to do: the stub may
    /// have its CPU, for a chunk of the moves that are to be made.
    pub fn move_some(&self) {
        let due = |mut core: MutexGuard<'_, Core>| {
            core.release.take().or_else(|| core.moves.as_mut().and_then(|moves| moves.next_chunk()))
        };
        if let Some(gate) = self.core.try_lock().and_then(due) {
            gate.ring();
            failpoint("chunk-rung");
        }
    }

    /// The core, for the evictor whose stub has answered or is dead, and the moves that were being
    /// made.
    pub(crate) fn core_quiesced(&self) -> (SpaceGuard<'_>, Option<Box<MoveBatch>>) {
        let mut core = self.lock();
        let moves = core.moves.take();
        (SpaceGuard { space: self, core, concurrent: None }, moves)
    }

    fn lock(&self) -> MutexGuard<'_, Core> {
        self.lock_soon(SOON).unwrap_or_else(|| self.core.lock())
    }

    pub(super) fn lock_within(&self, limit: Duration) -> Option<MutexGuard<'_, Core>> {
        self.lock_soon(limit.min(SOON)).or_else(|| self.core.try_lock_for(limit))
    }

    /// The core's lock, as soon as whoever has it lets go of it. It is held for microseconds; were
    /// somebody asleep for it, letting go would cost a system call and an interrupt between
    /// processors, which faults wait for.
    fn lock_soon(&self, limit: Duration) -> Option<MutexGuard<'_, Core>> {
        let mut until = None;
        loop {
            if let Some(core) = self.core.try_lock() {
                return Some(core);
            }
            if Instant::now() > *until.get_or_insert_with(|| Instant::now() + limit) {
                return None;
            }
            let looks = (0..LOOKS).find(|_| {
                std::hint::spin_loop();
                !self.core.is_locked()
            });
            if looks.is_none() {
                // It may be held by a thread that has yet to get this CPU.
                std::thread::yield_now();
            }
        }
    }
}
