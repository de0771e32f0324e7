#![allow(warnings, clippy::all)] // not ours, see README.md

use libc::*;

include!("bindings.rs");

mod types;
mod verbs;

pub use self::types::*;
pub use self::verbs::*;
