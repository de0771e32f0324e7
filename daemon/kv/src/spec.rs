//! What there is to know about a command: COMMAND tells it, the dispatcher goes by it.

use super::call::{AtOnce, Handler};
use bytes::Bytes;

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
    /// Of a command that only reads: asked before the handler.
    pub at_once: Option<AtOnce>,
    /// Whether a call of so many words sets its first argument to its second without looking at
    /// what is there: the key's next such write need not wait for its end.
    pub blind: fn(usize) -> bool,
    /// Runs alone: nothing else is under way meanwhile (FLUSHALL, SWAPDB, …).
    pub alone: bool,
}

impl Flags {
    pub const NONE: Flags = Flags {
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
    };

    /// Those that are set.
    pub fn names(&self) -> Vec<&'static str> {
        let all = [
            (self.write, "write"),
            (self.readonly, "readonly"),
            (self.denyoom, "denyoom"),
            (self.admin, "admin"),
            (self.noscript, "noscript"),
            (self.loading, "loading"),
            (self.stale, "stale"),
            (self.fast, "fast"),
            (self.no_auth, "no_auth"),
            (self.no_multi, "no_multi"),
            (self.allow_busy, "allow_busy"),
        ];
        all.into_iter().filter(|(is, _)| *is).map(|(_, name)| name).collect()
    }
}

impl Keys {
    pub const NONE: Keys = Keys { first: 0, last: 0, step: 0 };
}

impl Spec {
    /// What the dispatcher goes by.
    pub const fn new(name: &'static str, arity: i32, flags: Flags, keys: Keys) -> Spec {
        Spec {
            name,
            arity,
            flags,
            keys,
            since: "",
            group: "",
            complexity: "",
            summary: "",
            handler: None,
            at_once: None,
            blind: |_| false,
            alone: false,
        }
    }

    /// Calls with so many words, its name included, set a key to a value without looking.
    pub const fn blind(self, blind: fn(usize) -> bool) -> Spec {
        Spec { blind, ..self }
    }

    /// Many calls can be answered without waiting for anything.
    pub const fn at_once(self, at_once: AtOnce) -> Spec {
        Spec { at_once: Some(at_once), ..self }
    }

    /// What people are told.
    pub const fn about(
        self,
        group: &'static str,
        since: &'static str,
        complexity: &'static str,
        summary: &'static str,
    ) -> Spec {
        Spec { since, group, complexity, summary, ..self }
    }

    /// The command that this one is a part of.
    pub fn parent(&self) -> Option<&'static str> {
        self.name.split_once('|').map(|(parent, _)| parent)
    }

    /// Whether it may be called with so many words, its name included.
    pub fn takes(&self, words: usize) -> bool {
        let words = i32::try_from(words).unwrap_or(i32::MAX);
        if self.arity > 0 { words == self.arity } else { words >= -self.arity }
    }

    pub fn has_keys(&self) -> bool {
        self.keys.first > 0
    }

    /// The keys of a call.
    pub fn keys_of<'a>(&self, args: &'a [Bytes]) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        self.key_positions(args.len()).filter_map(|at| args.get(at)).map(|key| &key[..])
    }

    /// Which of so many words are keys.
    pub fn key_positions(&self, words: usize) -> impl Iterator<Item = usize> + use<> {
        let count = words as i64;
        let last = i64::from(self.keys.last);
        let last = if last < 0 { count + last } else { last.min(count - 1) };
        let first = if self.keys.first > 0 { i64::from(self.keys.first) } else { last + 1 };
        (first..=last).step_by(self.keys.step.max(1) as usize).map(|at| at as usize)
    }
}
