//! annexd: pages the cold memory of running programs to donors and back.

pub mod config;
pub mod control;
mod heap;
pub mod keeper;
pub mod kv;
mod latency;
mod mapped;
pub mod pager;
mod pidfd;
pub mod pool;
mod sentinel;
