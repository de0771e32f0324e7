//! Why the store can't do something.

use super::log_pages::LogPagesError;
use annex_pool::IoError;

/// Why the store could not do it. Display is the RESP error, with its code.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    #[error("OOM command not allowed when used memory > 'maxmemory'.")]
    NoRoom,
    #[error("IOERR the value can't be read: {0}")]
    Unreadable(String),
    #[error("IOERR the value was not written: {0}")]
    Unwritten(IoError),
    #[error("LOADING Redis is loading the dataset in memory")]
    Loading,
}

/// The store can't be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error(transparent)]
    LogPages(#[from] LogPagesError),
    #[error("failed to start the key-value store's way to the pool: {0}")]
    Lane(#[from] annex_pool::LaneError),
    #[error("failed to start the key-value store: {0}")]
    Io(#[from] std::io::Error),
}
