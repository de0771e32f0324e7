//! The verbs provider: RDMA over InfiniBand, RoCE or Soft-RoCE. The donor's device serves the
//! operations, no CPU of the donor does.
//!
//! ```text
//!  VerbsConnector ── control connection (`protocol`) ── agent: one protection domain
//!    │ open(arena)                                        │
//!    ├─ endpoint ═══ queue pair (RC) ══════════════════ queue pair
//!    └─ endpoint ═══ queue pair (RC) ══════════════════ queue pair ─── registered slabs
//! ```
//! The control connection has `Role::Verbs`; each has a protection domain of its own.
//!
//! - *Keys.* The pool knows slabs by the random 64-bit keys of their leases.
//!   [`VerbsConnector::prepare`] has the agent register the slab in the connection's protection
//!   domain, and keeps what the device calls it ([`Window`]). An operation with a key that is not
//!   prepared, or outside of the slab, is refused on this side; the donor's device checks again.
//! - *Fencing.* A lease that ends is deregistered before anything else happens to its slab: the
//!   device refuses from then on. A device's key that leaks is of no use through a queue pair of
//!   another domain. What an endpoint that has ended may still have on the wire is done with when
//!   the agent has destroyed its end, which the connector asks for before it opens another.
//! - *Errors.* Any error from the device ends the queue pair. [`status()`] says in plain words what
//!   happened.
//! - *Limits.* Depth and READs in flight are clamped to what the device has, and said ([`limits`]).
//!
//! Each endpoint has a completion queue and a completion channel of its own, since lanes sleep on
//! one descriptor per endpoint in their epoll set anyway; [`alarm`] tells when it is armed.
//! Operations have one local range, so one scatter/gather entry is asked for.
//!
//! Objects of libibverbs are freed by `Drop`, and each holds what it was made of: device ←
//! protection domain ← memory region, queue pair → completion queue. A queue pair's state is its
//! type.

mod alarm;
mod client;
mod device;
mod endpoint;
mod events;
mod gid;
mod library;
mod limits;
mod memory;
pub mod protocol;
mod queue;
mod status;
mod target;

pub use client::{Dial, PrepareError, VerbsConnector, VerbsError};
pub use device::{Device, DeviceChoice, DeviceError, has_device};
pub use events::DeviceEvent;
pub use gid::{Gid, GidEntry, GidKind};
pub use library::LibraryError;
pub use limits::DeviceLimits;
pub use memory::{MemoryRegion, ProtectionDomain, RegisterError, Rights};
pub use protocol::{Party, Window};
pub use status::{Counts, Status, status};
pub use target::{Target, TargetError};
