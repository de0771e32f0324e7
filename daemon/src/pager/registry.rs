//! Every address space that has a userfaultfd, by its id, and the bell of the thread that evicts.

use super::mortal;
use super::space::{Space, SpaceId};
use crate::keeper::{Keeper, Kept};
use nix::sys::eventfd::{EfdFlags, EventFd};
use parking_lot::RwLock;
use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

pub struct Registry {
    /// Has a copy of every userfaultfd and every member's pidfd, for the case that this process ends.
    pub keeper: Arc<Keeper>,
    spaces: RwLock<HashMap<u64, Arc<Space>>>,
    bell: EventFd,
    rung: AtomicBool,
}

impl Registry {
    pub fn new(keeper: Arc<Keeper>) -> io::Result<Registry> {
        let bell = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        Ok(Registry { keeper, spaces: RwLock::default(), bell, rung: AtomicBool::new(false) })
    }

    pub fn space(&self, id: SpaceId) -> Option<Arc<Space>> {
        self.spaces.read().get(&id.0).cloned()
    }

    pub fn insert(&self, space: Arc<Space>) {
        self.keeper.keep(Kept::Userfaultfd(space.id.0), space.uffd.as_fd());
        mortal::point("userfaultfd-kept");
        self.keeper.keep(Kept::Table(space.id.0), space.core().table.fd());
        if let Some(ring) = space.uffd.ring() {
            let [ring, bell] = ring.fds();
            self.keeper.keep(Kept::Ring(space.id.0), ring);
            self.keeper.keep(Kept::Bell(space.id.0), bell);
        }
        self.spaces.write().insert(space.id.0, space);
    }

    pub fn remove(&self, id: SpaceId) {
        self.keeper.let_go(Kept::Userfaultfd(id.0));
        self.keeper.let_go(Kept::Table(id.0));
        if self.space(id).is_some_and(|space| space.uffd.ring().is_some()) {
            self.keeper.let_go(Kept::Ring(id.0));
            self.keeper.let_go(Kept::Bell(id.0));
        }
        self.spaces.write().remove(&id.0);
    }

    pub fn all(&self) -> Vec<Arc<Space>> {
        self.spaces.read().values().cloned().collect()
    }

    /// The spaces of one app, fork children included.
    pub fn of_app(&self, app: u64) -> Vec<Arc<Space>> {
        self.spaces.read().values().filter(|s| s.app.id == app).cloned().collect()
    }

    /// Rings for the evictor, once until it looks.
    pub fn wake_evictor(&self) {
        if !self.rung.swap(true, Ordering::AcqRel) {
            // Only a full counter could fail; it is rung then.
            let _ = self.bell.write(1);
        }
    }

    pub fn bell(&self) -> &EventFd {
        &self.bell
    }

    /// The evictor looks: the next ring counts again.
    pub fn answer(&self) {
        let _ = self.bell.read();
        self.rung.store(false, Ordering::Release);
    }
}
