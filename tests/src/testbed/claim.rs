//! What only one test may have at a time of all that run in this network namespace: a port, the
//! number of a wire. An abstract Unix socket says that it is taken. Such names are known exactly as
//! far as ports are, leave no file, and go with the process that has them.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};

/// Ends when dropped.
pub struct Claim(#[expect(dead_code, reason = "its existence is what counts")] UnixListener);

impl Claim {
    /// `None`: somebody has it.
    pub fn of(what: &str) -> Option<Claim> {
        let name = SocketAddr::from_abstract_name(format!("annex-test-{what}")).expect("a short name");
        UnixListener::bind_addr(&name).ok().map(Claim)
    }
}
