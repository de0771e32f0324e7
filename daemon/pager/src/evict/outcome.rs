//! What came of an attempt to evict.

/// What came of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// This many pages left local memory.
    Evicted(u64),
    /// The hand went round and found nothing to take.
    NothingCold,
    /// The app is changing its mappings; soon.
    Again,
    /// Nothing left, because a fork had left all of it shared: now it is not.
    Unshared,
    /// The pool is full.
    PoolFull,
    /// No replica took the pages; the app has them back.
    WriteFailed,
    /// The app is frozen.
    NoAnswer,
    /// The space or its stub is gone.
    Dead,
}
