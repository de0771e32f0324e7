//! What there is to know about a command: COMMAND tells it, the dispatcher goes by it.

use super::call::Handler;

/// Flags as COMMAND INFO names them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags {
    pub write: bool,
    pub readonly: bool,
    pub denyoom: bool,
    pub admin: bool,
    pub noscript: bool,
    pub loading: bool,
    pub stale: bool,
    pub fast: bool,
    pub no_auth: bool,
    pub no_multi: bool,
    pub allow_busy: bool,
    pub movablekeys: bool,
}

/// Which arguments are keys: as in Redis, `last` may be negative (from the end). `first` 0: none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Keys {
    pub first: i32,
    pub last: i32,
    pub step: i32,
}

pub struct Spec {
    /// Lower case; a sub-command's with its parent: `object|encoding`.
    pub name: &'static str,
    /// As in Redis: with the name, negative means at least.
    pub arity: i32,
    pub flags: Flags,
    pub keys: Keys,
    pub since: &'static str,
    /// "string", "generic", "bitmap", "server", "connection", "transactions", …
    pub group: &'static str,
    pub complexity: &'static str,
    pub summary: &'static str,
    /// `None`: the session itself answers (MULTI, SELECT, CLIENT, …).
    pub handler: Option<Handler>,
    /// Whether a call writes without looking at what is there, so that the key's next such write need not wait for its end.
    pub blind: fn(usize) -> bool,
    /// Runs alone: nothing else is under way meanwhile (FLUSHALL, SWAPDB, …).
    pub alone: bool,
}
