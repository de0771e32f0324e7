//! Where a connection comes from: its address, and whom its guesses at a password count against.

use super::stream::Stream;
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

/// The network part of an IPv6 address: who has one has all that begin so.
const NETWORK: u128 = !0 << 64;

/// Where a connection comes from or goes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    Tcp(std::net::SocketAddr),
    Unix(String),
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp(address) => write!(f, "{address}"),
            Address::Unix(path) => write!(f, "{path}:0"),
        }
    }
}

impl Address {
    pub fn is_local(&self) -> bool {
        match self {
            Address::Tcp(address) => address.ip().to_canonical().is_loopback(),
            Address::Unix(_) => true,
        }
    }
}

/// Where a client comes from, as far as guesses are concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Origin {
    Host(IpAddr),
    /// Of this host, by a Unix socket.
    User(u32),
}

impl Origin {
    pub fn of(stream: &Stream, peer: &Address) -> Origin {
        match (stream, peer) {
            (_, Address::Tcp(address)) => match address.ip().to_canonical() {
                IpAddr::V6(ip) => Origin::Host(Ipv6Addr::from_bits(ip.to_bits() & NETWORK).into()),
                ip => Origin::Host(ip),
            },
            (Stream::Unix(stream), _) => Origin::User(stream.peer_cred().map_or(u32::MAX, |user| user.uid())),
            (Stream::Tcp(_), Address::Unix(_)) => Origin::User(u32::MAX),
        }
    }
}
