//! The page table of one address space: where each of its pages is.
//!
//! It lies in a memfd, so that it outlives this process. All numbers little-endian, offsets in
//! bytes:
//!
//! ```text
//! 0            header      magic "annexpgt" (8), version u32 = 5, chunks u32 (high-water mark),
//!   16                     app id u64, pid u32 (0: unknown), stub pid u32, staging address u64, staging length u64
//!   48                     progress u64: undo entries (low half), journal messages applied (high half)
//!   56                     space id u64, stub: code u64, comm u64, staging mapping u64 (addresses),
//!   88                     its pid in the app's namespace u32, its descriptor numbers u32 x 2 (comm, userfaultfd), inode of comm u32 x 2 (low, high), version u32
//!   112                    install under way: first page u64, pages u32; flags u32 (1: frozen, 2: being let go of)
//!   128                    fork under way: child's space id u64, journal index + 1 u32; words of the window u32
//!   144                    changes applied u64; the space from which changes were inherited last u64 (a fork's child, see `young`)
//!   160                    pages found in an install note at a take-over: ranges u32, pad u32, 64 x {first u64, pages u32, pad u32}
//! 4096         journal     messages read but not yet applied: 64 x 32 bytes, as the kernel wrote them (event byte 0 = none)
//! 8192         intent      the eviction under way, see `intent`
//! 64 KiB       window      changes not yet known to be complete, see `window`: 240 Ki words u32
//! 1 MiB        directory   2^26 x u32, indexed by address >> 21: 0 = no chunk, else chunk number + 1
//! 257 MiB      chunks      2^20 x 2304 bytes: 512 x u32 records, then 512 x 4 bits of policy, low nibble first
//! then         undo        2^29 x {offset / 4 u32, word before u32}, see `undo`
//! ```
//!
//! The file is sparse: only what is used takes memory. A record is a 2-bit kind and 30 bits of
//! slot:
//!
//! | kind | payload | meaning |
//! | --- | --- | --- |
//! | 0 | 0 | *none*: never evicted, or resident with no copy in the pool |
//! | 0 | 1 | *gone*: a REMOVE was announced and may not have happened yet: not to be evicted until the app touches it anew |
//! | 0 | 2 | *poisoned*: no replica could give it; touching it raises SIGBUS |
//! | 1 | slot | *evicted*: its bytes are in the slot and nowhere else |
//! | 2 | slot | *clean*: resident, and unless written since, the slot has the same bytes |
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
//! knew no origin of doubts in its window: it is taken over where the window is empty, as it is but
//! for moments, and refused otherwise. Version 1 had no undo log, no window and another intent, and
//! nobody to take it over from.

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
