//! What the kernel lets the agent have.

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tracing::debug;

/// Locked memory and descriptors, as far as the hard limits and privileges allow. What is still
/// missing shows when the first slab is locked, with a message of its own.
pub fn raise() {
    if setrlimit(Resource::RLIMIT_MEMLOCK, libc::RLIM_INFINITY, libc::RLIM_INFINITY).is_err()
        && let Ok((_, hard)) = getrlimit(Resource::RLIMIT_MEMLOCK)
        && let Err(e) = setrlimit(Resource::RLIMIT_MEMLOCK, hard, hard)
    {
        debug!("the limit on locked memory stays: {e}");
    }
    if let Ok((_, hard)) = getrlimit(Resource::RLIMIT_NOFILE)
        && let Err(e) = setrlimit(Resource::RLIMIT_NOFILE, hard, hard)
    {
        debug!("the limit on open files stays: {e}");
    }
}
