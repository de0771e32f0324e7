//! The pager: unmodified programs whose cold memory lives in the pool.
//!
//! # The way of a page
//! - *Out*: an [`app`] grows over its limit → the evictor ([`evictors`], [`evict`]) lets its clock
//!   hand ([`policy`]) choose cold pages of a [`space`] → the [`stub`] in the app's address space
//!   moves them into its staging area → they are written to the pool → their records in the page
//!   [`table`] name their slots.
//! - *In*: a thread of the app touches one → a userfaultfd message ([`uffd`]) → a fault [`worker`]
//!   → the pool → the page is installed, with neighbours if the access is sequential ([`stream`]).
//!
//! # Threads
//! | thread | number | does |
//! | --- | --- | --- |
//! | fault worker | one per CPU, at most 4 unless configured | faults and changes of every space |
//! | evictor | 1; one more, up to 8, for each that a frozen program keeps | batches, one space at a time |
//! | manager | 1 | processes: new, grown, replaced, ended |
//! | tracer | one per injection, for its duration | ptrace, which belongs to threads; stays with stubs under seccomp |
//! | watch | 1 | says which of the others stands still ([`turns`]) |
//! | control | tokio's blocking threads | attach, detach, limits |
//!
//! What each may touch is said in [`space`]: one lock per address space orders everything that
//! decides where a page is.
//!
//! # What annex has in an app
//! Nothing but the [`stub`]'s three mappings and userfaultfd registrations of the mappings that
//! pages were evicted from. Locked, shared, file-backed, special and small mappings are left alone
//! ([`region`]).

mod affinity;
mod ambiguous_unmap;
mod app;
mod attach;
mod busy_poll;
mod changes;
mod clock;
mod contention;
pub mod control;
mod cpu_affinity;
mod evict;
mod eviction_blocked;
mod evictors;
mod fault;
mod fetch;
mod fork_exclusions;
mod guard_regions;
mod hold;
mod inflight;
mod ledger;
mod lookup;
mod manager;
mod membership;
mod mm;
mod move_batch;
mod policy;
mod prefetch;
pub mod probe;
mod process;
mod region;
mod registration;
mod registry;
mod restore;
mod ring;
mod rollback;
mod room;
mod scan;
mod space;
mod stub;
mod table;
mod takeover;
mod thread_exit;
mod tracee;
mod tracer_process;
mod uffd;
mod waiting;
mod watchdog;
mod window;
mod worker;
mod young;

use annex_host::fd_keeper::{FdKeeper, Kept};
use annex_pool::Pool;
use annex_shared::api::{
    ApiError, AppInfo, AttachRequest, ErrorCode, LONGEST_REGION, Limit, Progress, RegionRequest, SHORTEST_REGION,
    Target, WorkersInfo, format_bytes,
};
use annex_shared::page::PAGE_SIZE;
use annex_shared::printable::{as_name, is_control, printable};
use app::App;
use attach::{AttachContext, AttachError};
pub use control::{Apps, Caller};
use evictors::Evictors;
use ledger::{Ledger, LedgerError};
use manager::{AppRegistry, Manager, Motion};
use process::Stat;
use registry::Registry;
use restore::RestoreError;
use serde::{Deserialize, Serialize};
use space::{Shared, Space, Watch};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;
use stub::Pause;
use uffd::Proof;
use watchdog::Watchdog;
use worker::Workers;

pub use takeover::{PreviousState, PreviousStateError};
pub use waiting::Wait;

/// `[pager]` in annexd's configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PagerConfig {
    /// Fault workers; 0 = one per CPU, four at most.
    pub fault_workers: u32,
    /// How workers wait for faults: `auto` (what is measured at start to be better here), `block`
    /// or `spin`.
    pub wait: Wait,
    /// Microseconds for which a worker polls for a page that it reads, before it sleeps; 0 = none,
    /// and no rings of regions either.
    pub busy_poll_us: u32,
    /// It polls only while reads usually come back within `busy_poll_us`.
    pub adaptive_polling: bool,
}

impl Default for PagerConfig {
    fn default() -> Self {
        PagerConfig { fault_workers: 0, wait: Wait::default(), busy_poll_us: 20, adaptive_polling: true }
    }
}

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
    default_limit: Limit,
    evictors: Arc<Evictors>,
    threads: Vec<JoinHandle<()>>,
    /// Dropped first: ends the thread that watches the others.
    watched: Option<mpsc::Sender<()>>,
}

impl Pager {
    /// Starts the pager's threads on a host that [`probe::host`] found fit.
    pub fn start(
        config: &PagerConfig,
        default_limit: Limit,
        host: probe::Host,
        pool: Arc<Pool>,
        keeper: Arc<FdKeeper>,
        previous: Option<(PreviousState, u64)>,
    ) -> Result<Pager, StartError> {
        let registry = Arc::new(Registry::new(keeper)?);
        let first_id = previous.as_ref().map_or(1, |(previous, _)| previous.next_id());
        let workers: Arc<OnceLock<Weak<Workers>>> = Arc::default();
        let watch = watcher(workers.clone());
        let shared = Arc::new(Shared {
            pool,
            in_flight: Default::default(),
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
        });
        let ledger = Ledger::create()?;
        registry.keeper.keep(Kept::Ledger, ledger.fd());
        let app_registry = Arc::new(AppRegistry::new(ledger)?);
        match previous {
            Some((previous, generation)) => previous.adopt(&context, &app_registry, generation)?,
            None => registry.keeper.complete(1),
        }
        let manager = Manager {
            app_registry: app_registry.clone(),
            context: context.clone(),
            process_scan: Default::default(),
            motion: Motion::default(),
        };
        let spawn =
            |name: &str, body: Box<dyn FnOnce() + Send>| std::thread::Builder::new().name(name.into()).spawn(body);
        let (watched, over) = mpsc::channel();
        let evictors = Evictors::start(shared.clone(), registry, fault_workers.clone(), app_registry.clone())?;
        let (workers, evictors_too) = (Arc::downgrade(&fault_workers), evictors.clone());
        let look = move || evictors_too.relieve();
        let threads = vec![
            spawn("annex-manager", Box::new(move || manager.run()))?,
            spawn("annex-watch", Box::new(move || watchdog::watch(&shared.watchdog, &workers, &over, look)))?,
        ];
        Ok(Pager { context, app_registry, default_limit, evictors, threads, watched: Some(watched) })
    }

    fn evicted(&self, app: &App) -> u64 {
        restore::evicted_about(&self.context.registry, app)
    }

    fn told(&self, app: &App) -> AppInfo {
        app.info(self.evicted(app), || self.context.shared.pool.why_no_room())
    }

    fn unique_name(&self, wanted: Option<&str>, command: &str, pid: i32) -> Result<String, ApiError> {
        // An app whose processes have all ended is about to go.
        let lives = |a: &App| matches!(a.target, Target::Unit(_)) || !a.has_ended();
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

    fn attach_process(&self, app: Arc<App>, pid: i32, now: bool) -> Result<Arc<App>, ApiError> {
        let stat = attach::check(pid).map_err(refused)?;
        membership::join(&app, pid, &stat);
        app.members.lock().iter_mut().for_each(|member| member.keep(&self.context.registry.keeper));
        // Written down before anything of it can be evicted.
        self.app_registry.add(app.clone());
        if now {
            self.furnish(&app, pid, |app| self.context.attach(app, pid))?;
            self.attach_descendants(&app, pid)?;
        }
        Ok(app)
    }

    /// Those of a process's descendants that are worth a stub now: all of them, or none of the
    /// whole tree.
    fn attach_descendants(&self, app: &Arc<App>, root: i32) -> Result<(), ApiError> {
        for (pid, stat) in membership::descendants(root) {
            let has_space = |m: &app::Member| m.pid == pid && m.space.is_some();
            let is_large = process::resident_pages(pid).is_some_and(|pages| pages >= manager::WORTH_A_STUB);
            let is_ours =
                app.members.lock().iter().any(has_space) || self.owner_of(pid).is_some_and(|o| o.id != app.id);
            if !is_large || is_ours || membership::is_exempt(pid, &stat) || self.context.lives_in_a_space(pid) {
                continue;
            }
            if !app.has_member(pid, &stat) && !membership::join(app, pid, &stat) {
                continue;
            }
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
            member.space = Some(space);
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

    fn new_app(&self, name: String, uid: u32, target: Target, local: Option<Limit>) -> Arc<App> {
        let id = u64::from(rand::random::<u32>()) + 1;
        Arc::new(App::new(id, name, uid, target, local.unwrap_or(self.default_limit)))
    }

    fn is_usable(&self) -> Result<(), ApiError> {
        self.context.shared.pool.is_usable().map_err(|e| {
            error(
                ErrorCode::NoDonors,
                e.to_string(),
                "start annex-agent on the donors and check their addresses in annexd's configuration",
            )
        })
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
        self.context.workers.serve(app.take_held());
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

impl Apps for Pager {
    fn attach(&self, request: &AttachRequest, caller: Caller) -> Result<AppInfo, ApiError> {
        self.is_usable()?;
        let _changing = self.app_registry.changing.lock();
        let new = |name, uid| self.new_app(name, uid, request.target.clone(), request.local);
        let app = match &request.target {
            Target::Pid(pid) | Target::Launch(pid) => {
                let stat = attach::check(*pid).map_err(refused)?;
                self.is_free(*pid)?;
                // The process of whom the caller was found to be allowed to ask may have become
                // another program since.
                let owner = process::identity(*pid).ok().and_then(|identity| identity.owner());
                if caller.confined && owner != Some(caller.uid) {
                    return Err(refused(AttachError::Privileged { pid: *pid, uid: caller.uid }));
                }
                let uid = owner.unwrap_or(0);
                let program = request.program.as_deref().unwrap_or(&stat.comm);
                let name = self.unique_name(request.name.as_deref(), program, *pid)?;
                self.attach_process(new(name, uid), *pid, matches!(request.target, Target::Pid(_)))?
            }
            Target::Unit(unit) => {
                let found = membership::cgroup_of(unit).filter(|c| !membership::members_of(c).is_empty());
                let cgroup = found.ok_or_else(|| {
                    error(
                        ErrorCode::NotFound,
                        format!("unit {unit} has no running process"),
                        "name a running unit as systemctl shows it, with its suffix (X.service)",
                    )
                })?;
                let pids = membership::members_of(&cgroup);
                if let Some(owner) = pids.iter().find_map(|pid| self.owner_of(*pid)) {
                    return Err(error(
                        ErrorCode::AlreadyAttached,
                        format!("processes of unit {unit} are managed already, as app '{}'", owner.name),
                        &format!("run 'annex detach {}' first", owner.name),
                    ));
                }
                let app = new(self.unique_name(request.name.as_deref(), unit, pids[0])?, caller.uid);
                for pid in pids {
                    if let Some(stat) = Stat::read(pid).filter(|stat| !membership::is_exempt(pid, stat)) {
                        membership::join(&app, pid, &stat);
                    }
                }
                self.app_registry.add(app.clone());
                app
            }
            // Only its process itself can have that.
            Target::Region { .. } => {
                return Err(error(
                    ErrorCode::BadRequest,
                    "a region of a process can't be attached".into(),
                    "the process itself opens it, with annex-client",
                ));
            }
        };
        Ok(self.told(&app))
    }

    fn open_region(&self, request: &RegionRequest, caller: Caller) -> Result<AppInfo, ApiError> {
        self.is_usable()?;
        let RegionRequest { address, length, ring, bell, .. } = *request;
        let page = PAGE_SIZE as u64;
        let fits = (SHORTEST_REGION..=LONGEST_REGION).contains(&length)
            && (address | length).is_multiple_of(page)
            && address.checked_add(length).is_some_and(|end| end < takeover::TASK_SIZE);
        if !fits {
            return Err(error(
                ErrorCode::BadRequest,
                format!("{length} bytes from {address:#x} on can't be a region"),
                &format!(
                    "a region has whole pages: {} at least and {} at most",
                    format_bytes(SHORTEST_REGION),
                    format_bytes(LONGEST_REGION)
                ),
            ));
        }
        let _changing = self.app_registry.changing.lock();
        let pid = caller.pid;
        let stat = attach::check(pid).map_err(refused)?;
        self.is_free(pid)?;
        let name = self.unique_name(request.name.as_deref(), &stat.comm, pid)?;
        let app = self.new_app(name, caller.uid, Target::Region { pid, address, length }, request.local);
        let range = (address, address + length);
        membership::join(&app, pid, &stat);
        self.app_registry.add(app.clone());
        self.furnish(&app, pid, |app| self.context.attach_region(app, pid, range, [ring, bell]))?;
        Ok(self.told(&app))
    }

    fn detach(&self, id: u64, progress: &mut dyn FnMut(Progress)) -> Result<(), ApiError> {
        let app = self.app_registry.find(id).ok_or_else(|| no_app(id))?;
        {
            let _changing = self.app_registry.changing.lock();
            app.set_detaching(true);
        }
        let result = restore::restore(&self.context, &app, progress);
        match result {
            Ok(()) => {
                self.finish(&app);
                Ok(())
            }
            Err(RestoreError::Lost { lost }) => {
                self.finish(&app);
                let lost = RestoreError::Lost { lost }.to_string();
                Err(error(
                    ErrorCode::Internal,
                    format!("app '{}' was let go, but {lost}", app.name),
                    "end it before it touches one of them; annexd's log says which donor went, and when",
                ))
            }
            Err(e) => {
                app.set_detaching(false);
                let (code, remedy) = match &e {
                    RestoreError::NoRoom(room) => (ErrorCode::NoMemory, room.remedy()),
                    _ => (ErrorCode::Internal, "resume its processes if they are stopped, and try again".into()),
                };
                Err(error(
                    code,
                    format!("failed to detach app '{}': {e}", app.name),
                    &format!("the app goes on as before; {remedy}"),
                ))
            }
        }
    }

    fn set_limit(&self, id: u64, limit: Limit) -> Result<AppInfo, ApiError> {
        let app = self.app_registry.find(id).ok_or_else(|| no_app(id))?;
        app.set_limit(limit);
        self.app_registry.write_down();
        self.app_registry.ring();
        Ok(self.told(&app))
    }

    fn apps(&self) -> Vec<AppInfo> {
        self.app_registry.all().iter().map(|app| self.told(app)).collect()
    }

    fn find(&self, name: &str) -> Option<AppInfo> {
        let apps = self.app_registry.all();
        let number = name.parse::<u64>().ok();
        let by_name = || apps.iter().find(|a| a.name == name);
        let by_pid = |n: u64| apps.iter().find(|a| a.members.lock().iter().any(|m| m.pid as u64 == n));
        let by_id = |n: u64| apps.iter().find(|a| a.id == n);
        let app = by_name().or_else(|| by_pid(number?)).or_else(|| by_id(number?))?;
        Some(self.told(app))
    }

    fn workers(&self) -> WorkersInfo {
        WorkersInfo {
            fault_workers: self.context.workers.len() as u32,
            wait: self.context.workers.waiting.to_string(),
            evictors: self.evictors.len() as u32,
        }
    }

    fn stalled(&self) -> Option<String> {
        self.context.workers.stalled()
    }

    fn overhead_bytes(&self) -> u64 {
        self.context.registry.all().iter().map(|space| space.overhead_about()).sum()
    }

    fn detach_all(&self, progress: &mut dyn FnMut(Progress)) -> Result<(), ApiError> {
        let apps = self.app_registry.all();
        let pages: u64 = apps.iter().map(|app| restore::evicted(&self.context, app)).sum();
        restore::check_room(&self.context, apps.iter().map(Arc::as_ref)).map_err(|e| {
            error(
                ErrorCode::NoMemory,
                format!(
                    "annexd can't stop: {} of program memory are in the pool, and {e}",
                    format_bytes(pages * PAGE_SIZE as u64)
                ),
                &format!("{}; or end programs that annex manages (annex apps), then stop annexd again", e.remedy()),
            )
        })?;
        for app in apps {
            match self.detach(app.id, progress) {
                // It has ended by itself meanwhile.
                Err(error) if error.kind == ErrorCode::NotFound => {}
                detached => detached?,
            }
        }
        Ok(())
    }
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

fn error(kind: ErrorCode, message: String, remedy: &str) -> ApiError {
    ApiError { kind, message, remedy: remedy.to_owned() }
}

fn no_app(id: u64) -> ApiError {
    error(ErrorCode::NotFound, format!("there is no app {id}"), "'annex apps' lists them")
}

fn refused(e: AttachError) -> ApiError {
    let (kind, remedy) = match &e {
        AttachError::NoProcess(_) => (ErrorCode::NotFound, "check the PID with ps"),
        AttachError::NoMemory(_) => (ErrorCode::Unsuitable, "attach a running program"),
        AttachError::Shared { .. } => (ErrorCode::AlreadyAttached, "'annex apps' lists what is managed"),
        AttachError::Exempt { .. } => (ErrorCode::Unsuitable, "attach another process"),
        AttachError::Traced { .. } => (ErrorCode::Unsuitable, "end the debugger or strace, then attach again"),
        AttachError::Privileged { .. } => (ErrorCode::Forbidden, "ask as root or as a member of group annex"),
        AttachError::ThirtyTwoBit(_) => (ErrorCode::Unsuitable, "only 64-bit programs can be paged"),
        AttachError::Foreign { .. } => (ErrorCode::Unsuitable, "end the other user of userfaultfd"),
        AttachError::NoRegion { .. } | AttachError::Waiters { .. } => {
            (ErrorCode::BadRequest, "use an annex-client library of annexd's version")
        }
        AttachError::Stub { .. } | AttachError::System { .. } => {
            (ErrorCode::Internal, "the program is unharmed; see annexd's log")
        }
    };
    error(kind, e.to_string(), remedy)
}
