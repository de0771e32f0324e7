//! What a connection is, beside the bytes that go through it: its database, its protocol, whether
//! it has authenticated, the transaction it gathers. And the commands that are about that, or about
//! the server, rather than about keys.
//!
//! - [`Session`]: the state, and how a command passes the checks that come before it runs.
//! - [`Client`]: the part of the state that others see and act on.
//! - `connection`: PING, HELLO, AUTH, SELECT and their like.
//! - `clients`: CLIENT.
//! - `transaction`: MULTI, EXEC, WATCH.
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
mod client;
mod clients;
mod configuration;
mod connection;
mod extensions;
mod info;
mod introspection;
mod keyspace;
mod logs;
mod state;
mod table;
mod transaction;

pub use client::{Address, Client};
pub use info::Facts;
pub use state::{Admission, Replies, Session, wrong_arity};
pub use table::commands;

use crate::call::{Handler, Outcome};
use bytes::Bytes;
use futures::future::LocalBoxFuture;

/// How a command is run.
#[derive(Clone, Copy)]
pub enum Run {
    /// It works on keys and needs nothing of the session.
    Keys(Handler),
    /// The session answers at once.
    Now(fn(&mut Session, &[Bytes]) -> Outcome),
    /// The session answers when it can.
    Later(for<'a> fn(&'a mut Session, &'a [Bytes]) -> LocalBoxFuture<'a, Outcome>),
    /// Has nothing but sub-commands.
    Container,
}
