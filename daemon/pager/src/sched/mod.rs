//! Which thread runs where, and before whom.
//!
//! - [`waiting`], [`contention`]: do workers poll or sleep, and do they fight for their CPUs?
//! - [`cpu_affinity`], [`affinity`]: the CPU that a space's faults come from, and who is kept
//!   there.
//! - [`sched_class`]: the scheduling class of fault workers.
//! - [`watchdog`]: which thread stands still, and where.

pub mod affinity;
mod contention;
mod cpu_affinity;
mod sched_class;
pub mod waiting;
pub mod watchdog;

pub use cpu_affinity::CpuAffinity;
pub use sched_class::{WorkerClass, WorkerClasses};
