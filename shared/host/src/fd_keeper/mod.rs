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
mod process;
mod store;

pub use heir::{HeirError, Inheritance, find};
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

/// What a kept descriptor is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kept {
    /// A space's userfaultfd, by the space's number.
    Userfaultfd(u64),
    /// A process, by its PID: whom the keeper ends if no successor comes.
    Process(i32),
    /// A space's page table, by the space's number.
    Table(u64),
    /// The apps.
    Ledger,
    /// The pool's extent table.
    Extents,
    /// The pool's slot table.
    Slots,
    /// The spill file, and with it its lock.
    Spill,
    /// The KV API's sheet table.
    Sheets,
    /// The userfaultfd that a space's FORK brought, which was read and not applied; by the space's
    /// number and the change's.
    Forked(u32, u32),
    /// The ring of a region, and its bell, by the space's number.
    Ring(u64),
    Bell(u64),
    /// What is open of an address space (`/proc/PID/mem`, `/proc/PID/pagemap`), by the space's
    /// number.
    Memory(u64),
    Pagemap(u64),
    /// A space's stub (a pidfd), by the space's number: it is ended once its program is.
    Stub(u64),
    /// A process of an app that has nothing evicted, by its PID: it needs no successor, but is to
    /// be known to one.
    Member(i32),
}

impl Kept {
    /// As two numbers: kind (never 0) and which.
    fn encode(self) -> (u32, u64) {
        match self {
            Kept::Userfaultfd(space) => (1, space),
            Kept::Process(pid) => (2, pid as u64),
            Kept::Table(space) => (3, space),
            Kept::Ledger => (4, 0),
            Kept::Extents => (5, 0),
            Kept::Slots => (6, 0),
            Kept::Spill => (8, 0),
            Kept::Sheets => (9, 0),
            Kept::Ring(space) => (10, space),
            Kept::Bell(space) => (11, space),
            Kept::Memory(space) => (12, space),
            Kept::Pagemap(space) => (13, space),
            Kept::Stub(space) => (14, space),
            Kept::Member(pid) => (15, pid as u64),
            Kept::Forked(space, change) => (7, u64::from(space) << 32 | u64::from(change)),
        }
    }

    /// Whether it is of use without the processes that it is about: only then does the service
    /// manager get it too.
    fn is_for_store(self) -> bool {
        use Kept::{Forked, Member, Memory, Pagemap, Process, Stub};
        !matches!(self, Process(_) | Forked(..) | Memory(_) | Pagemap(_) | Stub(_) | Member(_))
    }

    fn decode(kind: u32, which: u64) -> Option<Kept> {
        Some(match kind {
            1 => Kept::Userfaultfd(which),
            2 => Kept::Process(which as i32),
            3 => Kept::Table(which),
            4 => Kept::Ledger,
            5 => Kept::Extents,
            6 => Kept::Slots,
            8 => Kept::Spill,
            9 => Kept::Sheets,
            10 => Kept::Ring(which),
            11 => Kept::Bell(which),
            12 => Kept::Memory(which),
            13 => Kept::Pagemap(which),
            14 => Kept::Stub(which),
            15 => Kept::Member(which as i32),
            7 => Kept::Forked((which >> 32) as u32, which as u32),
            _ => return None,
        })
    }
}

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
            Kept::Sheets,
            Kept::Forked(u32::MAX, 7),
            Kept::Ring(5),
            Kept::Bell(5),
            Kept::Memory(6),
            Kept::Pagemap(6),
            Kept::Stub(6),
            Kept::Member(4711),
        ];
        for kept in all {
            let (kind, which) = kept.encode();
            assert_eq!(Kept::decode(kind, which), Some(kept));
            assert_eq!(store::parse(&store::name(kept)), Some(kept));
        }
        assert_eq!(Kept::decode(0, 0), None);
    }
}
