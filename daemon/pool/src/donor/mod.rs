//! One donor as this host sees it, and the thread that keeps its control connection.
//!
//! - `view`: what the pool knows of a donor, for lanes and listings.
//! - `thread`: hello, leases, renewal, reconnection, and the endpoints that lanes have there. It
//!   may block on the network.
//! - `session`: when it connects, renews and gives up. Pure.
//! - `dial`: how a donor is reached, as traits; and what they are in earnest.
//! - `tls`: what this host shows donors, and which it believes.
//! - `transport`: which transport is tried, and why. Pure.
//! - `traffic`: what went over each transport.
//! - `welcome`: what a donor may say of itself. Pure.

pub mod dial;
pub(crate) mod session;
pub(crate) mod thread;
pub mod tls;
pub(crate) mod traffic;
pub(crate) mod transport;
pub(crate) mod view;
mod welcome;
