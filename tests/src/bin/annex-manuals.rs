//! `annex-manuals`: writes man pages, completions and the packages' changelog. See
//! `annex_tests::manuals`.

use clap::Parser;
use std::path::PathBuf;

/// Writes man pages, completions of shells and the packages' changelog.
#[derive(Parser)]
#[command(version)]
struct Args {
    /// Where they go; what is there already is replaced
    dir: PathBuf,
}

fn main() -> anyhow::Result<()> {
    annex_tests::manuals::write(&Args::parse().dir)
}
