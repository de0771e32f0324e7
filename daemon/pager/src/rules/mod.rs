//! Rules: what is attached as it appears, without anybody asking for it (`[[app]]` in the
//! configuration).
//!
//! - [`rule`]: what a rule says. [`glob`]: the patterns in it.
//! - [`troubles`]: what could not be attached, when that is tried again, and what is said of it.
//! - [`gate`]: no rule is followed while annexd lets go of everything.
//!
//! Who follows them is a thread of the pager's (`pager::rules`). It attaches what a rule names and
//! no app has, except what was detached by hand.

pub mod gate;
mod glob;
mod rule;
pub mod troubles;

pub use glob::Glob;
pub use rule::{Rule, RuleConfig, RuleError, Selector, parse};
