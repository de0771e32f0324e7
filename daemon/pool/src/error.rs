//! Why the pool could not do what it was asked.

use crate::config::ConfigError;
use crate::donor::tls::TlsError;
use crate::metadata::extents::TableError;
use annex_fabric::ArenaError;
use annex_host::mapped::MapError;
use annex_shared::ids::SlotIdx;

/// The pool could not be started, or can't be used now.
#[derive(Debug, thiserror::Error)]
pub enum PoolError {
    #[error("bad pool configuration: {0}")]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Tls(#[from] TlsError),
    #[error("failed to set up the pool's tables: {0}")]
    Table(#[from] TableError),
    #[error("failed to set up the pool's tables: {0}")]
    Map(#[from] MapError),
    #[error("the pool's saved state is damaged: a page is in {0}, which is in no extent")]
    Reference(SlotIdx),
    #[error("the spill file holds pages of running programs but is not configured any more: add [spill] again")]
    SpillMissing,
    #[error("failed to start the pool's thread {name}: {source}")]
    Thread { name: String, source: std::io::Error },
    #[error("failed to start the pool's repair thread: {0}")]
    Lane(#[from] LaneError),
    #[error("no donors are configured: add [[pool.donor]] with an address, or start annexd with --donor HOST:PORT")]
    NoDonors,
    #[error("{up} of {needed} donors needed for {replicas} replicas are up; {missing}")]
    TooFewDonors { up: usize, needed: usize, replicas: u8, missing: String },
}

/// A donor could not be added or removed.
#[derive(Debug, thiserror::Error)]
pub enum DonorError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error("donor {0} is used already")]
    Known(String),
    #[error("there is a donor named {0} already: choose another name")]
    NameTaken(String),
    #[error("the spill file is no donor: remove [spill] from annexd's configuration and start annexd anew")]
    Spill,
    #[error("there is no donor {0}")]
    Unknown(String),
    #[error("several donors call themselves {name}: give the address of one ({addresses})")]
    Ambiguous { name: String, addresses: String },
    #[error("without donor {donor} only {staying} would be left for {replicas} replicas: add another one first")]
    Needed { donor: String, staying: usize, replicas: u8 },
}

/// A lane could not be made.
#[derive(Debug, thiserror::Error)]
pub enum LaneError {
    #[error(transparent)]
    Arena(#[from] ArenaError),
    #[error("failed to set up a lane's event descriptors: {0}")]
    Events(std::io::Error),
    #[error("a lane of {0} pages is more than 16 TiB")]
    TooLarge(usize),
}

/// Why a read or write failed. No byte of a failed read is to be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IoError {
    #[error("no live replica could be reached")]
    Lost,
    #[error("every live replica holds other bytes than were written")]
    Corrupt,
    /// A bug of the caller's: a free slot, a run across extents, a buffer too small.
    #[error("the operation names slots or bytes that it has no right to")]
    Misuse,
}
