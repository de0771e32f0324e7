//! The fabric: one-sided operations on donors' slabs, with completions.
//!
//! The model is that of RDMA verbs, whatever carries it. An [`Endpoint`] is one queue pair between
//! one thread (a *lane*) and one donor. Operations are *posted* with a tag, handed over together by
//! one *ring* of the doorbell, and come back as [`Completion`]s from *poll*. To sleep, a lane
//! *arms* the endpoint and waits on its event descriptor. Local bytes always lie in an [`Arena`],
//! memory that is registered once and stays where it is; an operation names a range of it, never a
//! pointer.
//!
//! An operation that fails says why in the verbs' vocabulary ([`ErrorKind`]). After an error that a
//! queue pair would not survive ([`ErrorKind::is_fatal`]) the endpoint completes everything else as
//! `Flushed` and must be opened anew from its [`Connector`].
//!
//! Providers: [`verbs`] (RDMA: InfiniBand, RoCE, Soft-RoCE; the donor's device serves it), [`tcp`]
//! (any network; the agent serves it), [`shm`] (a donor on the same host), and [`mod@file`] (no
//! donor at all: a file on this host, as the last tier). [`faulty`] wraps any of them for tests.

mod arena;
pub mod faulty;
pub mod file;
mod ledger;
mod opening;
mod prepared;
pub mod shm;
pub mod tcp;
pub mod verbs;

use annex_identity::stream::HandshakeError;
use annex_shared::ids::{RemoteAddr, Rkey};
use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

pub use annex_shared::transport::Transport;
pub use arena::{Arena, ArenaError};
pub use opening::SessionTls;

/// What an operation does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpKind {
    /// Remote bytes into the arena.
    Read,
    /// Arena bytes to the remote side. Complete means: placed in the donor's memory.
    Write,
    /// Atomically replaces the aligned 8 bytes at the remote address with `swap` if they equal
    /// `expect` (little-endian). The completion's `value` is what was there before. The local range
    /// is unused.
    CompareSwap { expect: u64, swap: u64 },
}

impl fmt::Display for OpKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            OpKind::Read => "READ",
            OpKind::Write => "WRITE",
            OpKind::CompareSwap { .. } => "COMPARE_SWAP",
        })
    }
}

/// One posted operation.
#[derive(Clone, Copy, Debug)]
pub struct Op {
    /// Comes back in the completion; the endpoint gives it no meaning.
    pub tag: u64,
    pub kind: OpKind,
    /// Byte offset of the local range in the arena the endpoint was opened with.
    pub local: usize,
    /// Bytes to move (8 for COMPARE_SWAP). At most [`MAX_OP_LEN`].
    pub len: u32,
    pub rkey: Rkey,
    pub addr: RemoteAddr,
}

impl Op {
    /// Is the local range one that this operation may use? If not, it completes with
    /// [`ErrorKind::LocalProtection`].
    pub(crate) fn fits(&self, arena: &Arena) -> bool {
        match self.kind {
            OpKind::CompareSwap { .. } => self.len == 8,
            OpKind::Read | OpKind::Write => {
                let end = self.local.checked_add(self.len as usize);
                self.len <= MAX_OP_LEN && end.is_some_and(|end| end <= arena.len())
            }
        }
    }
}

/// The largest single operation, in bytes.
pub const MAX_OP_LEN: u32 = 4 << 20;

/// Why an operation failed. Small and `Copy`: the fast path must not allocate to report an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum ErrorKind {
    /// The peer refused: wrong key, another client's key, an expired lease, an old incarnation, or
    /// out of bounds. Where the peer is a device (`verbs`) that ends the endpoint, too; what can be
    /// told on this side does not.
    #[error("remote access error")]
    RemoteAccess,
    /// The local range lies outside the arena, is too long or misaligned.
    #[error("local protection error")]
    LocalProtection,
    /// The peer did not answer in time or the connection broke.
    #[error("retry exceeded")]
    RetryExceeded,
    /// The peer could not do it for a reason of its own.
    #[error("remote operation error")]
    RemoteOperation,
    /// Another operation on this endpoint failed for good; this one was never done or its outcome
    /// is unknown.
    #[error("flushed")]
    Flushed,
}

impl ErrorKind {
    /// True if the endpoint is of no further use and must be opened anew. After other errors it may
    /// be as well: see [`Endpoint::is_broken`].
    pub fn is_fatal(self) -> bool {
        matches!(self, ErrorKind::RetryExceeded | ErrorKind::Flushed)
    }
}

/// The outcome of one operation. The order of completions is not that of posting.
#[derive(Clone, Copy, Debug)]
pub struct Completion {
    pub tag: u64,
    pub result: Result<(), ErrorKind>,
    /// For COMPARE_SWAP: the 8 bytes found at the address, little-endian. Else 0.
    pub value: u64,
}

/// `post` found the queue at its depth: ring, poll and try again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the send queue is full")]
pub struct QueueFull;

/// One lane's queue to one donor. Used by one thread at a time; nothing in it blocks, and nothing
/// allocates once it is open.
pub trait Endpoint: Send {
    fn transport(&self) -> Transport;

    /// A thread of the donor on this very host executes the operations, on the CPUs of the thread
    /// that waits for them.
    fn is_served_here(&self) -> bool {
        false
    }

    /// Operations that may be outstanding at once.
    fn depth(&self) -> usize;

    /// Queues an operation. It may start before [`Endpoint::ring`], and starts at that call at the
    /// latest.
    fn post(&mut self, op: Op) -> Result<(), QueueFull>;

    /// The doorbell: hands everything posted to the provider. Failures come as completions.
    fn ring(&mut self);

    /// Does a READ on the spot, if this provider can and nothing has to be waited for, and tells
    /// how long it took; its tag means nothing then. `None`: nothing was done, post it.
    fn read_now(&mut self, _op: &Op) -> Option<Result<Duration, ErrorKind>> {
        None
    }

    /// Says that these bytes will be read with [`Endpoint::read_now`] soon, so that they can be
    /// brought nearer meanwhile. Nothing depends on it.
    fn prefetch_hint(&mut self, _rkey: Rkey, _addr: RemoteAddr, _len: u32) {}

    /// Says that what is written from now on is not read back soon, so that it need not be kept
    /// near. Nothing depends on it.
    fn write_past_caches(&mut self) {}

    /// Appends finished operations to `done`; at most [`Endpoint::depth`] of them. Also drives the
    /// provider (sends what did not fit, notices time-outs), so a lane with outstanding operations
    /// calls it at least ten times a second.
    fn poll(&mut self, done: &mut Vec<Completion>);

    /// Prepares to sleep: from now on the event descriptor becomes readable when something
    /// completes that was rung before. What is rung afterwards wakes nobody until this is called
    /// again. True means that a completion may be there already: poll again before sleeping.
    fn arm(&mut self) -> bool;

    /// The descriptor to sleep on; `None` if operations are always complete after `ring` (shm).
    fn event_fd(&self) -> Option<BorrowedFd<'_>>;

    /// Breaks the endpoint, as a time-out does: what is outstanding fails at the next poll. Nothing
    /// to do where operations can't hang.
    fn give_up(&mut self) {}

    /// True after a fatal error: nothing more will be done through this endpoint.
    fn is_broken(&self) -> bool;
}

/// Opens endpoints to one donor. Held by the control plane; may block.
pub trait Connector: Send + Sync {
    fn transport(&self) -> Transport;

    /// A new endpoint whose operations work on `arena`.
    fn open(&self, arena: &Arc<Arena>) -> Result<Box<dyn Endpoint>, ConnectError>;
}

/// An endpoint could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    #[error("failed to connect to the donor's data port {peer}: {source}")]
    Unreachable { peer: String, source: std::io::Error },
    #[error("failed to connect to the donor's data port {peer}: the TLS handshake failed: {source}")]
    Tls { peer: String, source: HandshakeError },
    #[error("the donor at {peer} refused the data connection: {reason}")]
    Refused { peer: String, reason: String },
    #[error("failed to set up the {transport} endpoint to {peer}: {source}")]
    Local { transport: Transport, peer: String, source: std::io::Error },
}
