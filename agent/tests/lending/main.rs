//! Whole agents over real sockets: what a client sees of leases, bytes and endings.

mod bytes;
mod client;
#[path = "../fabric/device.rs"]
mod device;
mod drain;
mod ending;
mod fencing;
mod leases;
mod log;
mod player;
mod program;
mod recall;
mod reload;
mod restart;
mod takeover;
mod verbs;
