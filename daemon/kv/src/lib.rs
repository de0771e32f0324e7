//! The KV API: a Redis-protocol store whose values live in the pool.
//!
//! - [`resp`]: the protocol, RESP2 and RESP3; [`reply`] is what a client is answered.
//! - [`server`]: sockets, connections, locks on keys, and how a pipeline's commands are under way
//!   together.
//! - [`session`]: the commands of a connection and of the server: HELLO, AUTH, MULTI, CONFIG, INFO,
//!   ….
//! - [`commands`]: the commands on keys; [`spec`] is what there is to know of each, [`call`] how
//!   one is called. [`text`] has what needs no store, `arguments` what these and the session's
//!   commands read alike.
//! - [`store`]: keys to values, in the pool.
//! - `turn`: how long requests leave each other the thread; `apart`: what is done on another one.
//! - [`service`]: the thread that all of it runs on, and its start and end; `sections` is what it
//!   adds to INFO.
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
pub mod reply;
pub mod resp;
mod sections;
pub mod server;
pub mod service;
pub mod session;
pub mod spec;
pub mod store;
pub mod text;
mod turn;

pub use config::{ConfigError, KvConfig, KvFlag};
pub use service::{Kv, KvError};
