//! The tcp provider: one-sided operations over a connection to the agent, which executes them.
//!
//! It keeps the verbs' semantics: a WRITE that completed is in the donor's memory, a wrong key gets
//! a remote access error and no byte, and after a broken connection everything outstanding is
//! flushed. [`frame`] draws the bytes.
//!
//! Requests are pipelined and answered in order. The client never blocks: what the socket does not
//! take is sent by later polls. Requests' headers lie in a table made at the start, payloads go
//! from and to the arena without an intermediate copy where the socket allows it, and nothing is
//! allocated per operation.
//!
//! **Fences.** When a connection breaks, requests may still lie in the agent's socket buffer,
//! unexecuted. If such a WRITE were executed after the client had written the same place again over
//! a new connection, stale bytes would overwrite fresh ones. So a connector remembers the numbers
//! of its connections that have ended, and a new connection first asks the agent to fence each: the
//! agent closes it and answers when nothing more will be executed for it. A new connector, which
//! follows a new hello and perhaps a restart of annexd, first fences everything of earlier
//! sessions: what is outstanding there is flushed and has to be done again. [`TcpConnector`]'s
//! `open` returns only when all fences are answered.

mod client;
mod endpoint;
pub mod frame;

pub use client::TcpConnector;
