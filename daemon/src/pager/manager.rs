//! Two threads that look after the apps: the *manager* follows processes as they come, grow, exec and go, and gives them stubs when
//! they are needed; the *evictor* ([`evictors`](super::evictors)) keeps every app below its limit.
//!
//! Neither is ever waited for by a fault.

use super::apart;
use super::app::App;
use super::attach::Means;
use super::ledger::Ledger;
use super::membership::Census;
use super::process;
use super::restore;
use super::space::Space;
use crate::keeper::Kept;
use crate::sentinel::Sentinel;
use annex_shared::api::{AppState, Target};
use annex_shared::priority::Precedence;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use parking_lot::{Mutex, RwLock};
use std::collections::HashSet;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How often processes are looked at: often while an app is near its limit and its memory changes, less often when it has not
/// changed for a while, seldom when no app is near its limit.
const BUSY: Duration = Duration::from_millis(20);
const CALM: Duration = Duration::from_millis(60);
const QUIET: Duration = Duration::from_millis(100);
/// Without a change for so long an app is calm.
const UNTIL_CALM: Duration = Duration::from_secs(1);
/// A process smaller than this (8 MiB, in pages) gets no stub of its own: it would cost more than it brings.
const WORTH_A_STUB: u64 = 2048;
/// After a failed attempt to give a process a stub.
const RETRY: Duration = Duration::from_secs(1);

/// The apps, and what wakes the manager.
pub struct Roster {
    apps: RwLock<Vec<Arc<App>>>,
    bell: EventFd,
    pub stop: AtomicBool,
    /// What a successor finds of the apps.
    pub ledger: Ledger,
    /// Held while an app is attached, detached or dropped, so that none of these meet.
    pub changing: Mutex<()>,
}

impl Roster {
    pub fn new(ledger: Ledger) -> io::Result<Roster> {
        let bell = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        Ok(Roster { apps: RwLock::default(), bell, stop: AtomicBool::new(false), ledger, changing: Mutex::new(()) })
    }

    /// Writes down who there is.
    pub fn write_down(&self) {
        self.ledger.write(&self.all());
    }

    pub fn all(&self) -> Vec<Arc<App>> {
        self.apps.read().clone()
    }

    pub fn find(&self, id: u64) -> Option<Arc<App>> {
        self.apps.read().iter().find(|a| a.id == id).cloned()
    }

    pub fn add(&self, app: Arc<App>) {
        self.apps.write().push(app);
        self.write_down();
        self.ring();
    }

    pub fn remove(&self, id: u64) {
        self.apps.write().retain(|a| a.id != id);
        self.write_down();
    }

    pub fn ring(&self) {
        let _ = self.bell.write(1);
    }
}

pub struct Manager {
    pub roster: Arc<Roster>,
    pub means: Arc<Means>,
    pub census: Census,
    pub motion: Motion,
}

/// Whether anything has changed lately in what the apps have resident.
pub struct Motion {
    resident: i64,
    changed: Instant,
}

impl Default for Motion {
    fn default() -> Motion {
        Motion { resident: 0, changed: Instant::now() }
    }
}

impl Motion {
    fn is_calm(&mut self, resident: i64) -> bool {
        if resident != self.resident {
            *self = Motion { resident, changed: Instant::now() };
        }
        self.changed.elapsed() > UNTIL_CALM
    }
}

impl Manager {
    pub fn run(mut self) {
        let _sentinel = Sentinel("the manager");
        // It holds locks that faults wait for, if briefly.
        Precedence::OfItsGroup.give(0);
        let around = self.means.around.clone();
        let turn = &around.turns.manager;
        turn.enlist();
        while !self.roster.stop.load(Ordering::Acquire) {
            let apps = self.roster.all();
            turn.end();
            self.sleep(&apps);
            turn.begin("looking for processes that have ended");
            let apps = self.roster.all();
            for app in &apps {
                self.bury(app);
            }
            turn.begin("looking for new processes");
            let stubs: HashSet<i32> = self.means.registry.all().iter().filter_map(|s| s.stub_pid()).collect();
            self.census.update(&apps, &stubs);
            // Before any of them gets a stub: what is evicted must have an owner that is known.
            self.roster.write_down();
            turn.begin("following how its apps grow");
            for app in &apps {
                self.follow(app);
            }
        }
    }

    /// Until a process ends, somebody rings, or it is time to look.
    fn sleep(&mut self, apps: &[Arc<App>]) {
        let near = apps.iter().any(|a| a.state() != AppState::Detaching && a.is_near());
        let is_calm = self.motion.is_calm(apps.iter().map(|a| a.estimate()).sum());
        let pause = match (apps.is_empty(), near) {
            (true, _) => PollTimeout::NONE,
            (_, false) => PollTimeout::from(QUIET.as_millis() as u8),
            (_, true) => PollTimeout::from(if is_calm { CALM } else { BUSY }.as_millis() as u8),
        };
        let copies: Vec<_> = apps
            .iter()
            .flat_map(|a| a.members.lock().iter().filter_map(|m| m.pidfd.try_clone().ok()).collect::<Vec<_>>())
            .collect();
        let mut fds: Vec<PollFd<'_>> = copies.iter().map(|fd| PollFd::new(fd.as_fd(), PollFlags::POLLIN)).collect();
        fds.push(PollFd::new(self.roster.bell.as_fd(), PollFlags::POLLIN));
        let _ = poll(&mut fds, pause);
        let _ = self.roster.bell.read();
    }

    /// Takes out processes that have ended, programs that were replaced by exec, and the memory of both.
    fn bury(&self, app: &Arc<App>) {
        let mut gone = Vec::new();
        let mut replaced = Vec::new();
        app.members.lock().retain_mut(|member| {
            let mut fds = [PollFd::new(member.pidfd.as_fd(), PollFlags::POLLIN)];
            // Neither this thread nor other apps wait for a batch that is under way: what it works on is buried later.
            if member.space.as_ref().is_some_and(|space| space.evicting.is_locked()) {
                return true;
            }
            if poll(&mut fds, PollTimeout::ZERO).unwrap_or(0) > 0 {
                gone.extend(member.space.take());
                self.means.registry.keeper.let_go(Kept::Process(member.pid));
                return false;
            }
            if let Some(space) = &member.space
                && let Some(stub) = space.stub_pid()
                && process::same_address_space(member.pid, stub) == Some(false)
            {
                replaced.push((member.pid, member.space.take()));
            }
            true
        });
        for space in gone {
            self.discard(&space);
        }
        for (pid, space) in replaced {
            let Some(space) = space else { continue };
            self.means.registry.keeper.let_go(Kept::Process(pid));
            let stub = self.discard(&space);
            if app.region().is_some() {
                // The region is gone; the program that has come is nobody's.
                app.members.lock().retain(|member| member.pid != pid);
            }
            tracing::debug!(pid, app = app.name, "followed an exec");
            if let Some(stub) = stub {
                // The stub of the program before may be a zombie child of the new one.
                apart::reap(pid, stub, &[]);
            }
        }
        // Children that were forked and have no process of ours yet: only their memory tells that they are gone.
        for space in self.means.registry.of_app(app.id) {
            let owned = app.members.lock().iter().any(|m| m.space.as_ref().is_some_and(|s| Arc::ptr_eq(s, &space)));
            if !owned && !space.evicting.is_locked() && (space.is_dead() || space.uffd.is_dead()) {
                self.discard(&space);
            }
        }
        let over = app.members.lock().is_empty() && !matches!(app.target, Target::Unit(_));
        if over && app.state() != AppState::Detaching && self.means.registry.of_app(app.id).is_empty() {
            let _changing = self.roster.changing.lock();
            tracing::info!(app = app.name, "the app has ended");
            self.roster.remove(app.id);
            drop(app.take_held());
        }
    }

    /// Forgets a space whose process image is gone; the PID of its stub.
    fn discard(&self, space: &Arc<Space>) -> Option<i32> {
        self.means.workers.unwatch(space);
        self.means.registry.remove(space.id);
        space.release_all(&self.means.around);
        let stub = space.evicting.lock().stub.take()?;
        stub.kill();
        Some(stub.pid())
    }

    /// Sees how an app has grown, and gives stubs to those of its processes that need one.
    fn follow(&self, app: &Arc<App>) {
        // The evictor may be busy with another app: nothing is held longer than it takes to come by here.
        self.means.workers.serve(app.take_held());
        if app.state() == AppState::Detaching {
            return;
        }
        let evicted = restore::evicted_about(&self.means.registry, app);
        app.measure(evicted);
        if !app.is_over() {
            return;
        }
        let _changing = self.roster.changing.lock();
        if app.state() == AppState::Detaching {
            return;
        }
        let wanting: Vec<i32> = {
            let now = Instant::now();
            let members = app.members.lock();
            let whole = app.region().is_none();
            let wants = members.iter().filter(|m| whole && m.space.is_none() && m.resident >= WORTH_A_STUB);
            wants.filter(|m| m.retry_at.is_none_or(|t| t <= now)).map(|m| m.pid).collect()
        };
        for pid in wanting {
            self.means.around.turns.manager.begin("setting up a stub");
            let result = self.means.attach(app, pid);
            let mut members = app.members.lock();
            let Some(member) = members.iter_mut().find(|m| m.pid == pid) else { continue };
            match result {
                Ok((space, pause)) => {
                    tracing::info!(app = app.name, pid, pause = ?pause.0, "process attached");
                    self.means.registry.keeper.keep(Kept::Process(pid), member.pidfd.as_fd());
                    member.space = Some(space);
                    app.running();
                }
                Err(error) => {
                    // Short-lived processes end in the middle of it; only what fails again is somebody's concern.
                    let again = member.retry_at.replace(Instant::now() + RETRY).is_some();
                    drop(members);
                    if again {
                        tracing::warn!(app = app.name, pid, "{error}");
                        app.note(error.to_string());
                    }
                }
            }
        }
        self.replace_dead_stubs(app);
        if !app.is_resting() {
            self.means.registry.wake_evictor();
        }
    }

    /// A stub can be killed (by whoever thinks it is a stray process): the space gets another.
    fn replace_dead_stubs(&self, app: &Arc<App>) {
        for (pid, space) in app.spaces() {
            // Whose stub is being used is looked at later.
            let Some(evicting) = space.evicting.try_lock() else { continue };
            let dead = evicting.stub.as_ref().is_none_or(|s| !s.is_alive());
            drop(evicting);
            if dead && !space.is_dead() && process::Stat::read(pid).is_some_and(|s| !s.is_zombie()) {
                let gone = space.evicting.lock().stub.take();
                if let Some(gone) = gone {
                    tracing::warn!(app = app.name, pid, "the stub was killed; setting up another");
                    gone.remove(pid, &space.uffd);
                }
                if let Err(error) = self.means.refurnish(&space, pid) {
                    tracing::warn!(app = app.name, pid, "{error}");
                }
            }
        }
    }
}
