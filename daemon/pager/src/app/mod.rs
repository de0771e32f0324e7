//! Apps: their processes, their limits, and the thread that follows how they grow.

pub mod application;
pub mod manager;
pub mod membership;
