//! Loopback ports for servers that tests start, each given out once as long as the process that
//! asked for it runs.
//!
//! A port that was bound a moment ago and given up can be given to somebody else before the server
//! binds it: to another server, or to any connection that goes out. So they come from below the
//! kernel's ephemeral range, and a [`Claim`] says that one is taken.

use super::claim::Claim;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::Mutex;

/// Below what Linux gives to whoever binds port 0 or connects (32768 and more unless configured
/// otherwise), above what services use.
const PORTS: std::ops::Range<u16> = 20_000..32_000;

/// The ports that this process has, and where it looks next.
static TAKEN: Mutex<(Vec<Claim>, u16)> = Mutex::new((Vec::new(), 0));

/// A loopback address that nobody listens on, and that nobody else is given.
///
/// # Panics
/// When there is none.
pub fn free() -> SocketAddr {
    let (taken, tried) = &mut *TAKEN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    // Processes begin at different places, so that they seldom meet.
    let start = std::process::id().wrapping_mul(61) % u32::from(PORTS.end - PORTS.start);
    while *tried < PORTS.end - PORTS.start {
        let at = (start + u32::from(*tried)) % u32::from(PORTS.end - PORTS.start);
        *tried += 1;
        let port = PORTS.start + u16::try_from(at).expect("less than the range is long");
        let Some(claim) = Claim::of(&format!("port-{port}")) else { continue };
        if TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).is_ok() {
            taken.push(claim);
            return SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        }
    }
    panic!("no port from {} to {} is free", PORTS.start, PORTS.end - 1);
}
