//! The agent's side of the fabric: who may touch which bytes, for every operation.
//!
//! A target serves one connection on the thread that accepted it: [`tcp::serve`] executes
//! operations, [`shm::serve`] hands out memory, [`verbs::serve`] registers it with an RDMA device.
//! None knows what a lease is. They ask [`SlabAccess`], which the lease table implements: `tcp`
//! *for every operation*, and an operation it does not allow moves no byte. [`Connections`] knows
//! all that are open, so that those of a client whose session is over can be closed.
//! [`Registrations`] knows what is registered, so that a lease's end ends it.
//!
//! ```text
//! accept ─ opening::open ─┬─ Control → the control server
//!                         ├─ Data(caller) → tcp::serve(stream, &caller, &access, &connections)
//!                         └─ Verbs(caller) → verbs::serve(stream, &caller, &access, …, device)
//! the Unix socket ─ Preamble ─ Shm(proof) → shm::serve(stream, &proof, &access, &connections)
//! ```
//! Shm comes over the Unix socket only. All return when the connection is over, and leave nothing
//! behind.

mod buffers;
mod connections;
mod lane_keys;
mod registrations;
pub mod shm;
pub mod tcp;
mod turns;
pub mod verbs;

pub use buffers::Budget;
pub use connections::{Connections, Guest};
pub use lane_keys::LaneKeys;
pub use registrations::Registrations;
pub use turns::Turns;

use annex_fabric::ErrorKind;
use annex_fabric::verbs::{ProtectionDomain, RegisterError, Window};
use annex_shared::ids::{ClientId, RemoteAddr, Rkey};
use annex_shared::preamble::{AdmitError, MAC_LEN, Proof, write_answer};
use std::io::{self, Write};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

/// How long a fence waits for another connection's thread, which at that time has at most one copy
/// to finish, or its queue pairs to destroy.
const FENCE_PATIENCE: Duration = Duration::from_secs(2);

/// What the lease table answers to the targets. Called by many threads at once.
pub trait SlabAccess: Send + Sync {
    /// May this client open a data or shm connection? Checks incarnation, client and session key.
    /// Asked once per connection.
    fn admit(&self, proof: &Proof) -> Result<(), AdmitError>;

    /// Runs `f` on the memory at `addr` of the slab leased under `rkey`, and keeps the slab from
    /// being revoked, zeroed or unmapped until `f` returns (a read guard per slab: operations of
    /// several connections run side by side).
    ///
    /// `f` is called exactly once if the answer is `Ok`, and not at all else. It copies memory and
    /// does nothing that waits: no I/O, no lock. The pointer is good for `len` bytes; other
    /// connections (and, for shm, other processes) may read and write them at the same time. A
    /// slab's base is at least page-aligned, so the pointer is as aligned as `addr` is.
    ///
    /// # Errors
    /// [`ErrorKind::RemoteAccess`] if the key is unknown, is not this client's, the lease has
    /// expired or was revoked, or `addr + len` (checked arithmetic) does not lie in the slab.
    /// [`ErrorKind::RemoteOperation`] for the agent's own trouble.
    fn with_slab(
        &self,
        who: ClientId,
        rkey: Rkey,
        addr: RemoteAddr,
        len: usize,
        f: &mut dyn FnMut(*mut u8),
    ) -> Result<(), ErrorKind>;

    /// The slab's memory as a descriptor, for `shm`. From the first time this succeeds for a lease,
    /// the slab counts as *mapped by the client* for good: a client can't be made to unmap, so when
    /// the lease ends the slab's memfd is dropped and a fresh one takes its place before it is lent
    /// again. A stale mapping then touches memory that nobody else will ever see.
    ///
    /// The memfd must be sealed with `F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL`: the client
    /// refuses one that could be truncated under its feet.
    ///
    /// # Errors
    /// As [`SlabAccess::with_slab`].
    fn memfd(&self, who: ClientId, rkey: Rkey) -> Result<SlabMemfd, ErrorKind>;

    /// Registers the slab leased under `rkey` in a client's protection domain, for its device to
    /// read, write and swap words in. The connection of that number has it until the lease ends or
    /// [`SlabAccess::unregister`]: before the slab's memory is cleaned, moved or freed.
    ///
    /// # Errors
    /// As [`SlabAccess::with_slab`], or the device's.
    fn register(
        &self,
        who: ClientId,
        rkey: Rkey,
        connection: u64,
        domain: &Arc<ProtectionDomain>,
    ) -> Result<Window, RegistrationError>;

    /// Undoes all registrations of a connection that is over.
    fn unregister(&self, connection: u64);

    /// The lease board's descriptor (`annex_fabric::shm::Board::fd`), `None` if this agent does not
    /// offer shm.
    fn board(&self) -> Option<BorrowedFd<'_>>;
}

/// A slab could not be registered.
#[derive(Debug, thiserror::Error)]
pub enum RegistrationError {
    #[error(transparent)]
    Lease(#[from] ErrorKind),
    #[error(transparent)]
    Device(#[from] RegisterError),
}

/// Who opened a connection, and what it is answered.
#[derive(Clone, Copy, Debug)]
pub struct Caller {
    pub proof: Proof,
    /// Over TLS: shows that this agent knows the control session's key.
    pub answer: Option<[u8; MAC_LEN]>,
}

impl From<Proof> for Caller {
    fn from(proof: Proof) -> Caller {
        Caller { proof, answer: None }
    }
}

impl Caller {
    /// Tells the client that it is admitted, under which number.
    fn welcome(&self, to: &mut impl Write, number: u64) -> io::Result<()> {
        write_answer(to, Ok(number))?;
        self.answer.map_or(Ok(()), |mac| to.write_all(&mac))
    }
}

/// One slab's memory, to be sent to a client on the same host.
#[derive(Debug)]
pub struct SlabMemfd {
    /// A duplicate of the slab's memfd.
    pub fd: OwnedFd,
    /// Where the slab starts in it, page-aligned.
    pub offset: u64,
    /// Bytes in the slab.
    pub len: u64,
    /// The slab's entry on the lease board.
    pub board_slot: u32,
}
