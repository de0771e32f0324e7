//! Faults: from the message, or the question at a ring, to the page that is installed.
//!
//! 1. [`run`]: a worker waits for its spaces, its lane and its mail.
//! 2. [`attend`]: it reads what a space has to say.
//! 3. [`mod@serve`]: it looks at each fault under the space's lock. What is it to get?
//! 4. [`mod@fetch`], [`prefetch`], [`reading`]: the page and its likely neighbours are asked of the
//!    pool.
//! 5. [`completion`], [`mod@install`]: what comes back is installed, and the records say so.
//!
//! A worker never waits for anything but its epoll set. What can't be done now is tried again on
//! its next turn ([`worker`]).

mod attend;
mod busy_poll;
mod completion;
mod fetch;
mod install;
mod next;
mod page_fault;
mod prefetch;
mod put_off;
mod reading;
mod rings;
mod run;
mod serve;
mod worker;
mod workers;

pub use fetch::Stretch;
pub use install::{install, lose, put_back};
pub use page_fault::{Fault, Why};
pub use prefetch::Prefetcher;
pub use workers::Workers;
