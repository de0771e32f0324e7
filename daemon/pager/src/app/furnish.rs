//! Stubs for an app's processes, as those grow and as stubs are killed.
//!
//! To give a process a stub, it is stopped for a moment. One that can't be stopped (in D state: the
//! parent of a vfork, or one that waits for a dead file server) is waited for, up to 5 s. So each
//! app that needs stubs has a thread for it, for as long as that takes: other apps, and the
//! manager, wait for none of its processes.

use crate::app::app_registry::AppRegistry;
use crate::app::application::App;
use crate::inject::AttachContext;
use crate::inject::attach::AttachError;
use crate::inject::stub::Stub;
use crate::space::Space;
use annex_host::priority::Precedence;
use annex_host::sentinel::Sentinel;
use annex_shared::api::AppState;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

/// A process smaller than this (8 MiB, in pages) gets no stub of its own: it would cost more than
/// it brings.
pub const WORTH_A_STUB: u64 = 2048;

/// The threads that give stubs, one for an app at most.
#[derive(Default)]
pub struct Furnishers(Vec<JoinHandle<()>>);

impl Furnishers {
    /// Has the app's processes get the stubs that they need, unless somebody is at the app already:
    /// then that is for a later look.
    pub fn look_after(&mut self, app: &Arc<App>, context: &Arc<AttachContext>, app_registry: &Arc<AppRegistry>) {
        self.0.retain(|thread| !thread.is_finished());
        if app.changing.is_locked() || (wanting(app).is_empty() && dead_stubs(context, app).is_empty()) {
            return;
        }
        let body = {
            let (app, context, app_registry) = (app.clone(), context.clone(), app_registry.clone());
            move || furnish(&app, &context, &app_registry)
        };
        match std::thread::Builder::new().name("annex-furnish".into()).spawn(body) {
            Ok(thread) => self.0.push(thread),
            Err(error) => tracing::warn!(app = app.name, "failed to start a thread that gives it stubs: {error}"),
        }
    }

    /// Returns when all have ended.
    pub fn join(&mut self) {
        self.0.drain(..).for_each(|thread| drop(thread.join()));
    }
}

fn furnish(app: &Arc<App>, context: &AttachContext, app_registry: &AppRegistry) {
    let _sentinel = Sentinel("a thread that gives stubs");
    // It holds locks that faults wait for, if briefly.
    Precedence::OfItsGroup.give(0);
    let Some(_changing) = app.changing.try_lock() else { return };
    // It may have been refused or let go of since the manager looked.
    if app.state() == AppState::Detaching || app_registry.find(app.id).is_none() {
        return;
    }
    for pid in wanting(app) {
        give_stub(context, app, pid);
    }
    for (pid, space) in dead_stubs(context, app) {
        replace_stub(context, app, pid, &space);
    }
    if !app.is_resting() {
        context.registry.wake_evictor();
    }
}

/// Its processes that are worth a stub and have none.
fn wanting(app: &App) -> Vec<i32> {
    let now = Instant::now();
    let members = app.members.lock();
    let whole = app.region().is_none();
    let wants = members.iter().filter(|m| whole && m.space.is_none() && m.resident >= WORTH_A_STUB);
    wants.filter(|m| m.retry_at.is_none_or(|t| t <= now)).map(|m| m.pid).collect()
}

/// Its processes whose stub has ended. Whose stub is being used is looked at later.
fn dead_stubs(context: &AttachContext, app: &App) -> Vec<(i32, Arc<Space>)> {
    let is_dead = |space: &Space| {
        let evicting = space.evicting.try_lock();
        evicting.is_some_and(|evicting| !evicting.stub.as_ref().is_some_and(Stub::is_alive)) && !space.is_dead()
    };
    // Who has left, or ended, is looked after by the manager.
    let lives_there = |pid: i32, space: &Space| space.mark().is_none_or(|mark| mark.task_of(pid).is_some());
    let mut spaces = context.registry.of_members(app);
    spaces.retain(|(pid, space)| is_dead(space) && lives_there(*pid, space) && may_retry(app, *pid));
    spaces
}

fn give_stub(context: &AttachContext, app: &Arc<App>, pid: i32) {
    let result = context.attach(app, pid);
    let mut members = app.members.lock();
    let Some(member) = members.iter_mut().find(|m| m.pid == pid) else { return };
    match result {
        Ok((space, pause)) => {
            tracing::info!(app = app.name, pid, pause = ?pause.0, "process attached");
            member.space = Some(space.identity.clone());
            member.succeeded();
            member.keep(&context.registry.keeper);
            app.running();
        }
        Err(error @ AttachError::Privileged { .. }) => {
            tracing::warn!(app = app.name, pid, "it leaves the app: {error}");
            members.retain(|m| m.pid != pid);
        }
        Err(error) => {
            let is_news = member.failed(&error.to_string(), Instant::now());
            drop(members);
            if is_news {
                tracing::warn!(app = app.name, pid, "{error}");
                app.note(error.to_string());
            }
        }
    }
}

/// A stub can be killed (by whoever thinks it is a stray process, or by the kernel): the space gets
/// another. What the old one had moved was settled by the evictor, as after a kill of annexd.
fn replace_stub(context: &AttachContext, app: &Arc<App>, pid: i32, space: &Arc<Space>) {
    let Some(mut evicting) = space.evicting.try_lock() else { return };
    if evicting.stub.as_ref().is_some_and(Stub::is_alive) || space.is_dead() {
        return;
    }
    let dead = evicting.stub.take();
    drop(evicting);
    if let Some(dead) = &dead {
        tracing::warn!(app = app.name, pid, "the stub was killed; setting up another");
        context.registry.unfurnish(space);
        context.clear_away(space, pid, &dead.traces());
    }
    let result = context.refurnish(space, pid);
    let mut members = app.members.lock();
    let Some(member) = members.iter_mut().find(|m| m.pid == pid) else { return };
    let Err(error) = result else { return member.succeeded() };
    let is_news = member.failed(&error.to_string(), Instant::now());
    drop(members);
    if is_news {
        tracing::warn!(app = app.name, pid, "{error}");
    }
    app.note(error.to_string());
}

fn may_retry(app: &App, pid: i32) -> bool {
    let now = Instant::now();
    app.members.lock().iter().any(|m| m.pid == pid && m.retry_at.is_none_or(|at| at <= now))
}
