//! Why a run fails.

use super::content::Mismatch;

/// Why a run failed.
#[derive(Debug, thiserror::Error)]
pub enum Trouble {
    #[error("wrong content after {doing}: page {page}, {mismatch}; {why}")]
    Wrong { doing: &'static str, page: usize, mismatch: Mismatch, why: String },
    #[error("{what} failed: {source}")]
    Call { what: &'static str, source: std::io::Error },
    #[error("a child {0}")]
    Child(String),
    #[error("a thread panicked")]
    Panic,
}

impl Trouble {
    pub(super) fn call(what: &'static str) -> impl FnOnce(std::io::Error) -> Trouble {
        move |source| Trouble::Call { what, source }
    }
}
