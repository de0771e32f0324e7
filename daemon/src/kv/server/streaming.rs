//! The answer to a GET of a large value: it is sent piece by piece, as the pieces come from the pool and as the client
//! takes them. What is on its way is never more than a [`WINDOW`].
//!
//! It begins when all before it is answered, and nothing behind it begins before it is over. The key's lock is held
//! until the value's sheets are pinned (`store::Pieces`), not until the client has taken it: a reader keeps no writer
//! waiting. While the key has another value the pool keeps this one for its reader alone. That counts as the client's
//! memory, so `maxmemory-clients` limits it.

use super::outbox::Outbox;
use super::{CommandId, Server};
use crate::kv::call::Outcome;
use crate::kv::reply::{Protocol, Reply};
use crate::kv::session::Client;
use crate::kv::store::{LARGE, Pieces};
use crate::pool::IoError;
use bytes::Bytes;
use futures::FutureExt;
use futures::future::LocalBoxFuture;
use futures::stream::{FuturesOrdered, StreamExt};
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Instant;

/// Bytes that are on their way from the pool, or wait to be sent.
pub const WINDOW: usize = 1 << 20;

pub struct Streaming {
    state: State,
    /// Pieces that were asked for, with how many bytes each has.
    reads: FuturesOrdered<LocalBoxFuture<'static, Result<Bytes, IoError>>>,
    /// Bytes of these.
    asked: usize,
}

enum State {
    Opening(LocalBoxFuture<'static, Opened>),
    Sending(Pieces),
}

enum Opened {
    Pieces(Pieces),
    /// It is not large any more, or is to be read whole.
    Whole(Reply),
}

impl Server {
    /// Whether a command that brings so many bytes is answered piece by piece.
    pub fn streams(&self, id: CommandId, expected: usize) -> bool {
        expected >= LARGE && self.commands.get(id).spec.name == "get"
    }

    /// Begins to answer a GET.
    pub fn stream(self: &Rc<Self>, id: CommandId, client: &Rc<Client>, args: Vec<Bytes>) -> Streaming {
        let (server, client) = (self.clone(), client.clone());
        let ticket = server.lock(id, &args);
        let opening = async move {
            ticket.granted().await;
            let (begun, db) = (Instant::now(), client.db.get());
            match server.store.pieces(db, &args[1]).await {
                Some(pieces) => {
                    let outcome: Outcome = Ok(Reply::OK);
                    server.account(id, &client, &args, begun.elapsed(), &outcome);
                    Opened::Pieces(pieces)
                }
                None => {
                    let outcome = server.run(id, &client, db, &args, Some(&ticket)).await;
                    Opened::Whole(outcome.unwrap_or_else(|failure| Reply::Error(failure.0)))
                }
            }
        };
        Streaming { state: State::Opening(opening.boxed_local()), reads: FuturesOrdered::new(), asked: 0 }
    }
}

impl Streaming {
    /// Bytes of memory for it: those on their way, and those that the pool keeps for it alone.
    pub fn memory(&self) -> usize {
        match &self.state {
            State::Opening(_) => WINDOW,
            State::Sending(pieces) if !pieces.is_current() => self.asked + pieces.left(),
            State::Sending(_) => self.asked,
        }
    }

    /// Whether more can be asked for, now that so many bytes wait to be sent.
    pub fn wants_more(&self, unsent: usize) -> bool {
        matches!(&self.state, State::Sending(pieces) if pieces.left() > 0) && unsent + self.asked < WINDOW
    }

    /// Puts what has come into the outbox, and asks for more. Ready when that was all.
    pub fn poll(
        &mut self,
        outbox: &mut Outbox,
        protocol: Protocol,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), IoError>> {
        if let State::Opening(opening) = &mut self.state {
            match ready!(opening.poll_unpin(context)) {
                Opened::Whole(reply) => {
                    outbox.push(&reply, protocol);
                    return Poll::Ready(Ok(()));
                }
                Opened::Pieces(pieces) => {
                    outbox.push_head(pieces.left());
                    self.state = State::Sending(pieces);
                }
            }
        }
        let State::Sending(pieces) = &mut self.state else { return Poll::Pending };
        loop {
            while outbox.unsent() + self.asked < WINDOW
                && let Some((bytes, read)) = pieces.read_next()
            {
                self.asked += bytes;
                self.reads.push_back(read.boxed_local());
            }
            match ready!(self.reads.poll_next_unpin(context)) {
                Some(piece) => {
                    let piece = piece?;
                    self.asked -= piece.len();
                    outbox.push_piece(piece);
                }
                None if pieces.left() == 0 => {
                    outbox.push_end();
                    return Poll::Ready(Ok(()));
                }
                // The client is to take some first.
                None => return Poll::Pending,
            }
        }
    }

    /// The client is gone.
    pub async fn let_go(self) {
        drop(self.reads);
        if let State::Sending(pieces) = self.state {
            pieces.let_go().await;
        }
    }
}
