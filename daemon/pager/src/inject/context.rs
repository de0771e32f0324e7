//! What attaching and letting go need of the pager.

use crate::fault::Workers;
use crate::space::{Registry, Shared};
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// What attaching needs of the pager.
pub struct AttachContext {
    pub shared: Arc<Shared>,
    pub registry: Arc<Registry>,
    pub workers: Arc<Workers>,
    pub device: OwnedFd,
}
