//! The key-value store: keys to values, whose bytes lie in the pool.
//!
//! # The way of a value
//! - *Write*: a [`record`] is appended to the [`log`], written to all replicas with whatever else
//!   is on its way, and then the [`index`] flips to it. Nothing is written in place. The caller
//!   hears of it when all of that is done.
//! - *Read*: the index tells the log page, one READ brings it, the record's checksum and key are
//!   compared. What is still in the log's tail, or in the [`cache`], is not asked for.
//! - *Remove*: a bit in the [`log_pages`] table, and the index forgets. No fabric is involved.
//!
//! # Who is who
//! - [`Store`] is what others may ask; each line of it names who does it.
//! - `engine` is what a store is made of: [`keyspace`] (index, uses, watchers), in it [`records`]
//!   (units, log pages and slots), the [`log`], and `pool_io`, the lane that all tasks share.
//! - `write` and `large` bring a record into the log or into log pages of its own, `flush` from
//!   there into the pool and the index.
//! - `fetch`, `part`, `pieces` and `scan` read; `prefetch_hint` makes that shorter for several keys
//!   together.
//! - [`space`] says which log pages are in use and where the next record goes; `slot_reserve` has
//!   slots of the pool ahead of need; [`compact`] empties log pages that are mostly holes.
//! - [`eviction`] makes room; [`usage`] knows who goes first.
//! - [`recover`] makes the index anew after annexd was killed.
//!
//! # Threads
//! All of it belongs to one thread with an event loop. Tasks wait for their own reads and writes
//! only.
//!
//! # What holds
//! - A write that was reported done is on all live replicas and in the log page table: it survives
//!   annexd, and all donors but one that have it.
//! - The caller holds a lock on the key from before it reads until after it has written (see
//!   [`locks`](crate::locks)). Compaction holds none: what it moves counts only if the key's record
//!   is where it was.
//! - A value is given out only if its record has the checksum it was written with and names the key
//!   that was asked for. Of a part of a value, and of one that is given out in pieces, the pool's
//!   checksums of the record's log pages say the same.

mod background;
mod cache;
mod clock;
mod compact;
mod completion;
mod db;
mod engine;
mod error;
mod eviction;
mod facade;
mod fetch;
mod flush;
pub mod hash;
mod index;
mod keyspace;
mod large;
mod log;
mod log_pages;
mod part;
mod pieces;
mod pool_io;
mod prefetch_hint;
pub mod record;
mod records;
mod recover;
mod scan;
mod settings;
mod slot_reserve;
mod space;
mod statistics;
#[cfg(test)]
pub(crate) mod testbed;
#[cfg(test)]
mod tests;
mod usage;
mod value;
mod watch;
mod watches;
mod write;

pub use clock::{UnixMs, now};
pub use completion::WriteListener;
pub use db::{DATABASES, Db};
pub use error::{OpenError, StoreError};
pub use facade::Store;
pub use keyspace::Spot;
pub use log_pages::{LogPageTable, LogPagesError};
pub use pieces::{LARGE, Pieces};
pub use prefetch_hint::{Soon, TOGETHER};
pub use record::Encoding;
pub use settings::Settings;
pub use statistics::Stats;
pub use usage::Policy;
pub use value::{Known, Value};
pub use watch::Watch;
