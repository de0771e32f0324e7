//! The pool: other machines' memory as one store of 4 KiB slots, replicated, checked, leased.
//!
//! The pager and the KV see [`Pool`] (reserve, retain, release slots; how full, how well) and
//! [`Lane`]s (read and write them). They never see a donor, a fabric or an rkey; the pool never
//! sees a process.
//!
//! # Threads
//! - A **lane** belongs to the thread that uses it: reads and writes, over its own endpoints. It
//!   takes no lock and waits for nobody.
//! - One **donor thread** per donor keeps the control connection: hello, leases, renewal,
//!   reconnection with back-off; it opens endpoints for lanes. It may block on the network.
//! - The **coordinator** is the one who decides: which donors a new extent goes to, when one is
//!   given back, when a donor's replicas are stale or lost and where others are made. It never
//!   blocks on the network; its decisions are made by `book`, which is pure.
//! - The **spill file**, if there is one, is a donor that nobody prefers (`spill`).
//! - The **repair thread** copies what syncing replicas lack, rewrites pages that decayed, and
//!   looks for such pages. It has a lane of its own.
//!
//! # State
//! Where the replicas lie (`extents`) and what each slot holds (`slots`) is in two memfds with
//! documented layouts, so that the next annexd can take them over. Everything else can be made anew
//! from them and from what the agents say.
//!
//! # What holds
//! - A replica that is *live* has every write that was reported done. One that missed a write is
//!   not read before it got it. (`replicas`)
//! - No byte reaches the owner of a lane that does not have the tag of what was last written
//!   to its slot, unless it asks for a piece of a slot, which it verifies itself.
//! - A slot is not reused before every operation on it is completed, nor within a lease's time
//!   after a write to it whose end was never seen.

mod config;
mod coordinator;
mod core;
mod donor;
mod error;
mod io;
mod lack;
mod metadata;
mod pool;
mod repair;
#[cfg(test)]
mod sim;
mod spill;

pub use annex_fabric::ErrorKind;
pub use config::{ConfigError, DonorConfig, MAX_REPLICAS, PoolConfig, TransportChoice};
pub use donor::dial;
pub use donor::tls::TlsError;
pub use error::{DonorError, IoError, LaneError, PoolError};
pub use io::buffer::Buf;
pub use io::lane::Lane;
pub use io::request::{Busy, Done, Part};
pub use metadata::recount::References;
pub use metadata::slots::SlotRun;
pub use pool::{Pool, PoolState, Terms};
pub use spill::{Spill, SpillConfig, SpillError};
