//! The pager as a whole: its threads, and how an app comes to be and ends.

mod apps;
mod by;
mod cgroups;
mod refusal;
mod rules;
mod under_way;

use crate::app::app_registry::AppRegistry;
use crate::app::auto::governor::Governor;
use crate::app::let_go::LetGo;
use crate::app::manager::{Manager, Motion};
use crate::app::quota::Quotas;
use crate::app::{App, furnish, membership};
use crate::config::{PagerConfig, UsersConfig};
use crate::control::Caller;
use crate::evict::Evictors;
use crate::fault::Workers;
use crate::inject::AttachContext;
use crate::inject::attach::AttachError;
use crate::inject::stub::Pause;
use crate::kernel::process::Stat;
use crate::kernel::uffd::Proof;
use crate::kernel::{host_memory, probe, process};
use crate::recovery::takeover::{PreviousState, PreviousStateError};
use crate::recovery::{Ledger, LedgerError, restore};
use crate::rules::gate::Gate;
use crate::sched::watchdog;
use crate::sched::watchdog::Watchdog;
use crate::space::{Registry, Shared, Space, Watch};
use annex_host::fd_keeper::{FdKeeper, Kept};
use annex_pool::Pool;
use annex_shared::api::{ApiError, AppInfo, ErrorCode, Limit, Local, Target};
use annex_shared::printable::{as_name, is_control, printable};
use refusal::{error, refused};
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;
use under_way::UnderWay;

/// The pager could not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error(transparent)]
    Lane(#[from] annex_pool::LaneError),
    #[error("failed to start the pager: {0}")]
    System(#[from] io::Error),
    #[error("failed to start the pager: {0}")]
    Ledger(#[from] LedgerError),
    #[error("failed to take over from the annexd before: {0}")]
    PreviousState(#[from] PreviousStateError),
}

pub struct Pager {
    context: Arc<AttachContext>,
    app_registry: Arc<AppRegistry>,
    default_local: Local,
    under_way: UnderWay,
    evictors: Arc<Evictors>,
    /// Rules are followed while it is open.
    gate: Arc<Gate>,
    threads: Vec<JoinHandle<()>>,
    /// Dropped first: ends the threads that watch the others and find limits.
    watched: Option<[mpsc::Sender<()>; 2]>,
}

impl Pager {
    /// Starts the pager's threads on a host that [`probe::host`] found fit. `detached`: the file
    /// that tells what was detached by hand.
    pub fn start(
        (config, users): (&PagerConfig, &UsersConfig),
        default_local: Local,
        host: probe::Host,
        pool: Arc<Pool>,
        keeper: Arc<FdKeeper>,
        previous: Option<(PreviousState, u64)>,
        detached: PathBuf,
    ) -> Result<Pager, StartError> {
        let registry = Arc::new(Registry::new(keeper)?);
        let first_id = previous.as_ref().map_or(1, |(previous, _)| previous.next_id());
        let workers: Arc<OnceLock<Weak<Workers>>> = Arc::default();
        let watch = watcher(workers.clone());
        let shared = Arc::new(Shared {
            pool,
            in_flight: Default::default(),
            quotas: Quotas::new(users.clone()),
            registry: registry.clone(),
            watchdog: Watchdog::default(),
            watch,
            ids: AtomicU64::new(first_id),
        });
        let fault_workers = Arc::new(Workers::start(config, &shared, &registry)?);
        let _ = workers.set(Arc::downgrade(&fault_workers));
        let context = Arc::new(AttachContext {
            shared: shared.clone(),
            registry: registry.clone(),
            workers: fault_workers.clone(),
            device: host.device,
            placing: Default::default(),
        });
        let ledger = Ledger::create()?;
        registry.keeper.keep(Kept::Ledger, ledger.fd());
        let app_registry = Arc::new(AppRegistry::new(ledger, LetGo::open(detached))?);
        match previous {
            Some((previous, generation)) => previous.adopt(&context, &app_registry, generation)?,
            None => registry.keeper.complete(1),
        }
        let manager = Manager {
            app_registry: app_registry.clone(),
            context: context.clone(),
            process_scan: Default::default(),
            motion: Motion::default(),
            furnishers: Default::default(),
        };
        let spawn =
            |name: &str, body: Box<dyn FnOnce() + Send>| std::thread::Builder::new().name(name.into()).spawn(body);
        let (watched, ended) = mpsc::channel();
        let evictors = Evictors::start(shared.clone(), registry, fault_workers.clone(), app_registry.clone())?;
        let governor = Governor {
            registry: context.registry.clone(),
            pool: shared.pool.clone(),
            app_registry: app_registry.clone(),
        };
        let (steered, is_over) = mpsc::channel();
        let (workers, evictors_too) = (Arc::downgrade(&fault_workers), evictors.clone());
        let stalled = move || workers.upgrade().and_then(|workers| workers.stalled());
        let look = move || evictors_too.relieve();
        let threads = vec![
            spawn("annex-manager", Box::new(move || manager.run()))?,
            spawn("annex-watch", Box::new(move || watchdog::watch(&shared.watchdog, stalled, &ended, look)))?,
            spawn("annex-limits", Box::new(move || governor.run(&is_over)))?,
        ];
        let under_way = UnderWay::default();
        Ok(Pager {
            context,
            app_registry,
            default_local,
            under_way,
            evictors,
            gate: Arc::default(),
            threads,
            watched: Some([watched, steered]),
        })
    }

    fn evicted(&self, app: &App) -> u64 {
        restore::evicted_about(&self.context.registry, app)
    }

    fn told(&self, app: &App) -> AppInfo {
        app.info(self.evicted(app), || self.context.shared.pool.why_no_room())
    }

    fn unique_name(&self, wanted: Option<&str>, command: &str, pid: i32) -> Result<String, ApiError> {
        // An app whose processes have all ended is about to go.
        let lives = |a: &App| a.target.is_cgroup() || !a.has_ended();
        let taken = |name: &str| self.app_registry.all().iter().any(|a| a.name == name && lives(a));
        let command = as_name(command);
        match wanted {
            Some(name)
                if name.is_empty()
                    || name.contains('/')
                    || name.parse::<u64>().is_ok()
                    || name.contains(is_control) =>
            {
                Err(error(
                    ErrorCode::BadRequest,
                    format!("bad app name '{}'", printable(name)),
                    "a name is not empty, has no '/', no control character and is no number",
                ))
            }
            Some(name) if taken(name) => Err(error(
                ErrorCode::BadRequest,
                format!("there is an app called '{name}' already"),
                "choose another --name",
            )),
            Some(name) => Ok(name.to_owned()),
            // A number would be taken for an id or a PID.
            None if taken(&command) || command.parse::<u64>().is_ok() => Ok(format!("{command}-{pid}")),
            None => Ok(command),
        }
    }

    fn owner_of(&self, pid: i32) -> Option<Arc<App>> {
        self.app_registry.all().into_iter().find(|app| app.members.lock().iter().any(|m| m.pid == pid))
    }

    /// Makes a process the first member of an app that nobody knows yet. Written down before
    /// anything of it can be evicted.
    fn admit(&self, app: &Arc<App>, pid: i32, stat: &Stat) {
        membership::join(app, pid, stat);
        app.members.lock().iter_mut().for_each(|member| member.keep(&self.context.registry.keeper));
        self.app_registry.add(app.clone());
    }

    /// Those of a process's descendants that are worth a stub now: all of them, or none of the
    /// whole tree.
    fn attach_descendants(&self, app: &Arc<App>, root: i32) -> Result<(), ApiError> {
        self.attach_large(app, membership::descendants(root))
    }

    /// Those of these processes that are worth a stub now: all of them, or nothing of the app.
    fn attach_large(&self, app: &Arc<App>, processes: Vec<(i32, Stat)>) -> Result<(), ApiError> {
        for (pid, stat) in processes {
            let has_space = |m: &crate::app::Member| m.pid == pid && m.space.is_some();
            let admitting = self.app_registry.admitting.lock();
            let is_large = process::resident_pages(pid).is_some_and(|pages| pages >= furnish::WORTH_A_STUB);
            let is_ours =
                app.members.lock().iter().any(has_space) || self.owner_of(pid).is_some_and(|o| o.id != app.id);
            if !is_large || is_ours || membership::is_exempt(pid, &stat) || self.context.lives_in_a_space(pid) {
                continue;
            }
            if !app.has_member(pid, &stat) && !membership::join(app, pid, &stat) {
                continue;
            }
            drop(admitting);
            let Err(error) = self.context.attach(app, pid).map(|(space, pause)| self.settle(app, pid, space, pause))
            else {
                continue;
            };
            // One that has ended meanwhile is no reason.
            if Stat::read(pid).is_none_or(|now| now.started != stat.started) || process::living(pid).is_none() {
                continue;
            }
            app.set_detaching(true);
            if let Err(undone) = restore::restore(&self.context, app, &mut |_| ()) {
                app.set_detaching(false);
                tracing::error!(app = app.name, "a half attached app could not be let go of, and stays: {undone}");
            } else {
                self.finish(app);
            }
            return Err(refused(error));
        }
        Ok(())
    }

    fn settle(&self, app: &App, pid: i32, space: Arc<Space>, pause: Pause) {
        tracing::info!(app = app.name, pid, pause = ?pause.0, "process attached");
        if let Some(member) = app.members.lock().iter_mut().find(|m| m.pid == pid) {
            member.space = Some(space.identity.clone());
            member.keep(&self.context.registry.keeper);
        }
        app.running();
    }

    /// Gives an app that is written down its first space.
    fn furnish(
        &self,
        app: &Arc<App>,
        pid: i32,
        attach: impl FnOnce(&Arc<App>) -> Result<(Arc<Space>, Pause), AttachError>,
    ) -> Result<(), ApiError> {
        let (space, pause) = attach(app).map_err(|error| {
            self.forget(app);
            refused(error)
        })?;
        self.settle(app, pid, space, pause);
        Ok(())
    }

    fn new_app(&self, name: String, uid: u32, target: Target, local: Option<Local>) -> App {
        let id = u64::from(rand::random::<u32>()) + 1;
        match local.unwrap_or(self.default_local) {
            Local::Fixed(limit) => App::new(id, name, uid, target, limit),
            // All that the host has, until something is known.
            Local::Auto(stall) => {
                App::new(id, name, uid, target, Limit::Bytes(host_memory::total())).with_auto(Some(stall))
            }
        }
    }

    /// Whether programs of this caller are paged at all.
    fn may_have_programs(&self, caller: Caller) -> Result<(), ApiError> {
        if !caller.confined || self.context.shared.quotas.config.programs {
            return Ok(());
        }
        Err(error(
            ErrorCode::Forbidden,
            "no programs of ordinary users are paged on this host (programs = false in [users])".into(),
            "ask as root or as a member of group annex; or use a region (annex-client)",
        ))
    }

    /// Whether this caller may have one more app.
    fn may_have_another(&self, caller: Caller) -> Result<(), ApiError> {
        let most = self.context.shared.quotas.config.apps;
        let is_theirs = |app: &&Arc<App>| app.is_of_ordinary_user() && app.uid == caller.uid;
        let apps = self.app_registry.all().iter().filter(is_theirs).count();
        if !caller.confined || apps < most as usize {
            return Ok(());
        }
        Err(error(
            ErrorCode::Forbidden,
            format!("user {} has {apps} apps, as many as a user may have (apps = {most} in [users])", caller.uid),
            "detach one (annex apps lists them), or ask as root or as a member of group annex",
        ))
    }

    /// Whether nothing of the process is managed yet.
    fn is_free(&self, pid: i32) -> Result<(), ApiError> {
        let Some(owner) = self.owner_of(pid) else { return Ok(()) };
        let how =
            if owner.region().is_some() { "has a region already, which is" } else { "is managed already, as part of" };
        Err(error(
            ErrorCode::AlreadyAttached,
            format!("process {pid} {how} app '{}'", owner.name),
            &format!("use 'annex limit {}' to change its limit, or 'annex detach {}' first", owner.name, owner.name),
        ))
    }

    /// Lets go of an app whose pages are all back (or gone with it).
    fn finish(&self, app: &App) {
        // The context of a space ends with its last user: nothing may go on holding one.
        self.context.workers.serve(self.context.registry.take_delayed(app));
        app.members.lock().iter_mut().for_each(|member| member.space = None);
        // A fork that is read on the way brings a child, whose pages come back first.
        loop {
            let spaces = self.context.registry.of_app(app.id);
            if spaces.is_empty() {
                break;
            }
            let stay = spaces.iter().filter(|space| !restore::let_go(&self.context, space)).count();
            if stay > 0
                && let Err(error) = restore::restore(&self.context, app, &mut |_| ())
            {
                tracing::error!(app = app.name, "a space has pages in the pool and stays until they are back: {error}");
                std::thread::sleep(Duration::from_secs(1));
            }
        }
        self.forget(app);
    }

    /// Strikes an app off.
    fn forget(&self, app: &App) {
        self.app_registry.remove(app.id);
        app.members.lock().drain(..).for_each(|mut member| member.let_go(&self.context.registry.keeper));
    }
}

/// A fork's child is watched by whoever watches its parent.
fn watcher(workers: Arc<OnceLock<Weak<Workers>>>) -> Watch {
    Box::new(move |space| {
        let watched = workers.get().and_then(Weak::upgrade).map(|w| w.watch(space));
        if !matches!(watched, Some(Ok(()))) {
            space.app.stop("a forked child's userfaultfd could not be watched");
        }
    })
}

impl Drop for Pager {
    fn drop(&mut self) {
        self.app_registry.stop.store(true, Ordering::Release);
        self.app_registry.ring();
        self.context.registry.wake_evictor();
        self.watched = None;
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
        self.evictors.join();
        // Who ended since the manager looked last: the keeper must not wait for them.
        for space in self.context.registry.all() {
            if let Some(proof) = Proof::of_end(&space.uffd) {
                self.context.registry.remove(&space, proof);
            }
        }
    }
}
