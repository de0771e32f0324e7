//! Tests of the KV API: a connection that shows every byte ([`wire`]), whether what clients saw can
//! have happened ([`history`]), which is tried on one that lies ([`liar`]), and how fast it is
//! beside others ([`mod@bench`]).

pub mod bench;
pub mod history;
pub mod liar;
pub mod wire;
