//! What attaching and letting go need of the pager.

use crate::fault::Workers;
use crate::space::{Registry, Shared};
use parking_lot::Mutex;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// What attaching needs of the pager.
pub struct AttachContext {
    pub shared: Arc<Shared>,
    pub registry: Arc<Registry>,
    pub workers: Arc<Workers>,
    pub device: OwnedFd,
    /// Held from the look whether an address space has a stub until its new one is known: two
    /// processes that share one may be attached at the same time.
    pub placing: Mutex<()>,
}
