//! What outlives annexd: the descriptors that programs' memory depends on, and who takes them over.
//!
//! When the last descriptor of a userfaultfd closes, its evicted pages read as zeros. So each
//! userfaultfd, each page table and the pool's tables are *kept*: named in an [`index`] that lies
//! in a memfd, and held by
//!
//! - the keeper, a child of annexd that shares its descriptor table ([`process`]). Whatever annexd
//!   opens the keeper has at that very moment, the userfaultfd that arrives with a FORK message
//!   included. When annexd ends, the keeper closes all that is not named (but no userfaultfd), and
//!   waits for a successor. If none comes in time, it ends the programs, and says so: they never
//!   run on with zeros.
//! - systemd's fd store, if annexd is a service with one ([`store`]): it outlives a kill of the
//!   whole service, keeper and all.
//!
//! A starting annexd looks for both ([`heir`]), keeper first, since that has more.

mod heir;
mod index;
mod kept;
mod process;
mod store;

pub use heir::{HeirError, Inheritance, find};
pub use kept::Kept;
pub use process::HAD_TO_END_PROGRAMS;

use index::Index;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// annexd's hand on what is kept.
pub struct FdKeeper {
    index: Mutex<(Index, HashMap<Kept, usize>)>,
    /// The keeper process.
    process: OwnedFd,
    has_ended: AtomicBool,
    has_store: bool,
}

impl FdKeeper {
    /// Starts the keeper process; `socket` is the control socket's path, beside which the keeper
    /// has its own, and `patience` how long it waits for a successor. Call it while annexd has one
    /// thread.
    pub fn start(socket: &Path, patience: Duration) -> io::Result<FdKeeper> {
        let index = Index::create()?;
        let path = keeper_socket(socket, std::process::id());
        // A socket of that name belongs to a keeper whose annexd had our PID: which ended long ago.
        let _ = std::fs::remove_file(&path);
        let listener = UnixListener::bind(&path)?;
        let process = process::start(&index, &listener, &path, patience)?;
        // From here on the keeper listens; the descriptor is in the table they share, and must stay
        // there.
        std::mem::forget(listener);
        Ok(FdKeeper {
            index: Mutex::new((index, HashMap::new())),
            process,
            has_ended: AtomicBool::new(false),
            has_store: store::exists(),
        })
    }

    /// Keeps a descriptor under that name. It must stay open, under the same number, until it is
    /// dropped here.
    pub fn keep(&self, kept: Kept, fd: BorrowedFd<'_>) {
        {
            let mut index = self.index.lock();
            let (index, places) = &mut *index;
            match index.add(kept, fd.as_raw_fd(), places.get(&kept).copied()) {
                Some(place) => drop(places.insert(kept, place)),
                None => tracing::error!(
                    "{kept:?} can't be kept: more than {} descriptors are; if annexd is killed now, a program is lost with it",
                    index::ENTRIES
                ),
            }
        }
        if self.has_store {
            store::put(kept, fd);
        }
        self.look_after();
    }

    /// Keeps it no longer. Call it before the descriptor is closed.
    pub fn let_go(&self, kept: Kept) {
        {
            let mut index = self.index.lock();
            let (index, places) = &mut *index;
            places.remove(&kept).into_iter().for_each(|place| index.remove(place));
        }
        if self.has_store {
            store::remove(kept);
        }
    }

    /// All that a successor needs is in the index: from now on the keeper waits for one if annexd
    /// ends.
    pub fn complete(&self, generation: u64) {
        self.index.lock().0.complete(generation);
    }

    /// Says it, once, if nobody would keep anything any more.
    fn look_after(&self) {
        let mut fds = [PollFd::new(self.process.as_fd(), PollFlags::POLLIN)];
        let ended = poll(&mut fds, PollTimeout::ZERO).unwrap_or(0) > 0;
        if ended && !self.has_ended.swap(true, Ordering::Relaxed) {
            tracing::error!(
                "the keeper process is gone: if annexd is killed now, programs may lose evicted memory in silence; restart annexd"
            );
        }
    }
}

/// Where a keeper listens whose annexd has this PID.
fn keeper_socket(socket: &Path, pid: u32) -> PathBuf {
    let mut name = socket.as_os_str().to_owned();
    name.push(format!(".keeper-{pid}"));
    name.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_back_as_they_were_written() {
        let all = [
            Kept::Userfaultfd(u64::MAX),
            Kept::Process(4711),
            Kept::Table(3),
            Kept::Ledger,
            Kept::Extents,
            Kept::Slots,
            Kept::Spill,
            Kept::LogPages,
            Kept::Forked(u32::MAX, 7),
            Kept::Ring(5),
            Kept::Bell(5),
            Kept::Memory(6),
            Kept::Pagemap(6),
            Kept::Stub(6),
            Kept::Member(4711),
            Kept::Events,
        ];
        for kept in all {
            let (kind, which) = kept.encode();
            assert_eq!(Kept::decode(kind, which), Some(kept));
            assert_eq!(store::parse(&store::name(kept)), Some(kept));
        }
        assert_eq!(Kept::decode(0, 0), None);
    }
}
