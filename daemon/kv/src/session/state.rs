//! A connection's state, and the checks a command passes before it runs, in Redis' order.

use super::arguments::repeated;
use super::transaction::Transaction;
use crate::call::{Failure, Outcome};
use crate::reply::Reply;
use crate::server::{Client, CommandId, Server};
use crate::spec::Spec;
use crate::store::{Db, StoreError};
use bytes::Bytes;
use futures::future::LocalBoxFuture;
use std::rc::Rc;
use std::time::Instant;

/// How many characters of a client's words an error repeats.
const REPEATED: usize = 128;

/// How the session answers a command of its own.
#[derive(Clone, Copy)]
pub enum Run {
    /// At once.
    Now(fn(&mut Session, &[Bytes]) -> Outcome),
    /// When it can.
    Later(for<'a> fn(&'a mut Session, &'a [Bytes]) -> LocalBoxFuture<'a, Outcome>),
}

/// A command's description, and how the session answers it. `None`: it works on keys and needs
/// nothing of the session, or has nothing but sub-commands.
pub struct Row {
    pub spec: Spec,
    pub run: Option<Run>,
}

pub struct Session {
    pub server: Rc<Server>,
    /// The session's commands, by their numbers.
    pub rows: &'static [Row],
    pub client: Rc<Client>,
    pub transaction: Transaction,
    pub replies: Replies,
    /// EXEC is under way and holds the locks of its commands.
    pub runs_transaction: bool,
}

/// What CLIENT REPLY has set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Replies {
    #[default]
    On,
    Off,
    /// Not to the next command.
    SkipNext,
}

/// What is to become of a request.
pub enum Admission {
    /// It is answered already.
    Answered(Reply),
    Run(CommandId),
}

impl Session {
    pub fn new(server: Rc<Server>, rows: &'static [Row], client: Rc<Client>) -> Session {
        client.authenticated.set(!server.config.needs_password());
        Session {
            server,
            rows,
            client,
            transaction: Transaction::default(),
            replies: Replies::default(),
            runs_transaction: false,
        }
    }

    pub fn db(&self) -> Db {
        self.client.db.get()
    }

    /// Whether requests are limited, because the client has not authenticated and should.
    pub fn must_authenticate(&self) -> bool {
        !self.client.authenticated.get() && self.server.config.needs_password()
    }

    /// Checks a request and, within MULTI, queues it.
    pub fn admit(&mut self, found: Option<CommandId>, args: &mut Vec<Bytes>) -> Admission {
        match self.check(found, args) {
            Err(failure) => {
                self.transaction.refuse();
                self.server.stats.count_error(&failure);
                if let Some(id) = found {
                    let rejected = &self.server.commands.get(id).stats.rejected;
                    rejected.set(rejected.get() + 1);
                    if self.server.commands.get(id).spec.name == "exec" {
                        self.discard();
                        let text = failure.0.strip_prefix("ERR ").unwrap_or(&failure.0);
                        let text = format!("EXECABORT Transaction discarded because of: {text}");
                        return Admission::Answered(Reply::Error(text.into()));
                    }
                }
                Admission::Answered(Reply::Error(failure.0))
            }
            Ok(id) if self.transaction.is_open() && !passes_through(self.server.commands.get(id).spec.name) => {
                self.transaction.queue(id, std::mem::take(args));
                self.show_transaction();
                Admission::Answered(Reply::Simple("QUEUED".into()))
            }
            Ok(id) => Admission::Run(id),
        }
    }

    fn check(&self, found: Option<CommandId>, args: &[Bytes]) -> Result<CommandId, Failure> {
        let id = found.ok_or_else(|| self.unknown(args))?;
        let spec = self.server.commands.get(id).spec;
        if !spec.takes(args.len()) {
            return Err(wrong_arity(spec.name));
        }
        self.server.config.allows(spec.name, &self.client)?;
        if self.must_authenticate() && !spec.flags.no_auth {
            return Err("NOAUTH Authentication required.".into());
        }
        // What is not taken over yet would seem not to be there.
        if !spec.flags.loading && self.server.store.is_loading() {
            return Err(StoreError::Loading.into());
        }
        if self.transaction.is_open() && spec.flags.no_multi {
            return Err("ERR Command not allowed inside a transaction".into());
        }
        if self.is_held_back(spec.name) && !self.server.store.has_room() {
            return Err(StoreError::NoRoom.into());
        }
        Ok(id)
    }

    /// Whether a command of a transaction needs memory that others can't have either: what is
    /// queued takes some, whatever it is, and nothing of a transaction runs if a part of it would
    /// be refused.
    fn is_held_back(&self, name: &str) -> bool {
        let denies = |id| self.server.commands.get(id).spec.flags.denyoom;
        match name {
            "discard" => false,
            "exec" => self.transaction.has(denies),
            _ => self.transaction.is_open(),
        }
    }

    fn unknown(&self, args: &[Bytes]) -> Failure {
        let words = |bytes: &[u8], limit: usize| repeated(&bytes[..bytes.len().min(limit)]);
        let (name, rest) = args.split_first().map_or((&[][..], args), |(name, rest)| (&name[..], rest));
        if self.server.commands.by_full_name(name).is_some()
            && !name.contains(&b'|')
            && let Some(sub) = rest.first()
        {
            let parent = words(name, name.len()).to_uppercase();
            let sub = words(sub, REPEATED);
            return Failure(format!("ERR unknown subcommand '{sub}'. Try {parent} HELP.").into());
        }
        let (mut beginning, mut length) = (String::new(), 0);
        for word in rest {
            if length >= REPEATED {
                break;
            }
            let word = format!("'{}' ", words(word, REPEATED - length));
            length += word.chars().count();
            beginning += &word;
        }
        let name = words(name, REPEATED);
        Failure(format!("ERR unknown command '{name}', with args beginning with: {beginning}").into())
    }

    /// Whether the next reply is not to be sent; that of one command after CLIENT REPLY SKIP.
    #[inline]
    pub fn mutes(&mut self) -> bool {
        match self.replies {
            Replies::On => false,
            Replies::Off => true,
            Replies::SkipNext => {
                self.replies = Replies::On;
                true
            }
        }
    }

    /// Whether this is an EXEC of commands of which one writes.
    pub fn exec_writes(&self, name: &str) -> bool {
        name == "exec" && self.transaction.has(|id| self.server.commands.get(id).spec.flags.write)
    }

    /// Leaves MULTI and forgets what was watched.
    pub fn discard(&mut self) {
        let transaction = std::mem::take(&mut self.transaction);
        transaction.let_go();
        self.show_transaction();
    }

    /// Brings CLIENT LIST up to date.
    pub fn show_transaction(&self) {
        self.client.queued.set(self.transaction.queued());
        self.client.queued_bytes.set(self.transaction.bytes());
    }

    /// As if the connection were new, but for what RESET leaves.
    pub fn reset(&mut self) {
        self.discard();
        self.client.db.set(Db(0));
        self.client.protocol.set(Default::default());
        self.client.name.replace(Bytes::new());
        self.client.authenticated.set(!self.server.config.needs_password());
        self.client.stranger_since.set(Instant::now());
        self.replies = Replies::On;
    }
}

/// Commands that run within MULTI rather than being queued.
fn passes_through(name: &str) -> bool {
    matches!(name, "exec" | "discard" | "multi" | "watch" | "quit" | "reset")
}

pub fn wrong_arity(name: &str) -> Failure {
    Failure(format!("ERR wrong number of arguments for '{name}' command").into())
}

pub const OK: Outcome = Ok(Reply::OK);
