//! What a client is sent: replies are gathered in their order, and written.

use super::outbox::Sent;
use super::state::{Connection, Held};
use super::streaming::Streamed;
use crate::server::Statistics;
use crate::turn;
use annex_host::repeated;
use std::io;
use std::task::{Context, Poll};
use std::time::Instant;

/// So much output does not wait for more.
const FULL_WRITE: usize = 16 << 10;
/// So many records are written without waiting for those of other connections.
const DEFERRED_ALONE: usize = 8;

impl Connection {
    /// Drives the commands under way and gathers the replies whose turn it is.
    #[inline]
    pub fn collect(&mut self, context: &mut Context<'_>) {
        if self.flights.is_empty() {
            return;
        }
        self.forward();
        self.flights.poll(context);
        let protocol = self.session.client.protocol.get();
        while let Some(reply) = self.flights.pop() {
            self.outbox.push(&reply, protocol);
            self.waited = false;
        }
    }

    /// Gathers what has come of an answer that is sent in pieces.
    pub fn stream(&mut self, context: &mut Context<'_>) {
        let Some(streaming) = &mut self.streaming else { return };
        let client = &self.session.client;
        match streaming.poll(&mut self.outbox, context) {
            Poll::Pending => {}
            Poll::Ready(Ok(Streamed::Whole)) => self.streaming = None,
            Poll::Ready(Ok(Streamed::Refused(args))) => {
                self.streaming = None;
                self.held = Some(Held::new(args, 0, true));
            }
            // A part of the answer is sent: an error can't be told any more.
            Poll::Ready(Err(error)) => {
                repeated!(
                    ERROR, "a client was closed: its answer can't be read to its end" of "",
                    "client {} at {} was closed: the value that it is sent can't be read to its end: {error}",
                    client.id, client.peer
                );
                client.kill();
            }
        }
    }

    /// Has deferred writes written: together with those of other connections, unless they are
    /// enough for themselves or there are no others.
    fn forward(&mut self) {
        let (deferred, server) = (self.flights.deferred(), &self.session.server);
        if deferred >= DEFERRED_ALONE || (deferred > 0 && server.clients.borrow().len() == 1) {
            self.flights.forward(|| server.store.forward());
        } else if deferred > 0 {
            server.store.forward_soon();
        }
    }

    pub fn poll_write(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        if self.outbox.is_empty() {
            return Ok(());
        }
        let (server, client) = (&self.session.server, &self.session.client);
        let unsent = self.outbox.settle(self.ending || self.streaming.is_some())?;
        let output = &server.stats.output;
        output.set(output.get().saturating_sub(unsent.unwrap_or(0) as u64));
        let due = self.outbox.gathered();
        if unsent.is_some() && due > 0 {
            if !self.flights.is_empty() && due < FULL_WRITE && !self.waited {
                self.waited = true;
                context.waker().wake_by_ref();
                return Ok(());
            }
            let (sent, writes) = match self.outbox.poll_send(&server.io_threads, context)? {
                Sent::Here { writes } => (due - self.outbox.gathered(), writes),
                Sent::HandedOver => {
                    Statistics::add(&server.stats.io_threaded_writes, 1);
                    (due, 1)
                }
            };
            Statistics::add(&server.stats.output, sent);
            Statistics::add(&server.stats.writes, writes);
            self.waited = false;
        }
        if self.streaming.as_ref().is_some_and(|streaming| streaming.wants_more(self.outbox.unsent())) {
            turn::again(context);
        }
        // What an I/O thread has does not wait for the client.
        let is_stuck = self.outbox.gathered() > 0;
        if !is_stuck {
            client.stuck_since.set(None);
        } else if self.outbox.gathered() < due || client.stuck_since.get().is_none() {
            client.stuck_since.set(Some(Instant::now()));
        }
        client.output_pieces.set(self.outbox.pieces());
        let hard = server.config.live.hard_output.get();
        if hard > 0 && self.outbox.gathered() as u64 > hard {
            repeated!(
                WARN, "a client was closed: its output is above client-output-buffer-limit" of "",
                "client {} at {} was closed: its output is above client-output-buffer-limit", client.id, client.peer
            );
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        Ok(())
    }
}
