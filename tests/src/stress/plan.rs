//! What a run does.

use clap::ValueEnum;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// One way to use memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Feature {
    /// Random reads and writes.
    Rw,
    /// Reads of the whole set in order.
    Scan,
    /// read(), write(), pread(), pipes into and out of the set.
    Io,
    /// The same with O_DIRECT.
    Direct,
    /// mmap and munmap at reused addresses.
    Churn,
    /// mremap: grow, shrink, move, MREMAP_FIXED.
    Remap,
    /// MADV_DONTNEED.
    Discard,
    /// MADV_FREE.
    Free,
    /// mprotect back and forth.
    Protect,
    /// Huge pages on and off.
    Huge,
    /// Children that verify all they inherited.
    Fork,
    /// vfork and exec; the new program verifies its own memory.
    Exec,
    /// Threads that come and go.
    Threads,
}

impl Feature {
    pub const COUNT: usize = Feature::ALL.len();
    pub const ALL: [Feature; 13] = [
        Feature::Rw,
        Feature::Scan,
        Feature::Io,
        Feature::Direct,
        Feature::Churn,
        Feature::Remap,
        Feature::Discard,
        Feature::Free,
        Feature::Protect,
        Feature::Huge,
        Feature::Fork,
        Feature::Exec,
        Feature::Threads,
    ];
}

impl fmt::Display for Feature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = self.to_possible_value().expect("no feature is hidden");
        f.write_str(value.get_name())
    }
}

/// What to run.
#[derive(Clone, Debug)]
pub struct Plan {
    pub bytes: usize,
    pub threads: usize,
    /// Zero: until SIGTERM.
    pub duration: Duration,
    pub seed: u64,
    pub features: Vec<Feature>,
    /// Where scratch files go; O_DIRECT needs a real filesystem.
    pub directory: PathBuf,
    /// Without any progress for this long, the run is ended.
    pub stall: Duration,
}
