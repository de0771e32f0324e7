//! Which pages are cold: decisions alone, of what the caller has seen.
//!
//! - [`heat`]: what annexd goes by. The hand passes pages the more often, the sooner they came back.
//! - [`replacement`]: what is to take its place. It learns from all that comes back which pages are
//!   worth keeping, by [`class`] and their [`rates`]. So far the simulator alone drives it
//!   (`annex-policy`).

mod class;
mod heat;
mod rates;
mod replacement;

pub use class::Class;
pub use heat::{HOTTEST, LAPS, heat_after_refault, pass};
pub use replacement::{Replacement, Verdict};
