//! annexd: pages the cold memory of running programs to donors and back.

mod conditions;
pub mod config;
pub mod control;
pub mod flags;
pub mod heap;
pub mod metrics;
pub mod web;
