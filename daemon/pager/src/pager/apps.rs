//! What the control plane asks for.

use super::Pager;
use super::by::By;
use super::refusal::{error, no_app, refused};
use crate::app::{membership, whereabouts};
use crate::control::{Apps, Caller};
use crate::inject::attach;
use crate::inject::attach::AttachError;
use crate::kernel::process;
use crate::recovery::restore::RestoreError;
use crate::recovery::{restore, takeover};
use annex_host::event;
use annex_shared::api::{
    ApiError, AppInfo, AttachRequest, ErrorCode, LONGEST_REGION, Local, Progress, RegionRequest, SHORTEST_REGION,
    Target, UserInfo, WorkersInfo, format_bytes,
};
use annex_shared::page::PAGE_SIZE;
use std::sync::Arc;

impl Pager {
    pub(super) fn attach_as(&self, request: &AttachRequest, caller: Caller, by: By) -> Result<AppInfo, ApiError> {
        let _one = self.under_way.begin(caller)?;
        let new = |name, uid| {
            self.new_app(name, uid, request.target.clone(), request.local).of_ordinary_user(caller.confined)
        };
        self.may_have_programs(caller)?;
        match &request.target {
            Target::Pid(pid) | Target::Launch(pid) => {
                let stat = attach::check(*pid).map_err(refused)?;
                let admitting = self.app_registry.admitting.lock();
                self.is_free(*pid)?;
                self.may_have_another(caller)?;
                // The process of whom the caller was found to be allowed to ask may have become
                // another program since.
                let owner = process::identity(*pid).ok().and_then(|identity| identity.owner());
                if caller.confined && owner != Some(caller.uid) {
                    return Err(refused(AttachError::Privileged { pid: *pid, uid: caller.uid }));
                }
                let uid = owner.unwrap_or(0);
                let program = request.program.as_deref().unwrap_or(&stat.comm);
                let name = self.unique_name(request.name.as_deref(), program, *pid)?;
                let app = Arc::new(new(name, uid));
                let _changing = app.changing.lock();
                self.admit(&app, *pid, &stat);
                drop(admitting);
                if matches!(request.target, Target::Pid(_)) {
                    self.furnish(&app, *pid, |app| self.context.attach(app, *pid))?;
                    self.attach_descendants(&app, *pid)?;
                }
                if by == By::Hand && !self.app_registry.let_go.is_empty() {
                    let family = membership::descendants(*pid).into_iter().chain([(*pid, stat)]);
                    self.app_registry.let_go.remove(family.map(|(pid, stat)| (pid, stat.started)), None);
                }
                Ok(self.told(&app))
            }
            Target::Unit(_) | Target::Cgroup(_) | Target::Container(_) => {
                self.attach_cgroup(request, by).map(|app| self.told(&app))
            }
            // Only its process itself can have that.
            Target::Region { .. } => Err(error(
                ErrorCode::BadRequest,
                "a region of a process can't be attached".into(),
                "the process itself opens it, with annex-client",
            )),
        }
    }

    /// Brings an app back and strikes it off.
    fn release(&self, id: u64, progress: &mut dyn FnMut(Progress)) -> Result<(), ApiError> {
        let app = self.app_registry.find(id).ok_or_else(|| no_app(id))?;
        {
            let _changing = app.changing.lock();
            app.set_detaching(true);
        }
        let result = restore::restore(&self.context, &app, progress);
        match result {
            Ok(()) => {
                self.finish(&app);
                event!(INFO, AppDetached of &app.name, uid app.uid, "detached: all its memory is back");
                Ok(())
            }
            Err(RestoreError::Lost { lost }) => {
                self.finish(&app);
                let lost = RestoreError::Lost { lost }.to_string();
                event!(WARN, AppDetached of &app.name, uid app.uid, "detached, but {lost}");
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

    fn release_all(&self, progress: &mut dyn FnMut(Progress)) -> Result<(), ApiError> {
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
            match self.release(app.id, progress) {
                // It has ended by itself meanwhile.
                Err(error) if error.kind == ErrorCode::NotFound => {}
                detached => detached?,
            }
        }
        Ok(())
    }
}

impl Apps for Pager {
    fn attach(&self, request: &AttachRequest, caller: Caller) -> Result<AppInfo, ApiError> {
        self.attach_as(request, caller, By::Hand)
    }

    fn open_region(&self, request: &RegionRequest, caller: Caller) -> Result<AppInfo, ApiError> {
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
        let _one = self.under_way.begin(caller)?;
        let pid = caller.pid;
        let stat = attach::check(pid).map_err(refused)?;
        let admitting = self.app_registry.admitting.lock();
        self.is_free(pid)?;
        self.may_have_another(caller)?;
        let name = self.unique_name(request.name.as_deref(), &stat.comm, pid)?;
        let app =
            self.new_app(name, caller.uid, Target::Region { pid, address, length }, request.local.map(Local::from));
        let app = Arc::new(app.of_ordinary_user(caller.confined));
        let range = (address, address + length);
        let _changing = app.changing.lock();
        self.admit(&app, pid, &stat);
        drop(admitting);
        self.furnish(&app, pid, |app| self.context.attach_region(app, pid, range, [ring, bell]))?;
        Ok(self.told(&app))
    }

    fn detach(&self, id: u64, progress: &mut dyn FnMut(Progress)) -> Result<(), ApiError> {
        let app = self.app_registry.find(id).ok_or_else(|| no_app(id))?;
        if app.region().is_some() {
            return self.release(id, progress);
        }
        // Before it is let go of, so that nobody takes it in between.
        let processes: Vec<(i32, u64)> = app.members.lock().iter().map(|m| (m.pid, m.started)).collect();
        let folder = whereabouts::locate(&app.target);
        let let_go = &self.app_registry.let_go;
        let_go.add(processes.iter().copied(), folder.as_deref());
        let released = self.release(id, progress);
        if released.is_err() && self.app_registry.find(id).is_some() {
            let_go.remove(processes, folder.as_deref());
        }
        released
    }

    fn set_limit(&self, id: u64, local: Local) -> Result<AppInfo, ApiError> {
        let app = self.app_registry.find(id).ok_or_else(|| no_app(id))?;
        match local {
            Local::Fixed(limit) => app.set_limit(limit, None),
            Local::Auto(target) => app.set_limit(app.limit(), Some(target)),
        }
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

    fn users(&self) -> Vec<UserInfo> {
        let shared = &self.context.shared;
        shared.quotas.users(&self.context.registry, &shared.pool, &self.app_registry.all())
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
        self.gate.close();
        self.release_all(progress).inspect_err(|_| self.gate.open())
    }
}
