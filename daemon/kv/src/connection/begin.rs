//! Beginning a command that has passed the session's checks: at once, deferred, or under way.

use super::deferred_set::DeferredSet;
use super::state::{Connection, Held};
use super::streaming::{Streaming, WINDOW};
use crate::arguments::{is, weight_of_all};
use crate::blocking;
use crate::locks::MANY;
use crate::reply::Reply;
use crate::server::{CommandId, MemoryGrant, Running, Statistics};
use crate::session::Replies;
use crate::turn;
use bytes::Bytes;
use futures::FutureExt;
use futures::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::{Duration, Instant};

impl Connection {
    /// Gives it back if there is no room for the values it brings.
    pub async fn begin(&mut self, id: CommandId, args: Vec<Bytes>, is_whole: bool) -> Option<Held> {
        let server = self.session.server.clone();
        let client = self.session.client.clone();
        let command = server.commands.get(id);
        let writes = command.spec.flags.write || self.session.exec_writes(command.spec.name);
        if server.pause.holds_up(writes) {
            self.wait_for_pause(writes).await;
            if client.is_killed() {
                return None;
            }
        }
        client.last_command.set(command.spec.name);
        if command.spec.handler.is_none() {
            self.begin_of_session(id, &args).await;
            return None;
        }
        if let Some(reply) = server.read_now(id, &client, &args) {
            let is_muted = self.session.mutes();
            self.answer(if is_muted { Reply::Silence } else { reply });
            return None;
        }
        let expected = server.expected(id, client.db.get(), &args).await;
        let is_streamed = !is_whole && Streaming::suits(&server, id, expected) && self.session.replies == Replies::On;
        if is_streamed && !self.flights.is_empty() {
            return Some(Held::new(args, 0, is_whole));
        }
        let expected = if is_streamed { WINDOW } else { expected };
        let is_muted = match server.room_for(&client, expected) {
            Ok(MemoryGrant::Granted) => self.session.mutes(),
            Ok(MemoryGrant::Later) => return Some(Held::new(args, expected, is_whole)),
            Err(failure) => {
                server.stats.count_error(&failure);
                let is_muted = self.session.mutes();
                self.answer(if is_muted { Reply::Silence } else { Reply::Error(failure.0) });
                return None;
            }
        };
        if is_streamed {
            self.streaming = Some(Streaming::new(&server, id, &client, args));
            return None;
        }
        let is_slow = command.spec.alone || args.len() > MANY;
        let ticket = if is_slow { server.lock_slowly(id, &args).await } else { server.lock(id, &args) };
        let must_wait = self.must_wait(Some(id), args.len());
        let (mut ticket, mut args) = (ticket, args);
        let (db, bytes) = (client.db.get(), weight_of_all(&args));
        if ticket.is_deferred() && ticket.is_granted() && !must_wait {
            let deferred = DeferredSet::new(&server, &client, id, args, ticket, is_muted);
            let begin = |deferred: &DeferredSet, listener: &_, number| deferred.begin(listener, number);
            match self.flights.defer(deferred, bytes, begin) {
                Ok(()) => return None,
                Err(deferred) => (args, ticket) = deferred.give_back(),
            }
        }
        let future = {
            let (server, running) = (server.clone(), Running::new(&client));
            async move {
                let _running = running;
                ticket.granted().await;
                let outcome = server.run(id, &client, db, &args, Some(&ticket)).await;
                drop(ticket);
                if args.len() > MANY {
                    turn::drop_all(args).await;
                } else {
                    blocking::let_go(bytes, args);
                }
                let reply = outcome.unwrap_or_else(|failure| Reply::Error(failure.0));
                if is_muted { Reply::Silence } else { reply }
            }
        };
        let reply = if must_wait {
            future.await
        } else {
            // Much is known without a round trip: a key that isn't there, a time to live.
            let mut future = future.boxed_local();
            match poll_fn(|context| Poll::Ready(future.as_mut().poll(context))).await {
                Poll::Ready(reply) => reply,
                Poll::Pending => {
                    self.flights.push(future, bytes, expected);
                    if expected > 0 {
                        // The next one is to know of it.
                        self.weigh();
                    }
                    return None;
                }
            }
        };
        self.answer_in_turns(reply).await;
        None
    }

    /// Runs a command of the session. All before it are answered.
    async fn begin_of_session(&mut self, id: CommandId, args: &[Bytes]) {
        let name = self.session.server.commands.get(id).spec.name;
        let client = self.session.client.clone();
        let was_off = self.session.replies == Replies::Off;
        let is_muted = self.session.mutes();
        // While a transaction runs, it is not queued any more.
        client.exec_output.set(client.queued_bytes.get());
        if gives_password(name, args) && !self.may_guess().await {
            return;
        }
        let running = Running::new(&client);
        let reply = self.session.run(id, args).await;
        drop(running);
        client.exec_output.set(0);
        self.wait_for_penalty().await;
        self.ending |= client.closing.get();
        // The answer to CLIENT REPLY ON is the first that is sent again, or that to RESET.
        let speaks_again = match name {
            "client|reply" => reply == Reply::OK,
            other => other == "reset" && was_off,
        };
        let is_muted = (is_muted && !speaks_again) || self.session.replies == Replies::Off;
        let reply = if is_muted { Reply::Silence } else { reply };
        self.answer_in_turns(reply).await;
    }

    async fn answer_in_turns(&mut self, reply: Reply) {
        match reply {
            Reply::Array(_) if self.flights.is_empty() => {
                self.outbox.push_in_turns(reply, self.session.client.protocol.get()).await;
            }
            reply => self.answer(reply),
        }
    }

    /// Waits until a password may be looked at that comes from there. False: the client is to be
    /// closed.
    async fn may_guess(&self) -> bool {
        let (server, client) = (&self.session.server, &self.session.client);
        while !client.is_killed() {
            let wait = server.guesses.wait(client.origin, Instant::now());
            if wait.is_zero() {
                return true;
            }
            self.wait_for(wait).await;
        }
        false
    }

    /// The answer to a wrong password may have to wait.
    async fn wait_for_penalty(&self) {
        let penalty = self.session.client.penalty.take();
        if !penalty.is_zero() {
            self.wait_for(penalty).await;
        }
    }

    /// Lets time pass, unless the client is to be closed.
    async fn wait_for(&self, time: Duration) {
        let (client, mut over) = (&self.session.client, pin!(tokio::time::sleep(time)));
        poll_fn(|context| {
            client.watch(context);
            if client.is_killed() { Poll::Ready(()) } else { over.as_mut().poll(context) }
        })
        .await;
    }

    async fn wait_for_pause(&mut self, writes: bool) {
        let (server, client) = (self.session.server.clone(), self.session.client.clone());
        Statistics::add(&server.stats.blocked, 1);
        client.blocked.set(true);
        let mut over = pin!(server.pause.over(writes));
        poll_fn(|context| {
            client.watch(context);
            if client.is_killed() { Poll::Ready(()) } else { over.as_mut().poll(context) }
        })
        .await;
        client.blocked.set(false);
        server.stats.blocked.set(server.stats.blocked.get() - 1);
    }
}

fn gives_password(name: &str, args: &[Bytes]) -> bool {
    name == "auth" || (name == "hello" && args.iter().any(|word| is(word, "auth")))
}
