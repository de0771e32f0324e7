//! The lease board: how a client on the same host knows, without asking, that a lease still holds.
//!
//! The agent owns a memfd with one entry of 64 bytes (a cache line) per slab. Clients get it
//! through a descriptor that was opened read-only, which can't be mapped to write. (A seal against
//! writing would bind the agent's own successor as well.)
//!
//! ```text
//!  0  rkey         8   of the lease; 0 = never lent
//!  8  expiry       8   CLOCK_MONOTONIC in nanoseconds; 0 = revoked
//! 16  incarnation  8   of the agent that granted it
//! 24  zeros       40
//! ```
//! Little-endian, each number written and read whole. A new lease is written with its expiry last,
//! a revocation clears the expiry first; rkeys are random and never come back. So an entry that
//! shows the expected rkey and incarnation and an expiry in the future is that lease, and it holds.
//! A client looks before an operation and again after it: the bytes that it read in between were
//! those of its own lease.
//!
//! An agent that dies renews nothing: its leases run out on the board by themselves. Until then its
//! client may go on: what it writes lies in the slab's memfd, which an agent that is restarted
//! takes over. That one takes the board over too, and before it does anything else it revokes every
//! entry ([`Board::reopen`]): no operation under an old key succeeds from then on. Without a board
//! that outlives the agent, the memory is gone with it, and what clients still write reaches
//! nobody.

use annex_shared::ids::{Incarnation, Rkey};
use annex_shared::memfd;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// Bytes per entry.
pub const ENTRY_LEN: usize = 64;

/// One slab's entry, in shared memory.
#[derive(Debug)]
#[repr(C, align(64))]
struct Entry {
    rkey: AtomicU64,
    expiry: AtomicU64,
    incarnation: AtomicU64,
    reserved: [AtomicU64; 5],
}

const _: () = assert!(size_of::<Entry>() == ENTRY_LEN);

/// Nanoseconds of `CLOCK_MONOTONIC`, the clock that all processes of a host share.
#[inline]
pub fn monotonic_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is a valid timespec; CLOCK_MONOTONIC exists on every Linux, so the call can't
    // fail.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// The agent's side: the one writer.
#[derive(Debug)]
pub struct Board {
    fd: OwnedFd,
    /// The same memory, read-only.
    shown: OwnedFd,
    entries: Mapping,
}

impl Board {
    /// A board of `slabs` entries, all revoked.
    pub fn create(slabs: u32) -> io::Result<Board> {
        let fd = memfd::create(c"annex-lease-board", slabs.max(1) as usize * ENTRY_LEN)?;
        // So that nobody opens it anew to write by mere accident.
        nix::sys::stat::fchmod(&fd, nix::sys::stat::Mode::S_IRUSR)?;
        Board::reopen(fd)
    }

    /// Takes over the board of an agent that is gone, and revokes every lease on it.
    pub fn reopen(fd: OwnedFd) -> io::Result<Board> {
        let len = sealed_len(&fd)?;
        let entries = Mapping::new(fd.as_fd(), len as usize, true)?;
        let shown = std::fs::File::open(format!("/proc/self/fd/{}", fd.as_raw_fd()))?.into();
        let board = Board { fd, shown, entries };
        (0..board.slots()).for_each(|slot| board.revoke(slot));
        Ok(board)
    }

    /// What goes to clients: good for reading only.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.shown.as_fd()
    }

    /// What an agent's successor needs for [`Board::reopen`].
    pub fn own_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Entries on the board.
    pub fn slots(&self) -> u32 {
        self.entries.slots()
    }

    /// Grants the slab at `slot` under `rkey` until `expiry_ns` (see [`monotonic_ns`]).
    ///
    /// # Panics
    /// This and the other setters: if `slot` is not on the board.
    pub fn grant(&self, slot: u32, rkey: Rkey, incarnation: Incarnation, expiry_ns: u64) {
        let entry = self.entry(slot);
        entry.expiry.store(0, Ordering::Relaxed);
        fence(Ordering::Release);
        entry.rkey.store(rkey.0.to_le(), Ordering::Relaxed);
        entry.incarnation.store(incarnation.0.to_le(), Ordering::Relaxed);
        entry.expiry.store(expiry_ns.to_le(), Ordering::Release);
    }

    /// Moves the expiry of a granted lease.
    pub fn renew(&self, slot: u32, expiry_ns: u64) {
        self.entry(slot).expiry.store(expiry_ns.to_le(), Ordering::Release);
    }

    /// Ends the lease at once. After this no operation of a client that starts is executed, and
    /// none that is under way succeeds.
    pub fn revoke(&self, slot: u32) {
        let entry = self.entry(slot);
        entry.expiry.store(0, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        entry.rkey.store(0, Ordering::SeqCst);
    }

    fn entry(&self, slot: u32) -> &Entry {
        self.entries.entry(slot).expect("a slab's slot is on the board")
    }
}

/// Bytes of the longest board: of four million slabs.
const LONGEST: u64 = 256 << 20;

/// A client's side: read-only.
#[derive(Debug)]
pub struct BoardView {
    entries: Mapping,
}

impl BoardView {
    /// Maps a board received from an agent.
    ///
    /// # Errors
    /// Also if it could still be truncated, since reading past its new end would kill this process,
    /// and if it is longer than any: all of it is made present.
    pub fn map(fd: &OwnedFd) -> io::Result<BoardView> {
        let len = sealed_len(fd)?;
        if len > LONGEST {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the agent's lease board is larger than any is"));
        }
        Ok(BoardView { entries: Mapping::new(fd.as_fd(), len as usize, false)? })
    }

    /// Entries on the board.
    pub fn slots(&self) -> u32 {
        self.entries.slots()
    }

    /// Does this lease hold at `now_ns`? An unknown slot holds no lease.
    #[inline]
    pub fn holds(&self, slot: u32, rkey: Rkey, incarnation: Incarnation, now_ns: u64) -> bool {
        let Some(entry) = self.entries.entry(slot) else { return false };
        u64::from_le(entry.expiry.load(Ordering::Acquire)) > now_ns
            && u64::from_le(entry.rkey.load(Ordering::Acquire)) == rkey.0
            && u64::from_le(entry.incarnation.load(Ordering::Acquire)) == incarnation.0
    }
}

/// The length of a memfd that can't be truncated any more.
pub(super) fn sealed_len(fd: &OwnedFd) -> io::Result<u64> {
    memfd::fixed_len(fd)?
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "the agent's memfd is not sealed against truncation"))
}

/// A shared mapping of the entries.
#[derive(Debug)]
struct Mapping {
    base: *const Entry,
    len: usize,
}

// SAFETY: the mapping is shared memory of atomics, without thread affinity.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new(fd: BorrowedFd<'_>, len: usize, write: bool) -> io::Result<Mapping> {
        if len < ENTRY_LEN {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the lease board is empty"));
        }
        let protection = if write { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_READ };
        let flags = libc::MAP_SHARED | libc::MAP_POPULATE;
        // SAFETY: a fresh mapping at an address of the kernel's choice touches nothing that exists.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, flags, fd.as_raw_fd(), 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Mapping { base: base.cast(), len })
    }

    fn slots(&self) -> u32 {
        (self.len / ENTRY_LEN) as u32
    }

    #[inline]
    fn entry(&self, slot: u32) -> Option<&Entry> {
        // SAFETY: in bounds of the mapping, which is page-aligned, lives as long as self and can't
        // be truncated (sealed); all fields are atomics, for which any bytes are valid.
        (slot < self.slots()).then(|| unsafe { &*self.base.add(slot as usize) })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped in `new` with this length; references into it borrow self.
        unsafe { libc::munmap(self.base.cast_mut().cast(), self.len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RKEY: Rkey = Rkey(0xfeed);
    const INCARNATION: Incarnation = Incarnation(5);

    fn pair() -> (Board, BoardView) {
        let board = Board::create(3).unwrap();
        let view = BoardView::map(&board.fd().try_clone_to_owned().unwrap()).unwrap();
        (board, view)
    }

    #[test]
    fn a_lease_holds_from_grant_to_expiry_or_revocation() {
        let (board, view) = pair();
        assert!(!view.holds(1, RKEY, INCARNATION, 0));
        board.grant(1, RKEY, INCARNATION, 100);
        assert!(view.holds(1, RKEY, INCARNATION, 99));
        assert!(!view.holds(1, RKEY, INCARNATION, 100));
        board.renew(1, 200);
        assert!(view.holds(1, RKEY, INCARNATION, 100));
        board.revoke(1);
        assert!(!view.holds(1, RKEY, INCARNATION, 0));
    }

    #[test]
    fn another_key_incarnation_or_slot_does_not_hold() {
        let (board, view) = pair();
        board.grant(1, RKEY, INCARNATION, 100);
        assert!(!view.holds(1, Rkey(1), INCARNATION, 0));
        assert!(!view.holds(1, RKEY, Incarnation(6), 0));
        assert!(!view.holds(0, RKEY, INCARNATION, 0));
        assert!(!view.holds(3, RKEY, INCARNATION, 0));
    }

    #[test]
    fn a_client_can_not_map_the_board_to_write() {
        let (board, _view) = pair();
        assert_eq!(Mapping::new(board.fd(), ENTRY_LEN, true).unwrap_err().raw_os_error(), Some(libc::EACCES));
    }

    #[test]
    fn a_board_that_is_taken_over_says_dead_to_those_who_mapped_it_before() {
        let (board, view) = pair();
        board.grant(1, RKEY, INCARNATION, u64::MAX);
        let kept = board.own_fd().try_clone_to_owned().unwrap();
        drop(board);
        assert!(view.holds(1, RKEY, INCARNATION, 0), "while the agent is away a lease runs on");
        let board = Board::reopen(kept).unwrap();
        assert!(!view.holds(1, RKEY, INCARNATION, 0));
        board.grant(1, Rkey(2), Incarnation(6), 100);
        assert!(!view.holds(1, RKEY, INCARNATION, 0));
        assert!(view.holds(1, Rkey(2), Incarnation(6), 0));
    }

    #[test]
    fn a_board_that_could_be_truncated_is_refused() {
        use nix::sys::memfd::{MFdFlags, memfd_create};
        let fd = memfd_create(c"unsealed", MFdFlags::MFD_ALLOW_SEALING).unwrap();
        nix::unistd::ftruncate(&fd, ENTRY_LEN as i64).unwrap();
        assert!(BoardView::map(&fd).unwrap_err().to_string().contains("not sealed"));
    }
}
