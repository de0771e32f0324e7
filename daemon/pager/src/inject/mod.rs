//! Getting a stub into a process, and out of it again.
//!
//! 1. *Check* ([`attach`]): may this process be managed, and has it a userfaultfd already?
//! 2. *Borrow* ([`tracee`]): one of its threads is stopped for under a millisecond. That is done in
//!    a process of its own ([`tracer_process`]), which finishes even if annexd is killed.
//! 3. *Clone* ([`stub`]): the thread clones the stub, and goes on as if nothing had been.
//! 4. *Acknowledge*: annexd has written down where the stub is. Until then the tracing process ends
//!    a stub that nobody knows.
//!
//! From then on nothing is traced any more.

pub mod attach;
mod context;
pub mod stub;
mod tracee;
pub mod tracer_process;

pub use context::AttachContext;
