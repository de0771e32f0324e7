//! What a daemon needs of its own host.
//!
//! - [`log`]: where a daemon's log goes, and in which form.
//! - [`mapped`]: tables in memfds, whose bytes outlive the daemon.
//! - [`events`]: what happened, kept for `annex events`.
//! - [`fd_keeper`]: who keeps descriptors while the daemon is away.
//! - [`mod@failpoint`]: places at which tests have a daemon die or linger.
//! - [`latency`]: a histogram of durations.
//! - [`pidfd`]: processes by descriptor.
//! - [`priority`]: threads that somebody waits for.
//! - [`repeats`]: lines of a log that one incident yields by the hundred.
//! - [`rights`]: descriptors over Unix sockets.
//! - [`sentinel`]: a thread that panics takes its daemon with it.

pub mod events;
pub mod failpoint;
pub mod fd_keeper;
pub mod latency;
pub mod log;
pub mod mapped;
pub mod pidfd;
pub mod priority;
pub mod repeats;
pub mod rights;
pub mod sentinel;
