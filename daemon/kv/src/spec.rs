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

/// How calls of a command on keys may be dispatched. Where it can't be done so, and in a
/// transaction, the handler does the same in the end.
#[derive(Clone, Copy)]
pub enum Dispatch {
    /// A task runs the handler.
    Task,
    /// Of a command that only reads: this is asked first, and needs no task.
    AtOnce(AtOnce),
    /// A SET of so many words, its name included, may look at nothing that is there. Then it is in
    /// the log at once, needs no task, and is answered when the log is written; the key's next such
    /// SET need not wait for its end.
    Deferred(fn(usize) -> bool),
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
    pub dispatch: Dispatch,
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
            dispatch: Dispatch::Task,
            alone: false,
        }
    }

    pub const fn dispatched(self, dispatch: Dispatch) -> Spec {
        Spec { dispatch, ..self }
    }

    /// Whether a call of so many words, its name included, may be deferred.
    #[inline]
    pub fn is_deferred(&self, words: usize) -> bool {
        matches!(self.dispatch, Dispatch::Deferred(applies) if applies(words))
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
