//! A connection's task: it begins what has been read, and drives what is under way.

use super::state::{Connection, Held};
use crate::blocking;
use crate::reply::Reply;
use crate::server::{Client, Server, Stream};
use crate::session::Admission;
use crate::turn;
use bytes::Bytes;
use futures::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use tokio::sync::watch;

/// Commands that begin in one round: none of them may have to wait.
const AT_ONCE: usize = 64;
/// Rounds that a connection which reads on may take before others have their turn.
const ROUNDS: u32 = 8;

/// What woke the connection.
enum Event {
    /// There may be something to begin.
    Work,
    Closed,
}

pub async fn run(stream: Stream, server: Rc<Server>, client: Rc<Client>, mut stopping: watch::Receiver<bool>) {
    let mut connection = Connection::new(stream, &server, &client);
    let mut stopped = pin!(stopping.changed());
    loop {
        connection.advance().await;
        let event = poll_fn(|context| {
            if !connection.ending && stopped.as_mut().poll(context).is_ready() {
                connection.ending = true;
            }
            connection.poll_event(context)
        });
        if let Event::Closed = event.await {
            break;
        }
    }
    server.clients.borrow_mut().remove(&client.id);
    if let Some(streaming) = connection.streaming.take() {
        streaming.let_go().await;
    }
    poll_fn(|context| connection.poll_rest(context)).await;
    connection.session.discard();
    connection.inbox.let_go();
    drop((connection.session, connection.outbox, connection.flights));
    server.forget(&client);
}

impl Connection {
    /// Begins what has been read, as far as there is room.
    async fn advance(&mut self) {
        let mut begun = 0;
        let mut was_slow = false;
        while !self.ending && !self.session.client.is_killed() {
            let (mut args, is_whole) = match self.held.take() {
                Some(held) => (held.args, held.is_whole),
                None if !self.has_room() || begun == AT_ONCE || (was_slow && turn::is_over()) => {
                    self.backlog = true;
                    return;
                }
                None if self.hinted == 0 && self.add_prefetch_hints(begun == 0) => {
                    if self.hinted == 1 {
                        // The others that have something to begin add theirs meanwhile.
                        others_first().await;
                    }
                    self.session.server.store.follow_prefetch_hints();
                    continue;
                }
                None => match self.parse() {
                    Ok(Some(args)) => (args, false),
                    Ok(None) => {
                        self.backlog = self.inbox.is_paused();
                        return;
                    }
                    Err(error) => {
                        self.refuse(error);
                        return;
                    }
                },
            };
            begun += 1;
            let commands = &self.session.server.commands;
            let found = commands.find(&args);
            // Of those that take a µs it is not asked, nor of writes, which pause themselves.
            let flags = found.map(|id| commands.get(id).spec.flags);
            was_slow = flags.is_some_and(|flags| !flags.fast && !flags.write);
            if !self.flights.is_empty() && self.must_wait(found, args.len()) {
                self.held = Some(Held::new(args, 0, is_whole));
                return;
            }
            if found.is_none() && is_http(&args) {
                self.session.client.kill();
                return;
            }
            match self.session.admit(found, &mut args) {
                Admission::Answered(reply) => {
                    let is_muted = self.session.mutes();
                    self.answer(if is_muted { Reply::Silence } else { reply });
                    blocking::let_go(args.len() * size_of::<Bytes>(), args);
                }
                Admission::Run(id) => {
                    self.held = self.begin(id, args, is_whole).await;
                    if self.held.is_some() {
                        return;
                    }
                }
            }
        }
    }

    fn poll_event(&mut self, context: &mut Context<'_>) -> Poll<Event> {
        self.session.client.watch(context);
        self.collect(context);
        self.stream(context);
        if self.session.client.is_killed() || self.poll_write(context).is_err() {
            return Poll::Ready(Event::Closed);
        }
        self.weigh();
        if self.session.client.is_killed() {
            return Poll::Ready(Event::Closed);
        }
        if self.ending {
            let is_done = self.flights.is_empty() && self.streaming.is_none() && self.outbox.is_empty();
            return if is_done { Poll::Ready(Event::Closed) } else { Poll::Pending };
        }
        let gives_way = match self.backlog {
            true => self.rounds > 0 && turn::is_over(),
            false => self.rounds >= ROUNDS || (self.rounds > 1 && turn::is_over()),
        };
        if gives_way {
            self.rounds = 0;
            turn::again(context);
            return Poll::Pending;
        }
        if let Some(held) = &self.held {
            let may_begin = match held.wanted {
                0 => self.flights.is_empty(),
                wanted => self.session.server.has_room_for(&self.session.client, wanted),
            };
            return if may_begin { Poll::Ready(Event::Work) } else { Poll::Pending };
        }
        if self.is_busy() || (self.is_owed_much() && self.session.must_authenticate()) {
            return Poll::Pending;
        }
        if self.backlog && !self.is_owed_much() {
            self.rounds += 1;
            return Poll::Ready(Event::Work);
        }
        match self.poll_read(context) {
            Poll::Pending => {
                self.rounds = 0;
                Poll::Pending
            }
            Poll::Ready(Ok(true)) => {
                self.rounds += 1;
                Poll::Ready(Event::Work)
            }
            // What has begun is answered, if the client still listens.
            Poll::Ready(Ok(false)) => {
                self.ending = true;
                context.waker().wake_by_ref();
                Poll::Pending
            }
            Poll::Ready(Err(_)) => Poll::Ready(Event::Closed),
        }
    }

    /// The client is gone; what has begun comes to its end.
    fn poll_rest(&mut self, context: &mut Context<'_>) -> Poll<()> {
        self.session.client.watch(context);
        self.session.server.store.forward_soon();
        self.flights.poll(context);
        while self.flights.pop().is_some() {}
        if self.flights.is_empty() { Poll::Ready(()) } else { Poll::Pending }
    }
}

/// Lets every other task that is ready have its turn.
async fn others_first() {
    let mut had_theirs = false;
    poll_fn(|context| {
        if std::mem::replace(&mut had_theirs, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// A browser that was made to talk to us, as Redis sees it.
fn is_http(args: &[Bytes]) -> bool {
    args.first().is_some_and(|name| name.eq_ignore_ascii_case(b"host:") || name.eq_ignore_ascii_case(b"post"))
}
