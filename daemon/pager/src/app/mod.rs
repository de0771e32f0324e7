//! Apps: the processes that are managed as one, and their limit.
//!
//! - [`App`]: its members, what is counted about them, and its local limit.
//! - [`membership`]: which processes belong to it. [`whereabouts`], [`container`]: the cgroup that
//!   tells.
//! - [`app_registry`]: all that there are.
//! - [`let_go`]: what was detached by hand. [`sightings`]: what rules are held against.
//! - [`furnish`]: stubs for those of them that are worth one.
//! - [`auto`]: limits that annexd finds.
//! - [`quota`]: what ordinary users may take.
//! - [`manager`]: the thread that follows how they come, grow, become other programs, and end.
//!
//! An app knows its spaces by their identity only, so that spaces can know their app.

pub mod app_registry;
mod application;
pub mod auto;
pub mod container;
pub mod furnish;
pub mod let_go;
pub mod manager;
pub mod membership;
pub mod quota;
pub mod sightings;
pub mod whereabouts;

pub use application::{App, Auto, LONGEST_DELAY, Member, Watermarks};
