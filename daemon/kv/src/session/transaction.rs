//! MULTI, EXEC and WATCH: commands that run one after the other with nothing in between, if nobody
//! has touched what was watched.
//!
//! EXEC holds the locks of all keys that it names or has watched, or of everything if one of its
//! commands is about all keys. So others go on meanwhile, with other keys.

use super::Run;
use super::state::{OK, Session};
use crate::arguments::{weight, weight_of_all};
use crate::blocking;
use crate::call::Outcome;
use crate::reply::Reply;
use crate::server::{CommandId, MANY, Mode, Ticket};
use crate::store::{Db, Watch};
use crate::turn;
use bytes::Bytes;
use futures::FutureExt;
use futures::future::LocalBoxFuture;

/// What a watched key takes besides its name.
const WATCH: usize = 128;

#[derive(Default)]
pub struct Transaction {
    /// `None`: not within MULTI.
    commands: Option<Vec<(CommandId, Vec<Bytes>)>>,
    /// Which commands are among them.
    kinds: Vec<CommandId>,
    bytes: usize,
    /// A command could not be queued, so EXEC won't run the others either.
    refused: bool,
    watched: Vec<(Db, Bytes, Watch)>,
}

impl Transaction {
    pub fn is_open(&self) -> bool {
        self.commands.is_some()
    }

    pub fn queued(&self) -> Option<usize> {
        self.commands.as_ref().map(Vec::len)
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// What was refused can't be part of it.
    pub fn refuse(&mut self) {
        self.refused |= self.is_open();
    }

    /// Takes a command, unless it is clear already that it won't run.
    pub fn queue(&mut self, id: CommandId, args: Vec<Bytes>) {
        let refused = self.refused;
        if let Some(commands) = self.commands.as_mut().filter(|_| !refused) {
            // Arguments of their own: one may keep a larger read buffer alive.
            let args: Vec<Bytes> = args.iter().map(|argument| Bytes::copy_from_slice(argument)).collect();
            self.bytes += weight_of_all(&args) + size_of::<(CommandId, Vec<Bytes>)>();
            commands.push((id, args));
            if !self.kinds.contains(&id) {
                self.kinds.push(id);
            }
        }
    }

    /// Whether a queued command is such a one.
    pub fn has(&self, which: impl Fn(CommandId) -> bool) -> bool {
        self.kinds.iter().any(|id| which(*id))
    }
}

impl Session {
    /// Asks for the locks that a transaction needs.
    async fn lock_transaction(&self) -> Ticket {
        let (server, transaction) = (&self.server, &self.transaction);
        let spec = |id: CommandId| server.commands.get(id).spec;
        let is_about_all = |id| match server.commands.get(id).run {
            Run::Keys(_) => spec(id).alone || !spec(id).has_keys(),
            // It may sleep, and nobody is to do anything meanwhile.
            _ => spec(id).name == "debug",
        };
        if transaction.has(is_about_all) {
            return server.locks.everything_soon().await;
        }
        let queued = transaction.commands.iter().flatten();
        let keys = queued.flat_map(|(id, args)| spec(*id).keys_of(args));
        let watched = transaction.watched.iter().map(|(_, key, _)| &key[..]);
        let mode = if transaction.has(|id| spec(id).flags.write) { Mode::Write } else { Mode::Read };
        let is_long = transaction.queued().is_some_and(|count| count >= MANY);
        server.locks.together(keys.chain(watched), mode, is_long).await
    }

    /// Leaves MULTI and forgets what was watched.
    pub fn discard(&mut self) {
        let transaction = std::mem::take(&mut self.transaction);
        blocking::let_go(transaction.bytes, transaction.commands);
        self.show_transaction();
    }
}

pub fn multi(session: &mut Session, _: &[Bytes]) -> Outcome {
    if session.transaction.is_open() {
        return Err("ERR MULTI calls can not be nested".into());
    }
    session.transaction.commands = Some(Vec::new());
    session.show_transaction();
    OK
}

pub fn discard(session: &mut Session, _: &[Bytes]) -> Outcome {
    if !session.transaction.is_open() {
        return Err("ERR DISCARD without MULTI".into());
    }
    session.discard();
    OK
}

pub fn watch<'a>(session: &'a mut Session, args: &'a [Bytes]) -> LocalBoxFuture<'a, Outcome> {
    async move {
        if session.transaction.is_open() {
            return Err("ERR WATCH inside MULTI is not allowed".into());
        }
        // What a transaction that is under way will write has not changed since.
        let ticket = session.server.locks.together(args[1..].iter().map(|key| &key[..]), Mode::Read, false).await;
        ticket.granted().await;
        let db = session.db();
        for key in &args[1..] {
            let watched = &mut session.transaction.watched;
            if !watched.iter().any(|(known_db, known, _)| *known_db == db && known == key) {
                let watch = session.server.store.watch(db, key);
                watched.push((db, Bytes::copy_from_slice(key), watch));
                session.transaction.bytes += WATCH + weight(key);
            }
            turn::pause().await;
        }
        session.show_transaction();
        OK
    }
    .boxed_local()
}

pub fn unwatch(session: &mut Session, _: &[Bytes]) -> Outcome {
    let watched = session.transaction.watched.drain(..).map(|(_, key, _)| WATCH + weight(&key));
    session.transaction.bytes -= watched.sum::<usize>();
    session.show_transaction();
    OK
}

pub fn exec<'a>(session: &'a mut Session, _: &'a [Bytes]) -> LocalBoxFuture<'a, Outcome> {
    async move {
        if !session.transaction.is_open() {
            return Err("ERR EXEC without MULTI".into());
        }
        let ticket = session.lock_transaction().await;
        ticket.granted().await;
        let transaction = std::mem::take(&mut session.transaction);
        session.show_transaction();
        if transaction.refused {
            return Err("EXECABORT Transaction discarded because of previous errors.".into());
        }
        if transaction.watched.iter().any(|(_, _, watch)| watch.is_changed()) {
            return Ok(Reply::NullArray);
        }
        drop(transaction.watched);
        let commands = transaction.commands.unwrap_or_default();
        let mut replies = Vec::with_capacity(commands.len());
        session.runs_transaction = true;
        for (id, args) in commands {
            let protocol = session.client.protocol.get();
            let reply = session.run_within_exec(id, &args).await;
            if session.client.protocol.get() != protocol {
                // HELLO: what came before it is answered as before.
                replies.iter_mut().for_each(|earlier: &mut Reply| *earlier = earlier.encoded(protocol));
            }
            replies.push(reply);
            turn::drop_all(args).await;
        }
        session.runs_transaction = false;
        drop(ticket);
        Ok(Reply::Array(replies))
    }
    .boxed_local()
}
