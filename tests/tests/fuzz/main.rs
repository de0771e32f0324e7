//! Any bytes to whatever reads what others have sent or written: no panic, no memory beyond what
//! came in, and what is understood is written back as it was read.
//!
//! `ANNEX_FUZZ_SECONDS` sets how long each is fed. What is fed is made of valid inputs by cutting,
//! doubling and changing them, from a seed that a failure names.
//!
//! - `kv`: requests to the KV API, and records in the pool.
//! - `wire`: what an agent and a client send each other.
//! - `identity`: tokens, certificates, and what is said when a host joins.
//! - `configuration`: configuration files.

mod configuration;
mod feed;
mod identity;
mod kv;
mod wire;
