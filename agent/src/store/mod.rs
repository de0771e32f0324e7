//! Where the agent's memory is when the agent is not: descriptors that outlive the process.
//!
//! | name | descriptor |
//! | --- | --- |
//! | `leases` | who holds which slab, see [`saved`] |
//! | `board` | the lease board (`annex_fabric::shm::Board`) |
//! | `s`N, `t`N | the memory of slab N (hexadecimal), under two names in turn, so that the old one can be forgotten after the new one is kept |
//!
//! A copy of each is with systemd (`FileDescriptorStoreMax=` in the unit) or, where the agent is
//! run without it and `keeper` is set, with a process of its own ([`keeper`]). The next agent finds
//! them there and goes on. Both speak in single messages, so a kill falls between two of them; a
//! message that was sent arrives even if the sender is dead by then.
//!
//! With neither, the memory is gone with the process, and clients see a lost donor.

pub mod keeper;
pub mod saved;
mod wire;

pub use keeper::Found;

use annex_shared::ids::SlabId;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use tracing::error;

/// The name of the lease state's descriptor.
pub const LEASES: &str = "leases";
/// The name of the lease board's descriptor.
pub const BOARD: &str = "board";

/// One of the two names under which a slab's memory is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlabName {
    pub slab: SlabId,
    pub is_second: bool,
}

impl SlabName {
    /// The name for the memory that takes this one's place.
    pub fn other(self) -> SlabName {
        SlabName { is_second: !self.is_second, ..self }
    }

    pub fn parse(name: &str) -> Option<SlabName> {
        let (is_second, number) = match (name.strip_prefix('s'), name.strip_prefix('t')) {
            (Some(number), _) => (false, number),
            (_, Some(number)) => (true, number),
            _ => return None,
        };
        Some(SlabName { slab: SlabId(u32::from_str_radix(number, 16).ok()?), is_second })
    }
}

impl std::fmt::Display for SlabName {
    // Short: systemd hands all names over in one environment variable of at most 128 KiB.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}{:x}", if self.is_second { 't' } else { 's' }, self.slab.0)
    }
}

/// The store could not be reached.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("failed to take over what systemd keeps for this agent: {0}")]
    Systemd(#[source] io::Error),
    #[error(
        "failed to reach the keeper at {}: {source}{}",
        .path.display(),
        if .source.kind() == io::ErrorKind::ConnectionRefused { ": another agent uses it; give each its own with keeper" } else { "" }
    )]
    Keeper { path: PathBuf, source: io::Error },
}

/// The way to what outlives this process.
pub struct Store {
    way: Way,
    /// Complained once; the next failures say nothing new.
    is_failing: AtomicBool,
}

enum Way {
    None,
    Systemd(UnixDatagram),
    Keeper(UnixStream),
}

impl Store {
    /// Nothing outlives this agent.
    pub fn none() -> Store {
        Store::of(Way::None)
    }

    fn of(way: Way) -> Store {
        Store { way, is_failing: AtomicBool::new(false) }
    }

    /// The keeper at this path (started if need be), else systemd's store if it is systemd that
    /// runs the agent, else none; and what is there.
    pub fn open(keeper: Option<&Path>) -> Result<(Store, Found), StoreError> {
        if let Some(path) = keeper {
            let (socket, found) =
                keeper::connect(path).map_err(|source| StoreError::Keeper { path: path.to_owned(), source })?;
            return Ok((Store::of(Way::Keeper(socket)), found));
        }
        match wire::notify_socket().map_err(StoreError::Systemd)? {
            Some(socket) => {
                let found = inherited().map_err(StoreError::Systemd)?;
                Ok((Store::of(Way::Systemd(socket)), found))
            }
            None => Ok((Store::none(), Found::new())),
        }
    }

    /// True if the agent's memory outlives it.
    pub fn lasts(&self) -> bool {
        !matches!(self.way, Way::None)
    }

    /// For the log.
    pub fn what(&self) -> &'static str {
        match self.way {
            Way::None => "nothing",
            Way::Systemd(_) => "systemd's descriptor store",
            Way::Keeper(_) => "the keeper",
        }
    }

    /// Keeps a copy of `fd` under `name`. False if it could not be.
    pub fn keep(&self, name: &str, fd: BorrowedFd<'_>) -> bool {
        let sent = match &self.way {
            Way::None => return false,
            Way::Systemd(socket) => {
                wire::send(socket.as_fd(), format!("FDSTORE=1\nFDNAME={name}\n").as_bytes(), Some(fd))
            }
            Way::Keeper(socket) => wire::Message::keep(name).send(socket, Some(fd)),
        };
        self.succeeded(sent, name)
    }

    /// Lets go of everything under `name`.
    pub fn forget(&self, name: &str) {
        let sent = match &self.way {
            Way::None => return,
            Way::Systemd(socket) => {
                wire::send(socket.as_fd(), format!("FDSTOREREMOVE=1\nFDNAME={name}\n").as_bytes(), None)
            }
            Way::Keeper(socket) => wire::Message::forget(name).send(socket, None),
        };
        self.succeeded(sent, name);
    }

    /// Parts from the store with everything left in it, as the end of the process would.
    pub fn leave(&self) {
        if let Way::Keeper(socket) = &self.way {
            // It is gone already if this fails.
            let _ = socket.shutdown(std::net::Shutdown::Both);
        }
    }

    fn succeeded(&self, sent: io::Result<()>, name: &str) -> bool {
        match sent {
            Ok(()) => self.is_failing.store(false, Ordering::Relaxed),
            Err(e) if !self.is_failing.swap(true, Ordering::Relaxed) => {
                error!("failed to hand {name} to {}: {e}; a restart of this agent would lose leases", self.what());
                return false;
            }
            Err(_) => return false,
        }
        true
    }
}

/// The descriptors that systemd passed to this process.
fn inherited() -> io::Result<Found> {
    static TAKEN: AtomicBool = AtomicBool::new(false);
    let mut found = Found::new();
    if TAKEN.swap(true, Ordering::SeqCst) {
        return Ok(found);
    }
    for (raw, name) in sd_notify::listen_fds_with_names()? {
        // SAFETY: systemd opened it for this process (it has checked the PID), and nobody else here
        // takes it: this runs once.
        let fd = unsafe { OwnedFd::from_raw_fd(raw) };
        found.entry(name).or_default().push(fd);
    }
    Ok(found)
}

/// The inode of a memfd, which tells it from any other.
pub fn inode(fd: BorrowedFd<'_>) -> io::Result<u64> {
    Ok(nix::sys::stat::fstat(fd).map_err(|e| io::Error::other(format!("descriptor {}: {e}", fd.as_raw_fd())))?.st_ino)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slabs_two_names_are_read_back() {
        let name = SlabName { slab: SlabId(0x1f), is_second: false };
        assert_eq!((name.to_string(), name.other().to_string()), ("s1f".to_owned(), "t1f".to_owned()));
        for name in [name, name.other()] {
            assert_eq!(SlabName::parse(&name.to_string()), Some(name));
        }
        for other in ["", "s", "x1", "szz", LEASES, BOARD, "stored"] {
            assert_eq!(SlabName::parse(other), None, "{other}");
        }
    }
}
