//! Which thread runs where, and before whom: how workers wait, which CPU a space's faults come
//! from, and who stands still.

pub mod affinity;
pub mod contention;
pub mod cpu_affinity;
pub mod sched_class;
pub mod waiting;
pub mod watchdog;
