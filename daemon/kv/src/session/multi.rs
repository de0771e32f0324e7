//! MULTI, EXEC and WATCH: commands that run one after the other with nothing in between, if nobody
//! has touched what was watched.
//!
//! EXEC holds the locks of all keys that it names or has watched, or of everything if one of its
//! commands is about all keys. So others go on meanwhile, with other keys.

use super::state::{OK, Session};
use crate::call::Outcome;
use crate::locks::{MANY, Mode, Ticket};
use crate::reply::Reply;
use crate::server::CommandId;
use crate::turn;
use bytes::Bytes;
use futures::FutureExt;
use futures::future::LocalBoxFuture;

impl Session {
    /// Asks for the locks that a transaction needs.
    async fn lock_transaction(&self) -> Ticket {
        let (server, transaction) = (&self.server, &self.transaction);
        let spec = |id: CommandId| server.commands.get(id).spec;
        let is_about_all = |id| match spec(id).handler {
            Some(_) => spec(id).alone || !spec(id).has_keys(),
            // It may sleep, and nobody is to do anything meanwhile.
            None => spec(id).name == "debug",
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
            session.transaction.watch(db, key, || session.server.store.watch(db, key));
            turn::pause().await;
        }
        session.show_transaction();
        OK
    }
    .boxed_local()
}

pub fn unwatch(session: &mut Session, _: &[Bytes]) -> Outcome {
    session.transaction.unwatch();
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
