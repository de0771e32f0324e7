//! Why a run fails.

use super::content::Mismatch;
use std::ptr::NonNull;

/// Why a run failed.
#[derive(Debug, thiserror::Error)]
pub enum Trouble {
    #[error("wrong content after {doing}: page {page}, {mismatch}; {why}")]
    Wrong { doing: &'static str, page: usize, mismatch: Mismatch, why: String },
    #[error("{what} failed: {source}")]
    Call { what: &'static str, source: std::io::Error },
    #[error("{what} at {at:#x}, {len:#x} bytes, failed: {source}; what is mapped there:\n{mapped}")]
    Remap { what: &'static str, at: usize, len: usize, source: std::io::Error, mapped: String },
    #[error("a child {0}")]
    Child(String),
    #[error("a thread panicked")]
    Panic,
}

impl Trouble {
    pub(super) fn call(what: &'static str) -> impl FnOnce(std::io::Error) -> Trouble {
        move |source| Trouble::Call { what, source }
    }

    /// A call that takes a mapping fails where two are: which there are tells why.
    pub(super) fn remap(what: &'static str, at: NonNull<u8>, len: usize) -> impl FnOnce(std::io::Error) -> Trouble {
        let at = at.as_ptr() as usize;
        move |source| Trouble::Remap { what, at, len, source, mapped: mapped(at, at + len) }
    }
}

/// The lines of `smaps` of what begins or ends in `start..end`, with size and flags.
fn mapped(start: usize, end: usize) -> String {
    let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap_or_else(|error| error.to_string());
    let mut said = String::new();
    let mut is_there = false;
    for line in smaps.lines() {
        let bounds = line.split_once(' ').and_then(|(bounds, _)| bounds.split_once('-'));
        let hex = |digits| usize::from_str_radix(digits, 16).ok();
        if let Some((from, to)) = bounds.and_then(|(from, to)| Some((hex(from)?, hex(to)?))) {
            is_there = from <= end && start <= to;
            if is_there {
                said += line;
            }
        } else if is_there && line.starts_with("VmFlags") {
            said += &format!(" {line}\n");
        }
    }
    said
}
