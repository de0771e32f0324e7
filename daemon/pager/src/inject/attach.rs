//! Getting a stub into a process: whether it may be, and which userfaultfd belongs to it.

use crate::app::{App, membership};
use crate::inject::context::AttachContext;
use crate::inject::stub::{Pause, STAGING, Seed, Stub, StubError};
use crate::inject::tracer_process;
use crate::kernel::process::Stat;
use crate::kernel::uffd::{Probe, Uffd, feature};
use crate::kernel::{Lookup, Mm, Pagemap, Waiters, WaitersError, process};
use crate::recovery::restore;
use crate::space::{Space, SpaceId, StubTraces, Table, region};
use annex_host::failpoint::failpoint;
use annex_shared::page::PAGE_SIZE;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// Why a process can't be managed.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    #[error("there is no process {0}")]
    NoProcess(i32),
    #[error("process {0} is a kernel thread or a zombie: it has no memory of its own")]
    NoMemory(i32),
    #[error(
        "process {pid} ({name}) is never paged: it is the host's first process, a part of annex, or annexd descends from it"
    )]
    Exempt { pid: i32, name: String },
    #[error("process {pid} shares its memory with another one that is managed already")]
    Shared { pid: i32 },
    #[error("process {pid} is traced by process {tracer} already, and only one can trace it")]
    Traced { pid: i32, tracer: i32 },
    #[error("process {pid} has rights that user {uid} has not, whose app this is (a set-user-ID program?)")]
    Privileged { pid: i32, uid: u32 },
    #[error("process {0} runs a 32-bit program")]
    ThirtyTwoBit(i32),
    #[error("process {pid} can't be prepared: {source}")]
    Stub { pid: i32, source: StubError },
    #[error("process {pid} can't be prepared: failed to {what}: {source}")]
    System { pid: i32, what: &'static str, source: io::Error },
    #[error("process {pid} uses userfaultfd itself (or another tool uses it there): a mapping can belong to one only")]
    Foreign { pid: i32 },
    #[error("process {pid} can't have its faults served there: {source}")]
    Waiters { pid: i32, source: WaitersError },
    #[error("process {pid} has no private anonymous writable mapping from {start:#x} to {end:#x}")]
    NoRegion { pid: i32, start: u64, end: u64 },
}

/// A program that starts may become another one several times over (wrappers that exec): it is
/// tried again for this long.
const BECOMING: Duration = Duration::from_secs(5);

/// How long a new stub may take to unmap what another has left.
const UNMAPPING: Duration = Duration::from_secs(5);

/// What must hold before a process is touched.
pub fn check(pid: i32) -> Result<Stat, AttachError> {
    let stat = Stat::read(pid).filter(|_| pid > 0).ok_or(AttachError::NoProcess(pid))?;
    if membership::is_exempt(pid, &stat) {
        return Err(AttachError::Exempt { pid, name: stat.comm });
    }
    // Its main thread may have ended before the others.
    if process::living(pid).is_none() {
        return Err(AttachError::NoMemory(pid));
    }
    let identity = process::identity(pid).map_err(|_| AttachError::NoProcess(pid))?;
    if identity.tracer != 0 {
        return Err(AttachError::Traced { pid, tracer: identity.tracer });
    }
    if process::is_32_bit(pid) {
        return Err(AttachError::ThirtyTwoBit(pid));
    }
    Ok(stat)
}

fn has_no_more_rights(app: &App, pid: i32) -> Result<(), AttachError> {
    if app.may_have(pid) { Ok(()) } else { Err(AttachError::Privileged { pid, uid: app.uid }) }
}

impl AttachContext {
    /// Gives process `pid` of `app` a stub: around the context a fork brought, if the process is
    /// such a child, else around a new one.
    pub fn attach(&self, app: &Arc<App>, pid: i32) -> Result<(Arc<Space>, Pause), AttachError> {
        check(pid)?;
        has_no_more_rights(app, pid)?;
        if self.lives_in_a_space(pid) {
            return Err(AttachError::Shared { pid });
        }
        match self.inherited(app, pid) {
            Some(space) => {
                let pause = self.refurnish(&space, pid)?;
                Ok((space, pause))
            }
            None => self.attach_fresh(app, pid, None),
        }
    }

    /// Whether the process shares the memory of one that has a stub (as a vfork child does until it
    /// calls exec).
    pub fn lives_in_a_space(&self, pid: i32) -> bool {
        self.registry.all().iter().any(|space| space.mark().is_some_and(|mark| mark.task_of(pid).is_some()))
    }

    /// Gives process `pid` a stub and a context for one region of its, the app's, whose faults it
    /// takes itself and asks at the ring: the descriptors with these numbers there.
    pub fn attach_region(
        &self,
        app: &Arc<App>,
        pid: i32,
        range: (u64, u64),
        [ring, bell]: [i32; 2],
    ) -> Result<(Arc<Space>, Pause), AttachError> {
        let (start, end) = range;
        let system = |what, source| AttachError::System { pid, what, source };
        let mapping = Lookup::open(pid).and_then(|lookup| lookup.at(start)).map_err(|e| system("look at it", e))?;
        if !mapping.is_some_and(|m| (m.start, m.end) == range && m.is_private_anonymous() && m.access[..2] == *b"rw") {
            return Err(AttachError::NoRegion { pid, start, end });
        }
        let fetched = process::pidfd_open(pid)
            .and_then(|process| Ok((process::pidfd_getfd(&process, ring)?, process::pidfd_getfd(&process, bell)?)));
        let (ring, bell) = fetched.map_err(|e| system("fetch its ring and bell", e))?;
        let waiters = Waiters::new(ring, bell, range).map_err(|source| AttachError::Waiters { pid, source })?;
        self.attach_fresh(app, pid, Some(waiters))
    }

    /// Gives a space that has a context but no stub one.
    pub fn refurnish(&self, space: &Space, pid: i32) -> Result<Pause, AttachError> {
        let furnished = self.inject(&space.app, pid, Seed::Inherited(space.uffd.as_fd()), |mut stub, _| {
            let staging = space.uffd.register_missing(stub.staging(), STAGING);
            let what = "register the staging area";
            staging.map_err(|e| AttachError::System { pid, what, source: e.into() })?;
            let mm = open(&stub, pid)?;
            // If its shared page is still there, all of it is.
            let before =
                space.core().table.stub().filter(|_| space.mark().is_some_and(|m| m.is_in(stub.pid()) == Some(true)));
            self.registry.unfurnish(space);
            // It goes after there is something else to tell the address space by.
            space.describe(pid, &stub, mm);
            failpoint("stub-described");
            if before.is_some_and(|traces| !stub.unmap(&traces.mappings(), UNMAPPING)) {
                tracing::warn!(pid, "what a stub before had mapped could not be unmapped");
            }
            space.evicting.lock().stub = Some(stub);
            self.registry.furnished(space);
            Ok(())
        })?;
        Ok(furnished.1)
    }

    /// What a stub that has ended had in the space's address space is nobody's: its staging is not
    /// registered any more, its zombie is collected, and its successor unmaps what it had mapped.
    pub fn clear_away(&self, space: &Space, pid: i32, traces: &StubTraces) {
        space.forget_staging();
        let _ = space.uffd.unregister(traces.staging.0, traces.staging.1);
        Stub::end(traces);
        tracer_process::reap(pid, traces.pid, &[]);
    }

    fn attach_fresh(
        &self,
        app: &Arc<App>,
        pid: i32,
        waiters: Option<Waiters>,
    ) -> Result<(Arc<Space>, Pause), AttachError> {
        let features = feature::ALL | if waiters.is_some() { feature::SIGBUS } else { 0 };
        self.inject(app, pid, Seed::Device(self.device.as_fd()), |stub, uffd| {
            let system = |what, source| AttachError::System { pid, what, source };
            let uffd = Uffd::handshake(uffd, features).map_err(|e| system("open the userfaultfd", e))?;
            let uffd = waiters.into_iter().fold(uffd, Uffd::with_ring);
            let staging = uffd.register_missing(stub.staging(), STAGING);
            staging.map_err(|e| system("register the staging area", e.into()))?;
            let id = SpaceId(self.shared.ids.fetch_add(1, Relaxed));
            let table = Table::new(app.id, id.0).map_err(|e| system("make a page table", e))?;
            let mm = open(&stub, pid)?;
            let space = Arc::new(Space::new(id, app.clone(), uffd, table));
            let placing = self.placing.lock();
            if self.lives_in_a_space(pid) {
                return Err(AttachError::Shared { pid });
            }
            space.describe(pid, &stub, mm);
            space.evicting.lock().stub = Some(stub);
            self.registry.insert(space.clone());
            drop(placing);
            self.registry.furnished(&space);
            self.workers.watch(&space).map_err(|e| {
                restore::let_go(self, &space);
                system("watch the userfaultfd", e)
            })?;
            Ok(space)
        })
    }

    fn inject<T>(
        &self,
        app: &App,
        pid: i32,
        seed: Seed<'_>,
        then: impl FnOnce(Stub, OwnedFd) -> Result<T, AttachError>,
    ) -> Result<(T, Pause), AttachError> {
        let (fd, is_device) = match &seed {
            Seed::Device(fd) => (*fd, true),
            Seed::Inherited(fd) => (*fd, false),
        };
        let failed = |source| AttachError::Stub { pid, source };
        let until = Instant::now() + BECOMING;
        loop {
            let injected = tracer_process::inject(pid, fd, is_device).map_err(failed)?;
            let (traces, pause) = (injected.traces, injected.pause);
            match Stub::injected(&traces, pid) {
                Ok((stub, uffd)) => {
                    // Asked of the program that has the stub now: it may have become this one just
                    // before.
                    if let Err(error) = has_no_more_rights(app, pid) {
                        drop(stub);
                        injected.withdraw();
                        return Err(error);
                    }
                    tracing::debug!(pid, stub = stub.pid(), pause = ?pause.0, "stub in place");
                    failpoint("stub-placed");
                    let done = then(stub, uffd)?;
                    injected.acknowledge();
                    return Ok((done, pause));
                }
                Err(source) => {
                    let became_another = Stub::is_elsewhere(&traces, pid);
                    injected.withdraw();
                    // A context that was inherited is not the new program's.
                    if !is_device || !became_another || Instant::now() > until {
                        return Err(failed(source));
                    }
                }
            }
        }
    }

    /// The fork child's context that belongs to `pid`, if any of the app's does.
    ///
    /// A context does not say whose it is. But write-protecting a page through it shows in the
    /// pagemap of the right process only, and harms nobody: the kernel lifts the protection at the
    /// next write. A child that only reads has none but protected pages: then one of these is made
    /// to count as written before, and must show that too. What a page holds is compared before its
    /// copy in the pool is used.
    fn inherited(&self, app: &App, pid: i32) -> Option<Arc<Space>> {
        let orphans = self.registry.of_app(app.id).into_iter().filter(|s| s.pid().is_none() && !s.is_dead());
        let mut pagemap = Pagemap::open(pid).ok()?;
        orphans.into_iter().find(|space| {
            let mut regions: Vec<(u64, u64)> = space.core().regions.iter().map(|r| (r.start, r.end)).collect();
            if regions.is_empty() {
                // Taken over: what its parent's were is not known any more.
                let scanned = region::scan(pid, &[]).unwrap_or_default();
                regions.extend(scanned.iter().map(|r| (r.start, r.end)));
            }
            let proofs = regions.iter().filter(|(start, end)| {
                let mut runs = Vec::new();
                let _ = pagemap.resident(*start, *end, 64, &mut runs);
                let Some(run) = runs.iter().find(|r| r.written).or_else(|| runs.first()) else { return false };
                let page = run.first.addr();
                let mut is_written = || {
                    let mut seen = Vec::new();
                    let _ = pagemap.resident(page, page + PAGE_SIZE as u64, 1, &mut seen);
                    seen.first().map(|run| run.written)
                };
                let shows = run.written || (space.uffd.count_as_written(page) && is_written() == Some(true));
                if !shows {
                    return false;
                }
                space.uffd.probe(page, PAGE_SIZE as u64) == Probe::Registered && is_written() == Some(false)
            });
            proofs.take(1).count() == 1
        })
    }
}

/// The address space that a stub lives in.
fn open(stub: &Stub, pid: i32) -> Result<Mm, AttachError> {
    let opened = Mm::open(stub.pid()).and_then(|mm| match stub.is_alive() {
        true => Ok(mm),
        // Its PID may be somebody else's.
        false => Err(io::ErrorKind::NotFound.into()),
    });
    opened.map_err(|source| AttachError::System { pid, what: "open its memory", source })
}
