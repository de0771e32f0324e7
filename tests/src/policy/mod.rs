//! Which pages should leave: `annex-policy` (`make policy`), a simulator that needs no running
//! system and is the same every time.
//!
//! 1. [`traces`]: programs run over [`memory`] that writes down which pages they use.
//! 2. [`annexd`]: what annexd makes of that: faults, prefetch, watermarks, batches. Its pages are
//!    chosen by its [`clock`], or [`learned`], which is the code of `annex-pager` itself.
//! 3. [`caches`]: what is known from papers, and the optimum.
//! 4. [`report`]: all of them beside one another.
//!
//! A *miss* is a page that comes back. A page's first use is none: no policy can spare it. What
//! annexd brings ahead of use is a miss as much as what the program waits for.

pub mod annexd;
pub mod caches;
pub mod clock;
pub mod learned;
pub mod memory;
pub mod report;
pub mod traces;
