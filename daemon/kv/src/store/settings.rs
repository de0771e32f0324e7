//! What may be changed while the store runs.

use super::usage::Policy;

/// What may be changed while the store runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Bytes that records may take in the pool, one replica counted; 0: as much as the pool has.
    pub limit: u64,
    pub policy: Policy,
    /// Of the counter of LFU policies: the higher, the more slowly it grows.
    pub log_factor: u32,
    /// Minutes without use that cost one of its counts.
    pub decay: u32,
    /// Keys whose time is over are looked for, not only noticed.
    pub expires_actively: bool,
}
