//! TLS for the KV API. Threads of their own do the handshakes and the encryption, so that neither
//! keeps the KV API's thread. What they decipher reaches it through a Unix socket each, as if the
//! client had connected to that; addresses are those of the client.
//!
//! - [`Termination`]: the threads, and where connections come in.
//! - `handshakes`: how many may be under way.
//! - `relay`: what goes to and fro between a client and its Unix socket.

mod handshakes;
mod relay;
mod termination;

pub use termination::{Terminated, Termination};
