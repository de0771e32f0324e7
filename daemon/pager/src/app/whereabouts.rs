//! Where the cgroup of an app is now, if it is one of a cgroup: a unit that is restarted gets
//! another, and so does a container.
//!
//! What is named by a path is that cgroup, as long as it is there. What is named by a unit or a
//! container is searched for again when its cgroup has gone. A unit may come back at any time. A
//! container that has not come back after [`RESTART`] has ended, and its app with it.

use crate::app::application::App;
use crate::app::container;
use crate::kernel::{cgroup, process};
use annex_shared::api::Target;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// As long as a container may take to be stopped and started again.
const RESTART: Duration = Duration::from_secs(20);
/// A search for what is gone takes at most one part in this many of the time, and is not made more
/// often than this.
const SHARE: u32 = 100;
const SEARCH_EVERY: Duration = Duration::from_millis(200);

#[derive(Default)]
pub struct Whereabouts(HashMap<u64, Place>);

#[derive(Default)]
struct Place {
    folder: Option<PathBuf>,
    gone_since: Option<Instant>,
    rests_until: Option<Instant>,
}

impl Whereabouts {
    /// Forgets who is none of these.
    pub fn retain(&mut self, apps: &[Arc<App>]) {
        self.0.retain(|id, _| apps.iter().any(|app| app.id == *id));
    }

    /// The folder of the app's cgroup, if it has one now.
    pub fn find(&mut self, app: &App) -> Option<PathBuf> {
        if !app.target.is_cgroup() {
            return None;
        }
        let place = self.0.entry(app.id).or_default();
        if let Some(folder) = place.folder.as_ref().filter(|folder| folder.exists()) {
            return Some(folder.clone());
        }
        if place.rests_until.is_some_and(|until| Instant::now() < until) {
            return None;
        }
        let before = process::own_cpu_time();
        place.folder = locate(&app.target);
        let pause = ((process::own_cpu_time() - before) * SHARE).max(SEARCH_EVERY);
        place.rests_until = Some(Instant::now() + pause);
        match place.folder {
            Some(_) => place.gone_since = None,
            None => drop(place.gone_since.get_or_insert_with(Instant::now)),
        }
        place.folder.clone()
    }

    /// Whether nothing of the app can come any more once its processes have ended.
    pub fn is_over(&self, app: &App) -> bool {
        let gone = self.0.get(&app.id).and_then(|place| place.gone_since);
        match app.target {
            Target::Unit(_) => false,
            Target::Cgroup(_) => gone.is_some(),
            Target::Container(_) => gone.is_some_and(|since| since.elapsed() > RESTART),
            Target::Pid(_) | Target::Launch(_) | Target::Region { .. } => true,
        }
    }
}

/// The folder of what a target names, as it is now.
pub fn locate(target: &Target) -> Option<PathBuf> {
    match target {
        Target::Unit(unit) => cgroup::of_unit(unit),
        Target::Cgroup(folder) => Some(PathBuf::from(folder)).filter(|folder| Path::exists(folder)),
        Target::Container(name) => container::find(name).ok().map(|found| found.folder),
        Target::Pid(_) | Target::Launch(_) | Target::Region { .. } => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use annex_shared::api::Limit;

    fn app(target: Target) -> App {
        App::new(1, "a".into(), 0, target, Limit::Percent(50))
    }

    #[test]
    fn a_cgroups_app_is_over_when_it_is_gone_and_a_units_never_is() {
        let folder = tempfile::tempdir().unwrap();
        let of_cgroup = app(Target::Cgroup(folder.path().to_str().unwrap().to_owned()));
        let mut places = Whereabouts::default();
        assert!(!places.is_over(&of_cgroup), "nobody has looked yet");
        assert_eq!(places.find(&of_cgroup).as_deref(), Some(folder.path()));
        assert!(!places.is_over(&of_cgroup));
        std::fs::remove_dir(folder.path()).unwrap();
        places.0.get_mut(&1).unwrap().rests_until = None;
        assert_eq!(places.find(&of_cgroup), None);
        assert!(places.is_over(&of_cgroup));
        assert!(!places.is_over(&app(Target::Unit("a.service".into()))));
        assert!(places.is_over(&app(Target::Pid(1))));
    }

    #[test]
    fn a_container_has_time_to_be_started_again() {
        let container = app(Target::Container("no-such-container".into()));
        let mut places = Whereabouts::default();
        assert_eq!(places.find(&container), None);
        assert!(!places.is_over(&container));
        let long_ago = Instant::now().checked_sub(2 * RESTART);
        places.0.get_mut(&1).unwrap().gone_since = long_ago;
        assert!(places.is_over(&container));
        places.retain(&[]);
        assert!(places.0.is_empty());
    }
}
