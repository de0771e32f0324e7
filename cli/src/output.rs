//! How an answer reaches the user.

use crate::failure::Failure;
use annex_shared::printable::{printable_json, printable_lines};
use serde::Serialize;
use std::io::Write;

/// Prints what annexd answered: as it is, or as people read it.
pub fn show<T: Serialize>(json: bool, value: &T, text: impl FnOnce(&T) -> String) -> Result<(), Failure> {
    let text = if json {
        let mut text = serde_json::to_string_pretty(value).map_err(|e| Failure::Garbled(e.to_string()))?;
        text.push('\n');
        printable_json(&text).into_owned()
    } else {
        // Whoever wrote a line has seen to the names in it; this catches what was forgotten.
        printable_lines(&text(value)).into_owned()
    };
    print(&text).map(drop)
}

/// Prints what may go to a terminal. False: nobody reads it any more.
pub fn print(text: &str) -> Result<bool, Failure> {
    match std::io::stdout().write_all(text.as_bytes()) {
        Ok(()) => Ok(true),
        // `annex apps | head -1` has seen enough.
        Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => Ok(false),
        Err(e) => Err(Failure::Output(e)),
    }
}
