//! What a connection is, beside the bytes that go through it: its database, its protocol, whether
//! it has authenticated, the transaction it gathers. And the commands that are about that, or about
//! the server, rather than about keys.
//!
//! - [`Session`]: the state, and how a command passes the checks that come before it runs.
//! - `run`: running one of its commands.
//! - `connection`: PING, HELLO, AUTH, SELECT and their like.
//! - `clients`: CLIENT.
//! - `transaction`: what MULTI gathers. `multi`: MULTI, EXEC, WATCH.
//! - `introspection`: COMMAND.
//! - `configuration`: CONFIG.
//! - `info`: INFO.
//! - `logs`: SLOWLOG and LATENCY.
//! - `keyspace`: commands on whole databases.
//! - `extensions`: MODULE and FUNCTION.
//! - `administration`: the rest, most of which answers for things that are not there.
//! - `table`: all of them with what COMMAND tells about them.
//!
//! None of these runs while earlier commands of its connection are under way, so they see and
//! change the session freely.

mod administration;
mod arguments;
mod clients;
mod configuration;
mod connection;
mod extensions;
mod info;
mod introspection;
mod keyspace;
mod logs;
mod multi;
mod run;
mod state;
mod table;
mod transaction;

pub use state::{Admission, Replies, Session};
pub use table::{TABLE, commands};
