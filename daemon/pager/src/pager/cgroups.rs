//! Apps of whole cgroups: units, containers, and what is named by its path.
//!
//! The processes that are worth a stub get one before the attach is answered: all of them, or none.
//! Processes that come later join as they come. A cgroup that has annexd itself is refused as a
//! whole: what annexd waits for may be in it too. Of others that are never paged ([`is_exempt`])
//! none becomes a member.
//!
//! [`is_exempt`]: membership::is_exempt

use super::Pager;
use super::by::By;
use super::refusal::error;
use crate::app::container::ContainerError;
use crate::app::{App, container, membership};
use crate::kernel::cgroup;
use crate::kernel::cgroup::CgroupError;
use crate::kernel::process::Stat;
use annex_shared::api::{ApiError, AttachRequest, ErrorCode, Target};
use annex_shared::printable::printable;
use std::path::PathBuf;
use std::sync::Arc;

/// All of this is root's, whoever has asked for it.
const ROOT: u32 = 0;

/// A cgroup that somebody has named.
struct Named {
    /// What finds it again.
    target: Target,
    folder: PathBuf,
    /// As messages have it: `unit a.service`.
    what: String,
    /// What to call the app.
    name: String,
}

impl Pager {
    pub(super) fn attach_cgroup(&self, request: &AttachRequest, by: By) -> Result<Arc<App>, ApiError> {
        let Named { target, folder, what, name } = look_up(&request.target)?;
        let admitting = self.app_registry.admitting.lock();
        let pids = cgroup::members_of(&folder);
        if pids.contains(&(std::process::id() as i32)) {
            return Err(error(
                ErrorCode::Unsuitable,
                format!("{what} has annexd itself, which must never wait for a page"),
                "name a cgroup below it, such as that of one service or container",
            ));
        }
        if by == By::Hand
            && let Some(owner) = pids.iter().find_map(|pid| self.owner_of(*pid))
        {
            return Err(error(
                ErrorCode::AlreadyAttached,
                format!("processes of {what} are managed already, as app '{}'", owner.name),
                &format!("run 'annex detach {}' first", owner.name),
            ));
        }
        let let_go = &self.app_registry.let_go;
        // What belongs to another app, or descends from it, stays that one's.
        let is_free = |pid: i32, stat: &Stat| {
            let is_anothers = [pid, stat.parent].iter().any(|pid| self.owner_of(*pid).is_some());
            by == By::Hand || !is_anothers && !let_go.has_process(pid, stat) && !let_go.has_cgroup(&folder)
        };
        let may_join = |(pid, stat): &(i32, Stat)| {
            membership::can_be_member(stat) && !membership::is_exempt(*pid, stat) && is_free(*pid, stat)
        };
        let stats = pids.into_iter().filter_map(|pid| Some((pid, Stat::read(pid)?)));
        let processes: Vec<(i32, Stat)> = stats.filter(may_join).collect();
        let Some((first, _)) = processes.first() else {
            return Err(error(
                ErrorCode::NotFound,
                format!("{what} has no process that could be paged"),
                remedy(&target),
            ));
        };
        let name = self.unique_name(request.name.as_deref(), &name, *first)?;
        let app = Arc::new(self.new_app(name, ROOT, target, request.local));
        let _changing = app.changing.lock();
        for (pid, stat) in &processes {
            membership::join(&app, *pid, stat);
        }
        app.members.lock().iter_mut().for_each(|member| member.keep(&self.context.registry.keeper));
        self.app_registry.add(app.clone());
        drop(admitting);
        if by == By::Hand {
            let_go.remove(processes.iter().map(|(pid, stat)| (*pid, stat.started)), Some(&folder));
        }
        self.attach_large(&app, processes)?;
        Ok(app.clone())
    }
}

fn look_up(target: &Target) -> Result<Named, ApiError> {
    match target {
        Target::Unit(unit) => {
            let what = format!("unit {}", printable(unit));
            let found = cgroup::of_unit(unit).filter(|folder| cgroup::is_populated(folder));
            let nothing = || error(ErrorCode::NotFound, format!("{what} has no running process"), remedy(target));
            let folder = found.ok_or_else(nothing)?;
            Ok(Named { target: target.clone(), folder, what, name: unit.clone() })
        }
        Target::Container(named) => {
            let found = container::find(named).map_err(|e| match e {
                ContainerError::None(_) => {
                    error(ErrorCode::NotFound, printable(&e.to_string()).into_owned(), remedy(target))
                }
                ContainerError::Ambiguous { .. } => error(
                    ErrorCode::BadRequest,
                    printable(&e.to_string()).into_owned(),
                    "give more of its id, or the name of one of them",
                ),
            })?;
            let what = format!("container {}", printable(named));
            Ok(Named { target: Target::Container(found.lasting), folder: found.folder, what, name: found.name })
        }
        Target::Cgroup(named) => {
            let folder = cgroup::resolve(named).map_err(|e| {
                let kind = if matches!(e, CgroupError::None(_)) { ErrorCode::NotFound } else { ErrorCode::BadRequest };
                error(kind, printable(&e.to_string()).into_owned(), remedy(target))
            })?;
            let what = format!("cgroup {}", printable(named));
            let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let text = folder.to_str().map(str::to_owned);
            let text =
                text.ok_or_else(|| error(ErrorCode::BadRequest, format!("{what} is no text"), remedy(target)))?;
            Ok(Named { target: Target::Cgroup(text), folder, what, name })
        }
        Target::Pid(_) | Target::Launch(_) | Target::Region { .. } => Err(error(
            ErrorCode::Internal,
            "a process is no cgroup".into(),
            "this is a mistake in annexd: please report it",
        )),
    }
}

fn remedy(target: &Target) -> &'static str {
    match target {
        Target::Unit(_) => "name a running unit as systemctl shows it, with its suffix (X.service)",
        Target::Container(_) => "name a running container as its runtime lists it, or give 4 digits of its id or more",
        _ => "name a folder below /sys/fs/cgroup, or a path as /proc/PID/cgroup shows it",
    }
}
