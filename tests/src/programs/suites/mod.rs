//! The suites, each from its own origin.

mod cpython;
mod stress_ng;

use super::program::Suite;
use std::path::Path;

/// In the order in which they are run.
pub const NAMES: [&str; 2] = ["stress-ng", "cpython"];

/// The suite of this name; what has to be fetched or built for it goes to `dir`.
pub fn find(name: &str, _dir: &Path) -> anyhow::Result<Suite> {
    match name {
        "stress-ng" => stress_ng::suite(),
        "cpython" => cpython::suite(),
        _ => anyhow::bail!("there is no suite {name}"),
    }
}
