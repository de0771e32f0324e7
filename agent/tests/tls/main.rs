//! An agent with TLS: who is let in, who is not and what is said then, and what is on the wire.

mod bed;
mod config;
mod refusals;
mod session;
mod wire;
