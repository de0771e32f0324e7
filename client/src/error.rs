//! Why a region can't be had.

use annex_shared::api::{ApiError, LONGEST_REGION, SHORTEST_REGION, format_bytes};
use annex_shared::ring::RingError;
use std::io;
use std::path::PathBuf;

/// A region could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(
        "a region of {length} bytes can't be had: it has {} at least and {} at most",
        format_bytes(SHORTEST_REGION),
        format_bytes(LONGEST_REGION)
    )]
    Length { length: usize },
    #[error("this process has a region already: there can be one; close it first")]
    Second,
    #[error("annexd does not run, or not at {}: start it, or name its socket", socket.display())]
    NotRunning { socket: PathBuf },
    #[error("failed to talk to annexd at {}: {source}", socket.display())]
    Talk { socket: PathBuf, source: io::Error },
    #[error("annexd gave an answer that is none ({0}): are the library and annexd of the same version?")]
    Garbled(String),
    #[error("{}{}{}", .0.message, if .0.remedy.is_empty() { "" } else { "; " }, .0.remedy)]
    Refused(ApiError),
    #[error(transparent)]
    Ring(#[from] RingError),
    #[error("failed to {what}: {source}")]
    System { what: &'static str, source: io::Error },
}

pub(crate) fn system(what: &'static str) -> impl Fn(io::Error) -> Error {
    move |source| Error::System { what, source }
}
