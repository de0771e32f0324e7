//! The kernel's calls and files, turned into decisions: userfaultfd, the page map, /proc.
//!
//! Nothing here knows of spaces, apps or the pool. Addresses, PIDs and descriptors go in; variants
//! go out, never an errno that somebody must interpret.

pub mod lookup;
pub mod mm;
pub mod probe;
pub mod process;
pub mod ring;
pub mod scan;
pub mod uffd;
