//! What both sides of annex must agree on.
//!
//! - [`ids`]: newtypes for everything that is a number.
//! - [`memfd`]: memory files of a fixed size.
//! - [`page`]: the page size, the page checksum, the zero-page check.
//! - [`preamble`]: the first bytes of every connection to an agent.
//! - [`wire`]: the control protocol between annexd and annex-agent.
//! - [`api`]: the types of annexd's local HTTP API, used by the `annex` command.
//! - [`condition`]: how annexd stands, as one list.
//! - [`event`]: what happened.
//! - [`limit`]: sizes and times as people write them.
//! - [`mapping`]: a program's mappings, and which of them can be paged.
//! - [`process`]: what is asked of the kernel about processes.
//! - [`config`]: strict TOML loading.
//! - [`donor`]: how people name a donor on a command line.
//! - [`printable`]: text from others, as it may go to a terminal or a log.
//! - [`rates`]: what two readings of a counter tell about the time between them.
//! - [`transport`]: what carries operations to a donor.
//! - [`ring`]: how threads of a program that takes its faults itself ask annexd for pages.

pub mod api;
pub mod condition;
pub mod config;
pub mod donor;
pub mod event;
pub mod futex;
pub mod ids;
pub mod limit;
pub mod mapping;
pub mod memfd;
pub mod page;
pub mod preamble;
pub mod printable;
pub mod process;
pub mod rates;
pub mod remedy;
pub mod ring;
pub mod transport;
pub mod wire;
