//! Two threads that look after the apps: the *manager* follows processes as they come, grow, exec
//! and go, and sees that they get stubs when they are needed
//! ([`furnish`](crate::app::furnish)); the *evictor* ([`evict`](crate::evict)) keeps every app
//! below its limit.
//!
//! Neither is ever waited for by a fault, and the manager waits for no program.

use crate::app::app_registry::AppRegistry;
use crate::app::application::{App, Member};
use crate::app::furnish::Furnishers;
use crate::app::membership;
use crate::app::membership::{Beside, ProcessScan};
use crate::app::sightings;
use crate::events::bequeath;
use crate::inject::{AttachContext, stub, tracer_process};
use crate::kernel::Mark;
use crate::kernel::process::Stat;
use crate::kernel::uffd::Proof;
use crate::recovery::restore;
use crate::space::Space;
use annex_host::event;
use annex_host::priority::Precedence;
use annex_host::sentinel::Sentinel;
use annex_shared::api::AppState;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::collections::HashSet;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// How often processes are looked at: often while an app is near its limit and its memory changes,
/// less often when it has not changed for a while, seldom when no app is near its limit.
const BUSY: Duration = Duration::from_millis(20);
const CALM: Duration = Duration::from_millis(60);
const QUIET: Duration = Duration::from_millis(100);
/// Without a change for so long an app is calm.
const UNTIL_CALM: Duration = Duration::from_secs(1);

/// Whether all known processes of an app have ended.
fn has_nobody(app: &App) -> bool {
    app.members.lock().is_empty()
}

pub struct Manager {
    pub app_registry: Arc<AppRegistry>,
    pub context: Arc<AttachContext>,
    pub process_scan: ProcessScan,
    pub motion: Motion,
    pub furnishers: Furnishers,
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
        let shared = self.context.shared.clone();
        let watched = &shared.watchdog.manager;
        watched.enlist();
        while !self.app_registry.stop.load(Ordering::Acquire) {
            let apps = self.app_registry.all();
            watched.end();
            self.sleep(&apps);
            watched.begin("looking for processes that have ended");
            let apps = self.app_registry.all();
            for app in &apps {
                self.bury(app);
            }
            watched.begin("looking for new processes");
            self.look_for_new(&stubs_of(&self.context));
            let apps = self.app_registry.all();
            apps.iter().filter(|app| app.is_stopped()).for_each(|app| {
                let spaces = self.context.registry.of_app(app.id);
                app.kill_all(&spaces.iter().map(|space| space.identity.clone()).collect::<Vec<_>>());
            });
            apps.iter().for_each(|app| self.retire(app));
            // Before any of them gets a stub: what is evicted must have an owner that is known.
            self.app_registry.write_down();
            watched.begin("following how its apps grow");
            for app in &apps {
                self.follow(app);
            }
        }
        self.furnishers.join();
    }

    /// Nobody else makes a process a member of another app meanwhile.
    fn look_for_new(&mut self, stubs: &HashSet<i32>) {
        let _admitting = self.app_registry.admitting.lock();
        let apps = self.app_registry.all();
        // A program that has put itself into the background has ended, and goes on as another
        // process. A cgroup tells by itself when one comes.
        let is_left = apps.iter().any(|app| has_nobody(app) && !app.target.is_cgroup());
        let AppRegistry { sightings, let_go, .. } = &*self.app_registry;
        self.process_scan.update(&apps, Beside { stubs, sightings, let_go }, is_left);
    }

    /// Until a process ends, somebody rings, or it is time to look.
    fn sleep(&mut self, apps: &[Arc<App>]) {
        let near = apps.iter().any(|a| a.state() != AppState::Detaching && a.is_near());
        let is_calm = self.motion.is_calm(apps.iter().map(|a| a.estimate()).sum());
        let pause = match (apps.is_empty(), near) {
            (true, _) if !self.app_registry.sightings.is_wanted() => PollTimeout::NONE,
            (true, _) => PollTimeout::from(sightings::OFTEN.as_millis() as u16),
            (_, false) => PollTimeout::from(QUIET.as_millis() as u16),
            (_, true) => PollTimeout::from(if is_calm { CALM } else { BUSY }.as_millis() as u16),
        };
        // Who has ended of an app that somebody is at is buried later: that must not wake this
        // thread again and again.
        let copies: Vec<_> = apps
            .iter()
            .filter(|app| !app.changing.is_locked())
            .flat_map(|a| a.members.lock().iter().filter_map(|m| m.pidfd.try_clone().ok()).collect::<Vec<_>>())
            .collect();
        let mut fds: Vec<PollFd<'_>> = copies.iter().map(|fd| PollFd::new(fd.as_fd(), PollFlags::POLLIN)).collect();
        fds.push(PollFd::new(self.app_registry.bell.as_fd(), PollFlags::POLLIN));
        let _ = poll(&mut fds, pause);
        let _ = self.app_registry.bell.read();
    }

    /// Takes out processes that have ended, and lets go of memory of which the kernel says that
    /// nobody has it any more.
    fn bury(&self, app: &Arc<App>) {
        // Whoever is at it may wait for one of its programs: other apps don't.
        let Some(_changing) = app.changing.try_lock() else { return };
        let keeper = &self.context.registry.keeper;
        app.members.lock().retain_mut(|member| {
            // Neither this thread nor other apps wait for a batch that is under way: what it works
            // on is buried later.
            let space = member.space.as_ref().and_then(|space| self.context.registry.space(space.id));
            if space.as_ref().is_some_and(|space| space.evicting.is_locked()) {
                return true;
            }
            if member.has_ended() {
                member.let_go(keeper);
                return false;
            }
            let is_left = |space: &Arc<Space>| space.uffd.is_dead() || space.was_left_by(member.pid);
            // One that nobody knows any more had ended before it became the member's.
            if member.space.is_some() && space.as_ref().is_none_or(is_left) {
                tracing::debug!(pid = member.pid, app = app.name, "followed an exec");
                member.space = None;
                if app.region().is_some() {
                    // The region is gone; the program that has come is nobody's.
                    member.let_go(keeper);
                    return false;
                }
            }
            member.keep(keeper);
            true
        });
        for space in self.context.registry.of_app(app.id) {
            let is_its = |member: &Member| member.space.as_ref().is_some_and(|s| Arc::ptr_eq(s, &space.identity));
            let is_owned = app.members.lock().iter().any(is_its);
            if is_owned || space.evicting.is_locked() {
                continue;
            }
            match Proof::of_end(&space.uffd) {
                Some(proof) => self.discard(&space, proof),
                // Whoever lets go of an app takes the spaces from its members himself.
                None if app.state() == AppState::Detaching => {}
                None => self.find_heir(app, &space),
            }
        }
    }

    /// The process that a space was known by has ended or left it. Whoever lives there besides
    /// takes its place; if that is the stub alone, it goes too, and the kernel says that the
    /// address space has ended. A fork's child that nobody has looked for yet has neither.
    fn find_heir(&self, app: &Arc<App>, space: &Arc<Space>) {
        let Some(mark) = space.mark() else { return };
        let there = mark.processes(None);
        let Some((pid, stat)) = there.iter().find(|(_, stat)| stat.comm != stub::NAME).cloned() else {
            // Nobody can come but by a stub, and those make nobody.
            for (pid, _) in &there {
                stub::end(*pid, mark);
            }
            if there.is_empty() {
                end_unmapped(space, mark);
            }
            return;
        };
        if !app.has_member(pid, &stat) && !membership::join(app, pid, &stat) {
            return;
        }
        space.move_in(pid);
        if let Some(member) = app.members.lock().iter_mut().find(|member| member.pid == pid) {
            tracing::info!(app = app.name, pid, "the memory of a process that has ended lives on in another");
            member.space = Some(space.identity.clone());
            member.keep(&self.context.registry.keeper);
        }
    }

    /// Drops an app of which nothing is left.
    fn retire(&self, app: &Arc<App>) {
        let is_over = has_nobody(app) && self.process_scan.is_over(app);
        if is_over && app.state() != AppState::Detaching && self.context.registry.of_app(app.id).is_empty() {
            let Some(_changing) = app.changing.try_lock() else { return };
            if self.app_registry.find(app.id).is_none() {
                return;
            }
            event!(INFO, AppEnded of &app.name, uid app.uid, "the app has ended");
            self.app_registry.remove(app.id);
            drop(app.take_delayed());
        }
    }

    /// Forgets a space whose address space has ended.
    fn discard(&self, space: &Arc<Space>, proof: Proof) {
        if !bequeath(space, &self.context.shared) {
            // Its parent is busy: at the next look.
            return;
        }
        self.context.workers.unwatch(space);
        self.context.registry.remove(space, proof);
        space.release_all(&self.context.shared);
        // What is left of its stub is a zombie, which whoever adopted it may not collect.
        let stub = space.evicting.lock().stub.take().map(|stub| stub.pid());
        if let Some(stub) = stub.filter(|stub| Stat::read(*stub).is_some_and(|stat| stat.parent > 1)) {
            tracer_process::reap(0, stub, &[]);
        }
    }

    /// Sees how an app has grown, and gives stubs to those of its processes that need one.
    fn follow(&mut self, app: &Arc<App>) {
        // The evictor may be busy with another app: nothing is delayed longer than it takes to
        // come by here.
        self.context.workers.serve(self.context.registry.take_delayed(app));
        if app.state() == AppState::Detaching {
            return;
        }
        let evicted = restore::evicted_about(&self.context.registry, app);
        app.measure(evicted);
        if !app.is_above_watermark() {
            return;
        }
        self.furnishers.look_after(app, &self.context, &self.app_registry);
        if !app.is_resting() {
            self.context.registry.wake_evictor();
        }
    }
}

fn stubs_of(context: &AttachContext) -> HashSet<i32> {
    context.registry.all().iter().filter_map(|space| space.stub_pid()).collect()
}

/// A program that unmaps all that it has, and ends by that, unmaps what tells its stub from others
/// too. The stub then keeps an address space that nobody lives in.
fn end_unmapped(space: &Space, mark: Mark) {
    let Some(evicting) = space.evicting.try_lock() else { return };
    if let Some(stub) = evicting.stub.as_ref().filter(|stub| mark.is_in(stub.pid()) != Some(true)) {
        stub.kill();
    }
}
