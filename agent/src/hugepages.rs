//! The size of the pages that slabs are made of.

use serde::{Deserialize, Serialize};

/// Whether slabs are made of 2 MiB pages, which the administrator reserves in `vm.nr_hugepages`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
pub enum Hugepages {
    /// 4 KiB pages.
    #[default]
    #[serde(rename = "off")]
    Off,
    /// 2 MiB pages while there are reserved ones, else 4 KiB pages, said in the log.
    #[serde(rename = "auto")]
    Auto,
    /// 2 MiB pages or nothing.
    #[serde(rename = "2M")]
    #[value(name = "2M")]
    TwoMib,
}

/// Bytes in a huge page.
pub const HUGE_PAGE: u64 = 2 << 20;
