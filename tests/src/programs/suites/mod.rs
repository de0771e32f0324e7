//! The suites, each from its own origin.

mod cpython;
mod go;
pub mod java;
mod postgres;
mod redis;
mod stress_ng;

use super::program::Suite;
use std::path::Path;

/// In the order in which they are run.
pub const NAMES: [&str; 6] = ["stress-ng", "cpython", "redis", "postgres", "go", "java"];

/// The suite of this name; what has to be fetched or built for it goes to `dir`.
pub fn find(name: &str, dir: &Path) -> anyhow::Result<Suite> {
    match name {
        "stress-ng" => stress_ng::suite(),
        "cpython" => cpython::suite(),
        "redis" => redis::suite(dir),
        "postgres" => postgres::suite(dir),
        "go" => go::suite(dir),
        "java" => java::suite(dir),
        _ => anyhow::bail!("there is no suite {name}"),
    }
}
