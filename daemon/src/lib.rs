//! annexd: pages the cold memory of running programs to donors and back.

pub mod config;
pub mod control;
pub mod flags;
