//! Random shapes of programs: threads, forks, processes that share memory, and mappings that come
//! and go. Every page is verified, by its owner and by others.
//!
//! What a program does follows from its seed: each [`actor`] takes random [`step`]s of its own.
//! Which of them comes first is the scheduler's. A failure names the seed and the last steps.
//!
//! - [`life`]: the program's threads, and how it ends. [`program`]: what they share, and what is
//!   reported. [`actor`]: who takes steps.
//! - [`step`]: the steps, and their choice. [`processes`]: those that make processes.
//! - [`memory`], [`mapping`], [`moves`]: what an actor owns, what it must hold, and where it goes.
//! - [`locks`]: who waits for whom, also for the dead.
//! - [`report`]: what is said of a failure, without allocating.
//! - [`hunt`]: program after program under annex, while its stubs and annexd are killed.

pub mod actor;
mod calls;
pub mod hunt;
pub mod life;
pub mod locks;
pub mod mapping;
pub mod memory;
pub mod moves;
pub mod processes;
pub mod program;
pub mod report;
pub mod step;

pub use life::run;
pub use program::Plan;
