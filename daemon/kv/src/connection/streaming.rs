//! The answer to a GET of a large value: it is sent piece by piece, as the pieces come from the
//! pool and as the client takes them. What is on its way is never more than a [`WINDOW`] and a
//! piece.
//!
//! It begins when all before it is answered, and nothing behind it begins before it is over. The
//! key's lock is held until the value's log pages are pinned (`store::Pieces`). It is not held
//! while anything is read, nor until the client has taken it: a reader keeps no writer waiting.
//! While the key has another value the pool keeps this one for its reader alone. That counts as the
//! client's memory, so `maxmemory-clients` limits it.

use super::outbox::Outbox;
use crate::call::Outcome;
use crate::reply::Reply;
use crate::server::{Client, CommandId, Running, Server};
use crate::store::{LARGE, Pieces};
use annex_pool::IoError;
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
    /// Pieces that were asked for.
    reads: FuturesOrdered<LocalBoxFuture<'static, Result<Bytes, IoError>>>,
    /// Bytes of these.
    asked: usize,
    _running: Running,
}

enum State {
    /// Gives the request back if it can't be answered so.
    Opening(LocalBoxFuture<'static, Result<Pieces, Vec<Bytes>>>),
    Sending(Pieces),
}

/// How it ended.
pub enum Streamed {
    Whole,
    /// Nothing was sent. The value is not large any more, or is to be read whole.
    Refused(Vec<Bytes>),
}

impl Streaming {
    /// Whether a command that brings so many bytes is answered piece by piece.
    pub fn suits(server: &Server, id: CommandId, expected: usize) -> bool {
        expected >= LARGE && server.commands.get(id).spec.name == "get"
    }

    /// Begins to answer a GET.
    pub fn new(server: &Rc<Server>, id: CommandId, client: &Rc<Client>, args: Vec<Bytes>) -> Streaming {
        let (server, client, running) = (server.clone(), client.clone(), Running::new(client));
        let ticket = server.lock(id, &args);
        let opening = async move {
            ticket.granted().await;
            let begun = Instant::now();
            let pieces = server.store.pin(client.db.get(), &args[1]).await;
            drop(ticket);
            match pieces {
                Some(pieces) if pieces.is_of(&args[1]).await => {
                    let outcome: Outcome = Ok(Reply::OK);
                    server.account(id, &client, &args, begun.elapsed(), &outcome);
                    Ok(pieces)
                }
                _ => Err(args),
            }
        };
        let state = State::Opening(opening.boxed_local());
        Streaming { state, reads: FuturesOrdered::new(), asked: 0, _running: running }
    }

    /// Nothing is sent yet, and it is not known whether anything will be.
    pub fn is_opening(&self) -> bool {
        matches!(self.state, State::Opening(_))
    }

    /// Bytes of memory for it: those on their way, and what is kept to be read.
    pub fn memory(&self) -> usize {
        match &self.state {
            State::Opening(_) => WINDOW,
            State::Sending(pieces) => self.asked + pieces.memory(),
        }
    }

    /// Whether more can be asked for, now that so many bytes wait to be sent.
    pub fn wants_more(&self, unsent: usize) -> bool {
        matches!(&self.state, State::Sending(pieces) if pieces.left() > 0) && unsent + self.asked < WINDOW
    }

    /// Puts what has come into the outbox, and asks for more. Ready when that was all.
    pub fn poll(&mut self, outbox: &mut Outbox, context: &mut Context<'_>) -> Poll<Result<Streamed, IoError>> {
        if let State::Opening(opening) = &mut self.state {
            match ready!(opening.poll_unpin(context)) {
                Err(args) => return Poll::Ready(Ok(Streamed::Refused(args))),
                Ok(pieces) => {
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
                    return Poll::Ready(Ok(Streamed::Whole));
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
