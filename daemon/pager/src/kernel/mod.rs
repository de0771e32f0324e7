//! The kernel's calls and files, turned into decisions: userfaultfd, the page map, `/proc`.
//!
//! Addresses, PIDs and descriptors go in. Variants come out, never an errno that the caller must
//! interpret. Nothing here knows of spaces, apps or the pool.
//!
//! A region's [`Waiters`] stand here, too. Where the kernel sends no messages and wakes nobody,
//! they take the questions and wake those that asked, as part of the userfaultfd.

pub mod cgroup;
pub mod host_memory;
mod lookup;
mod mm;
pub mod probe;
pub mod process;
mod ring;
mod scan;
pub mod uffd;

pub use lookup::Lookup;
pub use mm::{Mark, Mm, SHARED_PAGE};
pub use ring::{Waiters, WaitersError};
pub use scan::{Pagemap, Run};
