//! Who runs the access patterns: the same program each time, with a different way to hold less than
//! it uses.

use clap::ValueEnum;
use serde::Serialize;

/// In the order of the chart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Contender {
    /// Everything in memory: what all others are measured against.
    Ram,
    /// The bare userfaultfd floor.
    Floor,
    /// The same with perfect read-ahead: sequential only.
    Readahead,
    AnnexShm,
    AnnexTcp,
    /// A region of the program's own, over shared memory.
    Client,
    /// Kernel swap on compressed memory.
    Zram,
    /// Kernel swap on a file on disk.
    Disk,
    /// The program that `--umap` names.
    Umap,
}

impl Contender {
    pub const ALL: [Contender; 9] = [
        Contender::Ram,
        Contender::Floor,
        Contender::Readahead,
        Contender::AnnexShm,
        Contender::AnnexTcp,
        Contender::Client,
        Contender::Zram,
        Contender::Disk,
        Contender::Umap,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Contender::Ram => "ram",
            Contender::Floor => "floor",
            Contender::Readahead => "readahead",
            Contender::AnnexShm => "annex-shm",
            Contender::AnnexTcp => "annex-tcp",
            Contender::Client => "client",
            Contender::Zram => "zram",
            Contender::Disk => "disk",
            Contender::Umap => "umap",
        }
    }
}
