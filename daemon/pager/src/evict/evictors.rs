//! The evictors: one thread at a time keeps every app below its limit. When a program that is
//! frozen in the middle of a batch keeps that one, another takes its place.
//!
//! A batch waits for the stub, and that stands still with its program (a frozen control group, a
//! SIGSTOP for all of it). What it has moved must be in the records before anything else happens to
//! that space, so the batch can't be left; but other programs need eviction too. The watch thread
//! asks every second whether whoever acts has been at one step for long, and starts another with a
//! lane of its own. Nobody waits for a space that an evictor has. One that finds, when its batch is
//! over, that somebody else acts, ends.

use crate::app::app_registry::AppRegistry;
use crate::app::{App, Watermarks};
use crate::evict::eviction_blocked::Cause;
use crate::evict::evictor::{BATCH, Evictor};
use crate::evict::outcome::Outcome;
use crate::fault::Workers;
use crate::recovery::restore;
use crate::sched::watchdog::MOST_EVICTORS;
use crate::space::{Registry, Shared};
use annex_host::event;
use annex_host::sentinel::Sentinel;
use annex_pool::Pool;
use annex_shared::api::AppState;
use nix::poll::{PollFd, PollFlags, poll};
use parking_lot::Mutex;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long whoever acts looks for something to do that may have been rung for while another one
/// acted.
const LOOK: u16 = 100;
/// With nothing to do an evictor looks at its lane this often.
const LANE_LOOK: u16 = 500;

pub struct Evictors {
    shared: Arc<Shared>,
    registry: Arc<Registry>,
    workers: Arc<Workers>,
    app_registry: Arc<AppRegistry>,
    /// The number of the one that acts.
    acting: AtomicUsize,
    threads: Mutex<[Option<JoinHandle<()>>; MOST_EVICTORS]>,
}

impl Evictors {
    /// Starts the first.
    pub fn start(
        shared: Arc<Shared>,
        registry: Arc<Registry>,
        workers: Arc<Workers>,
        app_registry: Arc<AppRegistry>,
    ) -> io::Result<Arc<Evictors>> {
        let evictors = Arc::new(Evictors {
            shared,
            registry,
            workers,
            app_registry,
            acting: AtomicUsize::new(0),
            threads: Mutex::default(),
        });
        evictors.begin(0)?;
        Ok(evictors)
    }

    /// How many there are, those included that are kept by a program.
    pub fn len(&self) -> usize {
        self.threads.lock().iter().flatten().filter(|thread| !thread.is_finished()).count()
    }

    /// Has another one act if the one that does stands still. Called by the watch thread alone.
    pub fn relieve(self: &Arc<Self>) {
        let acting = self.acting.load(Ordering::Acquire);
        let Some((step, _)) = self.shared.watchdog.evictors[acting].stuck() else { return };
        let is_free = |thread: &Option<JoinHandle<()>>| thread.as_ref().is_none_or(JoinHandle::is_finished);
        let free = self.threads.lock().iter().position(is_free);
        let Some(next) = free else {
            tracing::debug!("all {MOST_EVICTORS} evictors stand still");
            return;
        };
        match self.begin(next) {
            Ok(()) => {
                tracing::warn!("the evictor has been {step} for long: evictor {next} looks after the other programs");
                self.registry.wake_evictor();
            }
            Err(error) => tracing::error!("failed to start another evictor: {error}"),
        }
    }

    fn begin(self: &Arc<Self>, number: usize) -> io::Result<()> {
        let lane = self.shared.pool.lane(&format!("evict-{number}"), 2 * BATCH).map_err(io::Error::other)?;
        let evictor = Evictor {
            number,
            lane,
            shared: self.shared.clone(),
            registry: self.registry.clone(),
            workers: self.workers.clone(),
        };
        // It acts from its first look on.
        let before = self.acting.swap(number, Ordering::AcqRel);
        let all = self.clone();
        let thread = std::thread::Builder::new().name("annex-evict".into()).spawn(move || all.act(evictor));
        match thread {
            Ok(thread) => self.threads.lock()[number] = Some(thread),
            Err(error) => {
                self.acting.store(before, Ordering::Release);
                return Err(error);
            }
        }
        Ok(())
    }

    /// Returns when they have ended: `stop` of the roster is set and its bell rung before.
    pub fn join(&self) {
        let threads: Vec<_> = self.threads.lock().iter_mut().filter_map(Option::take).collect();
        threads.into_iter().for_each(|thread| drop(thread.join()));
    }

    fn acts(&self, number: usize) -> bool {
        self.acting.load(Ordering::Acquire) == number && !self.app_registry.stop.load(Ordering::Acquire)
    }

    /// An evictor's life.
    fn act(&self, mut evictor: Evictor) {
        let _sentinel = Sentinel("an evictor");
        let watched = &self.shared.watchdog.evictors[evictor.number];
        watched.enlist();
        // Between batches nothing is under way.
        let mut nothing = Vec::new();
        while self.acts(evictor.number) {
            watched.end();
            // One that has just been replaced may have taken the ring.
            let patience = if self.len() > 1 { LOOK } else { LANE_LOOK };
            let _ = poll(&mut [PollFd::new(self.registry.bell().as_fd(), PollFlags::POLLIN)], patience);
            self.registry.answer();
            // Also when there is nothing to evict: a lane that nobody looks at keeps connections
            // that are over, and their devices open.
            evictor.lane.poll(&mut nothing);
            let mut again = false;
            for app in &self.app_registry.all() {
                if !app.is_above_watermark() {
                    app.eviction_blocked.not_met();
                } else if app.state() != AppState::Detaching && !app.is_resting() {
                    again |= relieve(&mut evictor, app);
                    tell_blocked(app, &evictor.shared.pool);
                }
                evictor.workers.serve(evictor.registry.take_delayed(app));
                if !self.acts(evictor.number) {
                    break;
                }
            }
            if again {
                self.registry.wake_evictor();
            }
        }
        watched.retire();
    }
}

/// An app that stays above its limit is told of once, and not again and again.
fn tell_blocked(app: &App, pool: &Pool) {
    if let Some(why) = app.eviction_blocked.news(|| pool.why_no_room()) {
        event!(WARN, AppOverLimit of &app.name, uid app.uid, "app {}: {why}", app.name);
    }
}

/// Evicts from an app until it is below its low watermark, a fair while is over, or nothing more
/// can be had. True: there is more to do.
fn relieve(evictor: &mut Evictor, app: &Arc<App>) -> bool {
    let evicted = restore::evicted_about(&evictor.registry, app);
    let resident = app.measure(evicted);
    let marks = Watermarks::of(app.limit(), resident, evicted);
    if resident <= marks.high {
        return false;
    }
    let mut need = resident - marks.low;
    let mut spaces = evictor.registry.of_members(app);
    let turn_ends = Instant::now() + Duration::from_millis(50);
    let mut retries = 0;
    let mut nothing_to_take = resident > marks.limit && !spaces.is_empty();
    while need > 0 && !spaces.is_empty() {
        let room = match evictor.shared.quotas.room(&evictor.registry, &evictor.shared.pool, app) {
            Ok(room) => room,
            Err(cause) => {
                // Copies of what is resident are in the pool too, and the first to go.
                let may_give = matches!(cause, Cause::UsersPool(_));
                let given: usize =
                    spaces.iter().filter(|_| may_give).map(|(_, space)| evictor.give_copies(space)).sum();
                if given == 0 {
                    app.eviction_blocked.met(cause);
                    app.yielded(0);
                    app.rest(Duration::from_millis(500));
                    return false;
                }
                if Instant::now() > turn_ends {
                    return true;
                }
                continue;
            }
        };
        let mut left = need.min(room);
        // In turn, so that no process pays for all.
        let mut exhausted = Vec::new();
        for (i, (_, space)) in spaces.iter().enumerate() {
            if left == 0 {
                break;
            }
            let outcome = evictor.batch(space, BATCH.min(left as usize).max(64));
            app.yielded(if let Outcome::Evicted(n) = outcome { n } else { 0 });
            evictor.workers.serve(evictor.registry.take_delayed(app));
            match outcome {
                Outcome::Evicted(n) => {
                    nothing_to_take = false;
                    (need, left) = (need.saturating_sub(n), left.saturating_sub(n));
                    app.eviction_blocked.not_met();
                }
                Outcome::Again | Outcome::Unshared => {
                    retries += 1;
                    if retries > 20 {
                        std::thread::sleep(Duration::from_micros(500));
                        return true;
                    }
                }
                Outcome::PoolFull => {
                    app.rest(Duration::from_millis(500));
                    return false;
                }
                Outcome::WriteFailed => {
                    app.eviction_blocked.met(Cause::NoDonor);
                    app.rest(Duration::from_millis(500));
                    return false;
                }
                Outcome::NoAnswer => {
                    nothing_to_take = false;
                    app.eviction_blocked.met(Cause::Silence);
                    exhausted.push(i);
                }
                Outcome::NothingCold | Outcome::Dead => exhausted.push(i),
            }
        }
        for i in exhausted.into_iter().rev() {
            spaces.remove(i);
        }
        if Instant::now() > turn_ends {
            return !spaces.is_empty();
        }
    }
    if need > 0 {
        // What is left can't be evicted (now): locked, pinned, special, or just being changed.
        if nothing_to_take {
            app.eviction_blocked.met(Cause::NothingToTake);
        }
        app.rest(Duration::from_millis(100));
    }
    false
}
