//! A connection's state, and how much of it there may be.

use super::deferred_set::DeferredSet;
use super::flights::Flights;
use super::inbox::Inbox;
use super::outbox::Outbox;
use super::streaming::Streaming;
use crate::arguments::weight_of_all;
use crate::locks::MANY;
use crate::reply::Reply;
use crate::server::{Client, CommandId, Server, Stream};
use crate::session::{Session, TABLE};
use bytes::Bytes;
use futures::future::LocalBoxFuture;
use std::rc::Rc;

/// Commands under way at a time.
const MAX_FLIGHTS: usize = 256;
/// Bytes of the arguments of these; one command may have more.
const MAX_FLIGHT_BYTES: usize = 8 << 20;
/// Above this nothing new begins until the client has read some of it, or has sent as much.
const MAX_OUTPUT: usize = 1 << 20;
/// The same for a client that has not authenticated, and what it may hold in all.
const MAX_OUTPUT_STRANGER: usize = 4 << 10;

/// A connection, as its task has it.
pub struct Connection {
    pub session: Session,
    pub inbox: Inbox,
    pub outbox: Outbox,
    pub flights: Flights<LocalBoxFuture<'static, Reply>, DeferredSet>,
    /// The last answer, if it is sent in pieces.
    pub streaming: Option<Streaming>,
    /// So many of the next requests were looked at.
    pub hinted: usize,
    /// A command that can't begin yet.
    pub held: Option<Held>,
    /// There may be whole requests in the input that had no room to begin.
    pub backlog: bool,
    /// Nothing more is read or begun; the connection ends when all is answered.
    pub ending: bool,
    /// The output has waited its turn.
    pub waited: bool,
    pub rounds: u32,
}

/// A command that waits: if it is a barrier, for those before it, else for room for so many bytes
/// of values.
pub struct Held {
    pub args: Vec<Bytes>,
    /// The memory of these.
    pub bytes: usize,
    pub wanted: usize,
    /// Its value is not to be sent in pieces.
    pub is_whole: bool,
}

impl Held {
    pub fn new(args: Vec<Bytes>, wanted: usize, is_whole: bool) -> Held {
        Held { bytes: weight_of_all(&args), args, wanted, is_whole }
    }
}

impl Connection {
    pub fn new(stream: Stream, server: &Rc<Server>, client: &Rc<Client>) -> Connection {
        Connection {
            session: Session::new(server.clone(), TABLE, client.clone()),
            inbox: Inbox::default(),
            outbox: Outbox::new(stream),
            flights: Flights::new({
                let client = client.clone();
                move || client.wake()
            }),
            streaming: None,
            hinted: 0,
            held: None,
            backlog: false,
            ending: false,
            waited: false,
            rounds: 0,
        }
    }

    #[inline]
    pub fn has_room(&self) -> bool {
        !self.is_busy() && !self.is_owed_much()
    }

    /// Enough is under way; it comes to its end whatever the client does.
    #[inline]
    pub fn is_busy(&self) -> bool {
        self.flights.len() >= MAX_FLIGHTS
            || self.flights.bytes() >= MAX_FLIGHT_BYTES
            || self.streaming.as_ref().is_some_and(Streaming::is_opening)
    }

    /// The client is to read before more is begun.
    #[inline]
    pub fn is_owed_much(&self) -> bool {
        if self.streaming.is_some() {
            return true;
        }
        let owed = self.outbox.unsent() + self.flights.answers();
        match self.session.must_authenticate() {
            true => owed >= MAX_OUTPUT_STRANGER,
            false => owed >= MAX_OUTPUT.max(self.inbox.len()),
        }
    }

    /// Whether a command can't begin while others of this connection are under way.
    #[inline]
    pub fn must_wait(&self, found: Option<CommandId>, words: usize) -> bool {
        let Some(id) = found else { return false };
        let command = self.session.server.commands.get(id);
        let is_on_keys = command.spec.handler.is_some() && command.spec.keys.first > 0 && !command.spec.alone;
        let lags = self.session.client.lags.get();
        lags || !is_on_keys || words > MANY || self.session.server.pause.holds_up(command.spec.flags.write)
    }

    #[inline]
    pub fn answer(&mut self, reply: Reply) {
        if self.flights.is_empty() {
            self.outbox.push(&reply, self.session.client.protocol.get());
        } else {
            self.flights.push_done(reply);
        }
    }

    /// Brings the client's account up to date.
    pub fn weigh(&self) {
        let client = &self.session.client;
        let held = self.held.as_ref().map_or(0, |held| held.bytes);
        client.input.set(self.inbox.len());
        client.input_room.set(self.inbox.spare());
        client.input_memory.set(self.inbox.memory());
        client.arguments.set(self.inbox.arguments() + self.flights.bytes() + held);
        let streamed = self.streaming.as_ref().map_or(0, Streaming::memory);
        client.is_streamed_to.set(self.streaming.is_some());
        client.output.set(self.outbox.memory() + self.flights.answers() + streamed);
        self.session.server.weigh(client);
    }
}
