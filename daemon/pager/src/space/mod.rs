//! One address space: its lock, its page table, its regions, and what is registered of it.
//!
//! What all other rooms work on is defined here. What they do to it is in their own rooms.

pub mod address_space;
pub mod core;
pub mod guard;
pub mod identity;
pub mod inflight;
pub mod region;
pub mod registration;
pub mod registry;
pub mod shared;
pub mod state;
pub mod table;
