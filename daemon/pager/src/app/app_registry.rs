//! The apps that there are, and what wakes the manager.

use crate::app::application::App;
use crate::app::let_go::LetGo;
use crate::app::sightings::Sightings;
use crate::recovery::Ledger;
use nix::sys::eventfd::{EfdFlags, EventFd};
use parking_lot::{Mutex, RwLock};
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// The apps, and what wakes the manager.
pub struct AppRegistry {
    apps: RwLock<Vec<Arc<App>>>,
    pub bell: EventFd,
    pub stop: AtomicBool,
    /// What a successor finds of the apps.
    pub ledger: Ledger,
    /// Held from the look whether a process and a name are free until they are an app's: never for
    /// as long as a program is waited for.
    pub admitting: Mutex<()>,
    /// What was detached by hand.
    pub let_go: LetGo,
    /// What the manager has seen of the host's processes.
    pub sightings: Sightings,
    /// Held from the look at all apps until the ledger has them.
    writing: Mutex<()>,
}

impl AppRegistry {
    pub fn new(ledger: Ledger, let_go: LetGo) -> io::Result<AppRegistry> {
        let bell = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        Ok(AppRegistry {
            apps: RwLock::default(),
            bell,
            stop: AtomicBool::new(false),
            ledger,
            admitting: Mutex::new(()),
            let_go,
            sightings: Sightings::default(),
            writing: Mutex::new(()),
        })
    }

    /// Writes down who there is.
    pub fn write_down(&self) {
        let _writing = self.writing.lock();
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
