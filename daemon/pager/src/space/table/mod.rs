//! The page table of one address space: where each of its pages is.
//!
//! It lies in a memfd, so that it outlives this process. `docs/formats.md` draws it; the file is
//! sparse: only what is used takes memory. A record is a 2-bit kind and 30 bits of slot:
//!
//! - *none*: never evicted, or resident with no copy in the pool
//! - *removed*: a REMOVE was announced and may not have happened yet; not to be evicted until the
//!   app touches it anew
//! - *poisoned*: no replica could give it; touching it raises SIGBUS
//! - *evicted*: its bytes are in the slot and nowhere else
//! - *clean*: resident, and unless written since, the slot has the same bytes
//!
//! The policy nibble of a resident page is its heat, of an evicted one the clock lap it left in
//! (see `policy`).
//!
//! # A kill between any two instructions
//! - A record that names a slot holds one reference to it. The counts are recounted from the
//!   records at a take-over, so only the records must be right.
//! - What a message changes is one transaction (`undo`): its successor sees all of it or none, and
//!   with it whether the message still has to be applied.
//! - An install is noted before the COPY and the note taken back after the record: the pages in the
//!   note that are still *evicted* may be there already, and a second COPY's EEXIST says so.
//! - An eviction is noted with every page and its slot before the first MOVE (`intent`).
//!
//! Version 3 did not say which pages of an intent are settled: none was before all were. Version 2
//! knew no origin of what is ambiguous in its window: it is taken over where the window is empty,
//! as it is but for moments, and refused otherwise. Version 1 had no undo log, no window and
//! another intent, and nobody to take it over from.

mod intent;
mod journal;
mod layout;
mod notes;
mod record;
mod records;
#[cfg(test)]
mod tests;
mod undo;

pub use intent::{Intent, Phase, Victim};
pub use layout::{INTENT_RANGES, JOURNAL_MESSAGES};
pub use record::{Record, StubTraces, TableError, TableFull};
pub use records::Table;
