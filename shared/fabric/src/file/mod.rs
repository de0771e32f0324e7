//! The file provider: ranges of a local file take slabs' place, as the last tier when no donor has
//! room.
//!
//! A [`Disk`] lends *regions* of its file, each of a slab's size, under keys of its own making; a
//! [`FileConnector`] opens endpoints to it. The file is open for direct I/O: what is paged out to
//! make room in memory must not come back as page cache.
//!
//! # Threads
//! A disk may take long, and a lane never waits: an operation is handed to one of a few threads and
//! its completion comes back over a queue and an event descriptor. Reads have threads of their own,
//! so that a page fault never queues behind the writes of a whole eviction.
//!
//! # Whose bytes are whose
//! A disk that hangs keeps a thread in the kernel for as long as it likes. So no thread reads or
//! writes the arena while it is in the kernel: it moves pieces through a buffer of its own, and
//! *claims* the operation for the time of each copy. An endpoint that gives an operation up takes
//! the claim for good; from then on its piece of the arena is the owner's again, whatever the disk
//! does later.
//!
//! # Fences
//! A write that was given up may still reach the disk. If that were after the same place was
//! written anew, old bytes would stand where new ones belong. So when one I/O was in the kernel for
//! longer than the disk's patience, the whole disk is *cut off*: every endpoint breaks, no new one
//! is opened, and nothing is lent until all that was ever handed over is back from the kernel. And
//! a region that was given back is not lent again before every operation on it is completed.

mod connector;
mod disk;
mod endpoint;
mod task;
mod threads;

pub use connector::FileConnector;
pub use disk::Disk;
pub use threads::start_disk;

#[cfg(test)]
mod tests;
