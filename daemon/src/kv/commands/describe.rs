//! How a command is described: the constants and the little builder that the tables of the command files are written
//! with.

use super::super::call::Handler;
use super::super::spec::{Flags, Keys, Spec};

const NONE: Flags = Flags {
    write: false,
    readonly: false,
    denyoom: false,
    admin: false,
    noscript: false,
    loading: false,
    stale: false,
    fast: false,
    no_auth: false,
    no_multi: false,
    allow_busy: false,
    movablekeys: false,
};

pub const READ: Flags = Flags { readonly: true, ..NONE };
pub const FAST_READ: Flags = Flags { readonly: true, fast: true, ..NONE };
/// Writes that may be refused for want of room.
pub const GROWING_WRITE: Flags = Flags { write: true, denyoom: true, ..NONE };
pub const FAST_GROWING_WRITE: Flags = Flags { write: true, denyoom: true, fast: true, ..NONE };
pub const WRITE: Flags = Flags { write: true, ..NONE };
pub const FAST_WRITE: Flags = Flags { write: true, fast: true, ..NONE };
pub const ANYTIME: Flags = Flags { loading: true, stale: true, ..NONE };

pub const NO_KEY: Keys = Keys { first: 0, last: 0, step: 0 };
pub const ONE_KEY: Keys = Keys { first: 1, last: 1, step: 1 };
pub const TWO_KEYS: Keys = Keys { first: 1, last: 2, step: 1 };
/// A sub-command's key.
pub const SECOND: Keys = Keys { first: 2, last: 2, step: 1 };
pub const ALL_KEYS: Keys = Keys { first: 1, last: -1, step: 1 };
pub const KEYS_AND_VALUES: Keys = Keys { first: 1, last: -1, step: 2 };
pub const ALL_BUT_FIRST: Keys = Keys { first: 2, last: -1, step: 1 };

/// What the dispatcher goes by.
pub const fn command(name: &'static str, arity: i32, flags: Flags, keys: Keys, handler: Handler) -> Spec {
    Spec { arity, flags, keys, handler: Some(handler), ..container(name) }
}

/// A name that only its sub-commands answer to.
pub const fn container(name: &'static str) -> Spec {
    Spec {
        name,
        arity: -2,
        flags: NONE,
        keys: NO_KEY,
        since: "",
        group: "",
        complexity: "",
        summary: "",
        handler: None,
        blind: |_| false,
        alone: false,
    }
}

impl Spec {
    /// Calls with so many words, the name included, write without looking.
    pub(super) const fn blind(self, blind: fn(usize) -> bool) -> Spec {
        Spec { blind, ..self }
    }

    /// What people are told.
    pub(super) const fn about(
        self,
        group: &'static str,
        since: &'static str,
        complexity: &'static str,
        summary: &'static str,
    ) -> Spec {
        Spec { since, group, complexity, summary, ..self }
    }
}
