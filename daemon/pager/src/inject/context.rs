//! What attaching and letting go need of the pager.

use crate::fault::workers::Workers;
use crate::space::registry::Registry;
use crate::space::shared::Shared;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// What attaching needs of the pager.
pub struct AttachContext {
    pub shared: Arc<Shared>,
    pub registry: Arc<Registry>,
    pub workers: Arc<Workers>,
    pub device: OwnedFd,
}
