//! What the store counts.

/// How it stands and what has happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Stats {
    pub keys: u64,
    /// Bytes of records, in units of 64.
    pub used: u64,
    /// Bytes of pool that records lie in, one replica counted.
    pub held: u64,
    /// The most that records have taken.
    pub peak: u64,
    /// annexd's own memory for it.
    pub local: u64,
    pub cached: u64,
    /// Log pages that wait to be written, and writes under way.
    pub waiting: u64,
    pub flights: u64,
    /// Slots taken from the pool and not used yet.
    pub slot_reserve: u64,
    pub hits: u64,
    pub misses: u64,
    pub cache_hits: u64,
    pub reads: u64,
    pub writes: u64,
    pub expired: u64,
    pub evicted: u64,
    pub moved: u64,
    /// Records that could not be taken over.
    pub lost: u64,
    /// Thousandths of what there is to load; 1000: all.
    pub loaded: u64,
}
