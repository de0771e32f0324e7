//! MULTI, EXEC and WATCH: commands that run one after the other with nothing in between, if nobody has touched what was
//! watched.

use super::state::{OK, Session};
use crate::kv::call::Outcome;
use crate::kv::reply::Reply;
use crate::kv::server::CommandId;
use crate::kv::store::{Db, Watch};
use bytes::Bytes;
use futures::FutureExt;
use futures::future::LocalBoxFuture;

#[derive(Default)]
pub struct Transaction {
    /// `None`: not within MULTI.
    commands: Option<Vec<(CommandId, Vec<Bytes>)>>,
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
            self.bytes += args.iter().map(|argument| argument.len() + size_of::<Bytes>()).sum::<usize>();
            commands.push((id, args));
        }
    }

    /// Whether a queued command is such a one.
    pub fn has(&self, which: impl Fn(CommandId) -> bool) -> bool {
        self.commands.iter().flatten().any(|(id, _)| which(*id))
    }
}

impl Session {
    /// Leaves MULTI and forgets what was watched.
    pub fn discard(&mut self) {
        self.transaction = Transaction::default();
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

pub fn watch(session: &mut Session, args: &[Bytes]) -> Outcome {
    if session.transaction.is_open() {
        return Err("ERR WATCH inside MULTI is not allowed".into());
    }
    let db = session.db();
    for key in &args[1..] {
        let watched = &mut session.transaction.watched;
        if !watched.iter().any(|(known_db, known, _)| *known_db == db && known == key) {
            watched.push((db, key.clone(), session.server.store.watch(db, key)));
        }
    }
    OK
}

pub fn unwatch(session: &mut Session, _: &[Bytes]) -> Outcome {
    session.transaction.watched.clear();
    OK
}

pub fn exec<'a>(session: &'a mut Session, _: &'a [Bytes]) -> LocalBoxFuture<'a, Outcome> {
    async move {
        if !session.transaction.is_open() {
            return Err("ERR EXEC without MULTI".into());
        }
        let ticket = session.server.locks.everything();
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
        }
        session.runs_transaction = false;
        Ok(Reply::Array(replies))
    }
    .boxed_local()
}
