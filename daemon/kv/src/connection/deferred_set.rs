//! A SET that looks at nothing: its record goes into the store's log at once, and no task waits for
//! it.

use super::flights::DeferredWrite;
use crate::call::Failure;
use crate::commands::defer_set;
use crate::locks::Ticket;
use crate::reply::Reply;
use crate::server::{Client, CommandId, Server};
use crate::store::{StoreError, WriteListener};
use bytes::Bytes;
use std::rc::{Rc, Weak};
use std::time::Instant;

/// One that has begun, with the locks it holds until its record counts.
pub struct DeferredSet {
    server: Rc<Server>,
    client: Rc<Client>,
    id: CommandId,
    args: Vec<Bytes>,
    ticket: Ticket,
    is_muted: bool,
    begun: Instant,
}

impl DeferredSet {
    /// The arguments are a key and its value.
    pub fn new(
        server: &Rc<Server>,
        client: &Rc<Client>,
        id: CommandId,
        args: Vec<Bytes>,
        ticket: Ticket,
        is_muted: bool,
    ) -> DeferredSet {
        DeferredSet {
            server: server.clone(),
            client: client.clone(),
            id,
            args,
            ticket,
            is_muted,
            begun: Instant::now(),
        }
    }

    /// Puts the record into the log, if that can be done at once.
    pub fn begin(&self, listener: &Weak<dyn WriteListener>, number: u64) -> bool {
        let is_appended = defer_set(&self.server.store, self.client.db.get(), &self.args, listener, number);
        if is_appended {
            self.ticket.appended();
        }
        is_appended
    }

    /// What the command needs to be run as any other.
    pub fn give_back(self) -> (Vec<Bytes>, Ticket) {
        (self.args, self.ticket)
    }
}

impl DeferredWrite for DeferredSet {
    fn end(self, outcome: Result<(), StoreError>) -> Reply {
        let outcome = outcome.map(|()| Reply::OK).map_err(Failure::from);
        self.server.account(self.id, &self.client, &self.args, self.begun.elapsed(), &outcome);
        match outcome {
            _ if self.is_muted => Reply::Silence,
            Ok(reply) => reply,
            Err(failure) => Reply::Error(failure.0),
        }
    }
}
