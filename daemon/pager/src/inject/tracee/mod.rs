//! A thread of another process, stopped for a moment so that it makes system calls for us.
//!
//! `PTRACE_SEIZE` + `PTRACE_INTERRUPT` stop one thread without a signal the program could see. A
//! `syscall` instruction is found in the vdso, so no text is patched. Before the thread goes on it
//! passes through a `PTRACE_EVENT_STOP` again with its registers restored, so that the kernel's own
//! system-call restart logic applies to the call it was in.
//!
//! The program does not notice. What a stop or our calls would disturb is put right here:
//! [`interrupted`] calls are made again, a restartable sequence is aborted ([`rseq`]), syscall user
//! [`dispatch`] and single-stepping (the trap flag) are off meanwhile, and a stopped thread stays
//! stopped after it. [`choice`] finds a thread that can be borrowed.
//!
//! ptrace belongs to the *thread* that seized: a `Tracee` must not leave it (it is `!Send`), and if
//! that thread ends, the kernel lets the tracee go.

mod asked;
mod choice;
mod dispatch;
mod interrupted;
mod ptrace;
mod rseq;
#[cfg(test)]
mod tests;
mod thread;

pub use asked::{AskedThreads, accompany};
pub use choice::{Borrowing, borrow};
pub use ptrace::TraceError;
pub use thread::Tracee;
