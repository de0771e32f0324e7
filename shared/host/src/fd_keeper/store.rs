//! systemd's fd store: descriptors that the service manager holds while annexd is away
//! (`FileDescriptorStoreMax=` in its unit).

use super::Kept;
use sd_notify::NotifyState;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd};

/// True if a service manager would take descriptors.
pub fn exists() -> bool {
    // Set by systemd 254 and newer for services with a store; older ones only have the socket, and
    // ignore what they can't take.
    std::env::var_os("NOTIFY_SOCKET").is_some()
}

pub fn put(kept: Kept, fd: BorrowedFd<'_>) {
    if !kept.is_for_store() {
        return;
    }
    let name = name(kept);
    // Not polled: a userfaultfd whose process has just ended would be taken out in silence, and
    // under another's eyes.
    let state = [NotifyState::FdStore, NotifyState::FdName(&name), NotifyState::Custom("FDPOLL=0")];
    if let Err(error) = sd_notify::notify_with_fds(&state, &[fd]) {
        tracing::warn!(%error, "the service manager does not keep {name}: if the whole service is killed, a program is lost with it");
    }
}

pub fn remove(kept: Kept) {
    if !kept.is_for_store() {
        return;
    }
    let name = name(kept);
    if let Err(error) = sd_notify::notify(&[NotifyState::Custom("FDSTOREREMOVE=1"), NotifyState::FdName(&name)]) {
        tracing::debug!(%error, "the service manager was not told to drop {name}");
    }
}

/// What the store had for us, and takes it out of the environment. Call it while annexd has one
/// thread.
pub fn take() -> Vec<(Kept, OwnedFd)> {
    // SAFETY: there is no other thread that could read the environment meanwhile.
    let Ok(found) = (unsafe { sd_notify::listen_fds_with_names_and_unset_env() }) else { return Vec::new() };
    let own = |(fd, name): (i32, String)| {
        // SAFETY: the service manager passed the descriptor to this process; nobody else here owns
        // it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Some((parse(&name)?, fd))
    };
    found.filter_map(own).collect()
}

pub fn name(kept: Kept) -> String {
    let (kind, which) = kept.encode();
    format!("annex-{kind}-{which}")
}

pub fn parse(name: &str) -> Option<Kept> {
    let (kind, which) = name.strip_prefix("annex-")?.split_once('-')?;
    Kept::decode(kind.parse().ok()?, which.parse().ok()?)
}
