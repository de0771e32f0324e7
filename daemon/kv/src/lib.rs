//! The KV API: a Redis-protocol store whose values live in the pool.
//!
//! A request goes down this list, and its reply goes up:
//! - `connection`: sockets; requests that come in, commands under way together, replies that go
//!   out.
//! - [`session`]: what a connection is beside that, the checks before a command, and the commands
//!   of a connection and of the server: HELLO, AUTH, MULTI, CONFIG, INFO, ….
//! - [`server`]: what connections share; it dispatches commands on keys. `locks` keeps those on one
//!   key apart.
//! - [`commands`]: the commands on keys; [`spec`] is what there is to know of each, [`call`] how
//!   one is called.
//! - [`store`]: keys to values, in the pool.
//!
//! Used by all of them:
//! - [`resp`]: the protocol, RESP2 and RESP3; [`reply`] is what a client is answered.
//! - [`text`]: what needs no store; `arguments`: what all commands read alike.
//! - `turn`: how long requests leave each other the thread; `blocking`: what is done on another
//!   one.
//! - `tls`: connections that are enciphered.
//!
//! [`service`] is the thread that all of it runs on, and its start and end; `sections` is what it
//! adds to INFO.
//!
//! # The promise
//! Each key is linearizable through one annexd. A write that was acknowledged survives annexd, and
//! the loss of all replicas but one. It does not survive an orderly stop of annexd, which gives all
//! memory back, nor the host.

mod arguments;
mod blocking;
pub mod call;
pub mod commands;
mod config;
mod connection;
mod locks;
pub mod reply;
pub mod resp;
mod sections;
pub mod server;
pub mod service;
pub mod session;
pub mod spec;
pub mod store;
pub mod text;
mod tls;
mod turn;

pub use config::{ConfigError, KvConfig, KvFlag};
pub use service::{Kv, KvError};
