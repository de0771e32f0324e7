//! The stub: a small process in the app's address space that makes the few system calls which only
//! work from there.
//!
//! It is cloned by the app's own (briefly stopped) thread with `CLONE_VM`, gets an empty descriptor
//! table of its own, and then runs a loop of four dozen instructions ([`code`]): wait for the bell,
//! make N raw system calls from a shared page, each if the [`gate`] is open, answer. It has no
//! stack, no signal handlers, every signal blocked, and its code page is never writable: the code
//! is poked in through ptrace. What lies in the app's address space for it, all of it invisible to
//! fork children (`MADV_DONTFORK`):
//!
//! | mapping | protection | use |
//! | --- | --- | --- |
//! | code, 4 KiB | read + execute, private | the loop |
//! | comm, 28 KiB | read + write, shared with annexd | bell and answer, calls, MOVE arguments ([`layout::Comm`]) |
//! | staging, [`STAGING`] | read + write, private | where MOVE puts evicted pages until they are written |

mod code;
mod found;
mod gap;
mod gate;
mod handle;
mod injection;
mod layout;
mod reap;

pub use found::end;
pub use gate::Gate;
pub use handle::{CallError, Hurry, Stub, StubError};
pub use injection::{Pause, Seed, inject};
pub use layout::{NAME, STAGING, STAGING_PART};
pub use reap::reap;
