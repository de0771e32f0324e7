//! Getting a stub into a process: ptrace in a process of its own, the stub's code and pages, and
//! which userfaultfd belongs to whom.
//!
//! A process is checked first, then stopped for under a millisecond, in which one of its threads
//! clones the stub. From then on nothing is traced any more.

pub mod attach;
pub mod context;
pub mod stub;
pub mod tracee;
pub mod tracer_process;
