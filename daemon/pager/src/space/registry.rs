//! Every address space that has a userfaultfd, by its id, and the bell of the thread that evicts.

use crate::app::App;
use crate::fault::Fault;
use crate::kernel::uffd::Proof;
use crate::space::address_space::Space;
use crate::space::identity::SpaceId;
use annex_host::failpoint::failpoint;
use annex_host::fd_keeper::{FdKeeper, Kept};
use nix::sys::eventfd::{EfdFlags, EventFd};
use parking_lot::RwLock;
use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

pub struct Registry {
    /// Has a copy of every userfaultfd and every member's pidfd, for the case that this process
    /// ends.
    pub keeper: Arc<FdKeeper>,
    spaces: RwLock<HashMap<u64, Arc<Space>>>,
    bell: EventFd,
    rung: AtomicBool,
}

impl Registry {
    pub fn new(keeper: Arc<FdKeeper>) -> io::Result<Registry> {
        let bell = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        Ok(Registry { keeper, spaces: RwLock::default(), bell, rung: AtomicBool::new(false) })
    }

    pub fn space(&self, id: SpaceId) -> Option<Arc<Space>> {
        self.spaces.read().get(&id.0).cloned()
    }

    pub fn insert(&self, space: Arc<Space>) {
        self.keeper.keep(Kept::Userfaultfd(space.id.0), space.uffd.as_fd());
        failpoint("userfaultfd-kept");
        self.keeper.keep(Kept::Table(space.id.0), space.core().table.fd());
        if let Some(ring) = space.uffd.ring() {
            let [ring, bell] = ring.fds();
            self.keeper.keep(Kept::Ring(space.id.0), ring);
            self.keeper.keep(Kept::Bell(space.id.0), bell);
        }
        self.spaces.write().insert(space.id.0, space);
    }

    /// What is open of the space's address space and its stub is kept: whoever comes after reads
    /// staging through it.
    pub fn furnished(&self, space: &Space) {
        if let Some(mm) = space.mm() {
            let [memory, pagemap] = mm.fds();
            self.keeper.keep(Kept::Memory(space.id.0), memory);
            self.keeper.keep(Kept::Pagemap(space.id.0), pagemap);
        }
        if let Some(stub) = &space.evicting.lock().stub {
            self.keeper.keep(Kept::Stub(space.id.0), stub.pidfd());
        }
    }

    /// The space is about to let go of its stub, and of what it has open of its address space.
    pub fn unfurnish(&self, space: &Space) {
        let id = space.id.0;
        for kept in [Kept::Stub(id), Kept::Memory(id), Kept::Pagemap(id)] {
            self.keeper.let_go(kept);
        }
    }

    pub fn remove(&self, space: &Space, proof: Proof) {
        let id = space.id.0;
        self.keeper.let_go(Kept::Userfaultfd(id));
        space.uffd.let_go(proof);
        self.keeper.let_go(Kept::Table(id));
        self.unfurnish(space);
        if space.uffd.ring().is_some() {
            self.keeper.let_go(Kept::Ring(id));
            self.keeper.let_go(Kept::Bell(id));
        }
        self.spaces.write().remove(&id);
    }

    pub fn all(&self) -> Vec<Arc<Space>> {
        self.spaces.read().values().cloned().collect()
    }

    /// The spaces of one app, fork children included.
    pub fn of_app(&self, app: u64) -> Vec<Arc<Space>> {
        self.spaces.read().values().filter(|s| s.app.id == app).cloned().collect()
    }

    /// The app's address spaces that a process is known to live in, and those processes' PIDs.
    pub fn of_members(&self, app: &App) -> Vec<(i32, Arc<Space>)> {
        let members = app.members.lock();
        let known: Vec<_> = members.iter().filter_map(|m| Some((m.pid, m.space.as_ref()?.id))).collect();
        drop(members);
        known.into_iter().filter_map(|(pid, id)| Some((pid, self.space(id)?))).collect()
    }

    /// The faults that the app holds, for the caller to serve.
    pub fn take_delayed(&self, app: &App) -> Vec<(Arc<Space>, Fault)> {
        app.take_delayed().into_iter().filter_map(|(id, fault)| Some((self.space(id)?, fault))).collect()
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
