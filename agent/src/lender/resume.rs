//! Taking over what an earlier agent left in the store.
//!
//! Nothing is served yet while this runs. First the old board is revoked: from then on no operation
//! under an old key succeeds, whoever has the slabs mapped. Then every slab that the lease state
//! vouches for and whose memory is there goes on; a lease without its memory is over, and memory
//! without a lease is thrown away, since nobody knows whether it was zeroed.

use super::memory::Memory;
use crate::config::Terms;
use crate::lease::Saved;
use crate::slab::{Slab, punch};
use crate::store::saved::{LeaseState, SavedError, SavedMemory};
use crate::store::{BOARD, Found, LEASES, SlabName, Store, inode};
use annex_fabric::shm::Board;
use annex_shared::ids::SlabId;
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::AtomicBool;
use tracing::{error, info, warn};

/// The agent's own books could not be made or taken over.
#[derive(Debug, thiserror::Error)]
pub enum ResumeError {
    #[error(transparent)]
    Saved(#[from] SavedError),
    #[error("failed to create the lease board: {0}")]
    Board(#[source] io::Error),
}

pub(super) struct Inheritance {
    pub(super) state: LeaseState,
    pub(super) board: Board,
    pub(super) saved: Saved,
    pub(super) memory: Vec<(SlabId, Memory)>,
    /// Places that there are: for the capacity, for what is lent over it, and for more to come.
    pub(super) slots: u32,
}

pub(super) fn take_over(terms: &Terms, store: &Store, mut found: Found) -> Result<Inheritance, ResumeError> {
    let (state, mut saved, places) = match found.remove(LEASES).and_then(|mut fds| fds.pop()) {
        Some(fd) => LeaseState::open(fd, terms.slab_size)?,
        None => {
            let state = LeaseState::create(terms.slab_size)?;
            store.keep(LEASES, state.fd());
            (state, Saved::default(), HashMap::new())
        }
    };
    let needed = saved.leases.iter().map(|l| l.slab.0 + 1).max().unwrap_or(0).max(terms.capacity_slabs);
    let boards = found.remove(BOARD).unwrap_or_default();
    let board = board(store, boards, needed, terms.most_slabs).map_err(ResumeError::Board)?;
    let slots = board.slots();

    let mut memory = HashMap::new();
    for (name, fds) in found {
        let Some(slab_name) = SlabName::parse(&name) else {
            warn!("{} had '{name}' for this agent, which knows nothing of it", store.what());
            continue;
        };
        let is_lent = fds.into_iter().fold(false, |is_lent, fd| {
            is_lent
                | adopt(terms, slab_name, fd, places.get(&slab_name.slab)).is_some_and(|m| {
                    memory.insert(slab_name.slab, m);
                    true
                })
        });
        if !is_lent {
            store.forget(&name);
        }
    }

    let before = saved.leases.len();
    saved.leases.retain(|lease| {
        let is_here = memory.contains_key(&lease.slab);
        if !is_here {
            state.end(lease.slab);
        }
        is_here
    });
    saved.claims.retain(|claim| {
        let holds = saved.leases.iter().any(|l| l.client == claim.client);
        if !holds {
            state.forget(claim.client);
        }
        holds
    });
    let (taken, lost) = (saved.leases.len(), before - saved.leases.len());
    if lost > 0 {
        error!("{} did not have the memory of {lost} lent slabs: they are lost", store.what());
    }
    if taken > 0 {
        info!("{taken} lent slabs are taken over from {}", store.what());
    }
    Ok(Inheritance { state, board, saved, memory: memory.into_iter().collect(), slots })
}

/// The board, with every old lease on it revoked; another one, for `most` slabs, if it is too
/// small.
fn board(store: &Store, found: Vec<OwnedFd>, slots: u32, most: u32) -> io::Result<Board> {
    let mut fits = None;
    for fd in found {
        let old = Board::reopen(fd)?;
        match old.slots() >= slots {
            true => fits = Some(old),
            false => store.forget(BOARD),
        }
    }
    match fits {
        Some(board) => Ok(board),
        None => {
            let board = Board::create(slots.max(most))?;
            store.keep(BOARD, board.own_fd());
            Ok(board)
        }
    }
}

/// The slab, if the lease state vouches for exactly this memory. Else its memory is freed.
fn adopt(terms: &Terms, name: SlabName, fd: OwnedFd, expected: Option<&SavedMemory>) -> Option<Memory> {
    // Fits: a slab is at most 1 GiB.
    let len = terms.slab_size as usize;
    let Some(saved) = expected.filter(|saved| inode(fd.as_fd()).is_ok_and(|i| i == saved.inode)) else {
        punch(fd.as_fd(), len);
        return None;
    };
    match Slab::adopt(fd, len) {
        Ok(slab) => Some(Memory { slab, name, is_shared: AtomicBool::new(saved.is_shared), is_stale: saved.is_shared }),
        Err(e) => {
            error!("{} can't be taken over: {e}", name.slab);
            None
        }
    }
}
