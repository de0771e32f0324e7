//! How a command is described: what the tables of the command files are written with.

use super::super::call::Handler;
use super::super::spec::{Flags, Keys, Spec};

pub const READ: Flags = Flags { readonly: true, ..Flags::NONE };
pub const FAST_READ: Flags = Flags { readonly: true, fast: true, ..Flags::NONE };
/// Writes that may be refused for want of room.
pub const GROWING_WRITE: Flags = Flags { write: true, denyoom: true, ..Flags::NONE };
pub const FAST_GROWING_WRITE: Flags = Flags { write: true, denyoom: true, fast: true, ..Flags::NONE };
pub const WRITE: Flags = Flags { write: true, ..Flags::NONE };
pub const FAST_WRITE: Flags = Flags { write: true, fast: true, ..Flags::NONE };
pub const ANYTIME: Flags = Flags { loading: true, stale: true, ..Flags::NONE };

pub const NO_KEY: Keys = Keys::NONE;
pub const ONE_KEY: Keys = Keys { first: 1, last: 1, step: 1 };
pub const TWO_KEYS: Keys = Keys { first: 1, last: 2, step: 1 };
/// A sub-command's key.
pub const SECOND: Keys = Keys { first: 2, last: 2, step: 1 };
pub const ALL_KEYS: Keys = Keys { first: 1, last: -1, step: 1 };
pub const KEYS_AND_VALUES: Keys = Keys { first: 1, last: -1, step: 2 };
pub const ALL_BUT_FIRST: Keys = Keys { first: 2, last: -1, step: 1 };

/// A command on keys.
pub const fn command(name: &'static str, arity: i32, flags: Flags, keys: Keys, handler: Handler) -> Spec {
    Spec { handler: Some(handler), ..Spec::new(name, arity, flags, keys) }
}

/// A name that only its sub-commands answer to.
pub const fn container(name: &'static str) -> Spec {
    Spec::new(name, -2, Flags::NONE, NO_KEY)
}
