//! Whole agents over real sockets: what a client sees of leases, bytes and endings.

mod bytes;
mod client;
mod ending;
mod leases;
mod program;
