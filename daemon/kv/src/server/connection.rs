//! One connection: reads requests, has them under way together, writes their replies in order.
//!
//! The task goes round between [`Connection::advance`], which begins whatever has been read and may
//! begin, and [`Connection::poll_event`], which drives what is under way, writes and reads, and
//! sleeps when there is nothing to do.
//!
//! What the next requests will look at is brought near beforehand, for several together: those of a
//! pipeline, or, if there is one only, those of the connections that have something to begin as
//! well.
//!
//! A command on keys begins at once; its locks keep it behind earlier ones on the same keys. Any
//! other command is a barrier: it begins when all before it are done, and nothing behind it begins
//! before it is.
//!
//! Replies are gathered and written together: while more are about to come, those that are there
//! wait one turn of the thread. Commands that have begun are brought to their end even if the
//! client is gone: none is left half done.
//!
//! A client that does not read has nothing more begun above [`MAX_OUTPUT`] bytes of answers, or as
//! many as the requests that it has sent ahead: so these and their answers take no more than twice
//! the memory that the smaller of the two would. It is read from all the same, since it may be
//! about to read once it has sent all it has. What that takes is counted (`memory`), and what is
//! too much ends the connection.

use super::flights::Flights;
use super::inbox::Inbox;
use super::memory::Room;
use super::outbox::{Outbox, Sent};
use super::patience::Running;
use super::placing::Placed;
use super::stream::Stream;
use super::streaming::{Streamed, Streaming, WINDOW};
use super::{CommandId, MANY, Server, Statistics};
use crate::arguments::{is, weight_of_all};
use crate::blocking;
use crate::call::{Failure, Outcome};
use crate::reply::Reply;
use crate::resp::{Ahead, Limits, ProtocolError};
use crate::session::{Admission, Client, Replies, Run, Session};
use crate::store::{Soon, TOGETHER};
use crate::turn;
use annex_host::repeated;
use bytes::Bytes;
use futures::FutureExt;
use futures::future::{LocalBoxFuture, poll_fn};
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// Commands under way at a time.
const MAX_FLIGHTS: usize = 256;
/// Bytes of the arguments of these; one command may have more.
const MAX_FLIGHT_BYTES: usize = 8 << 20;
/// Above this nothing new begins until the client has read some of it, or has sent as much.
const MAX_OUTPUT: usize = 1 << 20;
/// The same for a client that has not authenticated, and what it may hold in all.
const MAX_OUTPUT_STRANGER: usize = 4 << 10;
const MAX_STRANGER: usize = 32 << 10;
/// So much output does not wait for more.
const FULL_WRITE: usize = 16 << 10;
/// Commands that begin in one round: none of them may have to wait.
const AT_ONCE: usize = 64;
/// So many records are written without waiting for those of other connections.
const PLACED_ALONE: usize = 8;
/// Rounds a busy connection may take before others have their turn.
const ROUNDS: u32 = 8;

/// What woke the connection.
enum Event {
    /// There may be something to begin.
    Work,
    Closed,
}

struct Connection {
    session: Session,
    inbox: Inbox,
    outbox: Outbox,
    flights: Flights<LocalBoxFuture<'static, Reply>, Placed>,
    /// The last answer, if it is sent in pieces.
    streaming: Option<Streaming>,
    /// So many of the next requests were looked at.
    foreseen: usize,
    /// A command that can't begin yet.
    held: Option<Held>,
    /// There may be whole requests in the input that had no room to begin.
    backlog: bool,
    /// Nothing more is read or begun; the connection ends when all is answered.
    ending: bool,
    /// The output has waited its turn.
    waited: bool,
    rounds: u32,
}

/// A command that waits: if it is a barrier, for those before it, else for room for so many bytes
/// of values.
struct Held {
    args: Vec<Bytes>,
    /// The memory of these.
    bytes: usize,
    wanted: usize,
    /// Its value is not to be sent in pieces.
    is_whole: bool,
}

impl Held {
    fn new(args: Vec<Bytes>, wanted: usize, is_whole: bool) -> Held {
        Held { bytes: weight_of_all(&args), args, wanted, is_whole }
    }
}

pub async fn run(stream: Stream, server: Rc<Server>, client: Rc<Client>, mut stopping: watch::Receiver<bool>) {
    let mut connection = Connection {
        session: Session::new(server.clone(), client.clone()),
        inbox: Inbox::default(),
        outbox: Outbox::new(stream),
        flights: Flights::new({
            let client = client.clone();
            move || client.wake()
        }),
        streaming: None,
        foreseen: 0,
        held: None,
        backlog: false,
        ending: false,
        waited: false,
        rounds: 0,
    };
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
        while !self.ending && !self.session.client.is_killed() {
            let (mut args, is_whole) = match self.held.take() {
                Some(held) => (held.args, held.is_whole),
                None if !self.has_room() || begun == AT_ONCE => {
                    self.backlog = true;
                    return;
                }
                None if self.foreseen == 0 && self.announce(begun == 0) => {
                    if self.foreseen == 1 {
                        // The others that have something to begin announce theirs meanwhile.
                        others_first().await;
                    }
                    self.session.server.store.foresee();
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
            let found = self.session.server.commands.find(&args);
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

    fn parse(&mut self) -> Result<Option<Vec<Bytes>>, ProtocolError> {
        let limits = Limits {
            bulk: self.session.server.config.live.max_bulk.get(),
            authenticated: !self.session.must_authenticate(),
        };
        self.foreseen = self.foreseen.saturating_sub(1);
        self.inbox.next(&limits)
    }

    /// Announces what the next requests will need, so that it is looked for together. False: there
    /// is nothing, or one request only, which may not wait for others.
    fn announce(&mut self, may_wait: bool) -> bool {
        let (server, db) = (&self.session.server, self.session.client.db.get());
        let ahead = self.inbox.ahead().filter(|_| !self.session.must_authenticate());
        let Some(ahead) = ahead else { return false };
        let next = ahead.take(TOGETHER).map_while(wanted);
        self.foreseen = next.clone().count();
        let has_company = self.foreseen > 1 || (may_wait && server.clients.borrow().len() > 1);
        if self.foreseen == 0 || !has_company {
            return false;
        }
        next.for_each(|(key, soon)| server.store.announce(db, key, soon));
        true
    }

    fn has_room(&self) -> bool {
        !self.is_busy() && !self.is_owed_much()
    }

    /// Enough is under way; it comes to its end whatever the client does.
    fn is_busy(&self) -> bool {
        self.flights.len() >= MAX_FLIGHTS
            || self.flights.bytes() >= MAX_FLIGHT_BYTES
            || self.streaming.as_ref().is_some_and(Streaming::is_opening)
    }

    /// The client is to read before more is begun.
    fn is_owed_much(&self) -> bool {
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
    fn must_wait(&self, found: Option<CommandId>, words: usize) -> bool {
        let Some(id) = found else { return false };
        let command = self.session.server.commands.get(id);
        let is_on_keys = matches!(command.run, Run::Keys(_)) && command.spec.keys.first > 0 && !command.spec.alone;
        let lags = self.session.client.lags.get();
        lags || !is_on_keys || words > MANY || self.session.server.pause.holds_up(command.spec.flags.write)
    }

    /// Gives it back if there is no room for the values it brings.
    async fn begin(&mut self, id: CommandId, args: Vec<Bytes>, is_whole: bool) -> Option<Held> {
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
        let reply = match command.run {
            Run::Keys(_) => {
                if let Some(reply) = server.read_now(id, &client, &args) {
                    let is_muted = self.session.mutes();
                    self.answer(if is_muted { Reply::Silence } else { reply });
                    return None;
                }
                let expected = server.expected(id, client.db.get(), &args).await;
                let is_streamed = !is_whole && server.streams(id, expected) && self.session.replies == Replies::On;
                if is_streamed && !self.flights.is_empty() {
                    return Some(Held::new(args, 0, is_whole));
                }
                let expected = if is_streamed { WINDOW } else { expected };
                let is_muted = match server.room_for(&client, expected) {
                    Ok(Room::There) => self.session.mutes(),
                    Ok(Room::Later) => return Some(Held::new(args, expected, is_whole)),
                    Err(failure) => {
                        server.stats.count_error(&failure);
                        let is_muted = self.session.mutes();
                        self.answer(if is_muted { Reply::Silence } else { Reply::Error(failure.0) });
                        return None;
                    }
                };
                if is_streamed {
                    self.streaming = Some(server.stream(id, &client, args));
                    return None;
                }
                let is_slow = command.spec.alone || args.len() > MANY;
                let ticket = if is_slow { server.lock_slowly(id, &args).await } else { server.lock(id, &args) };
                let must_wait = self.must_wait(Some(id), args.len());
                let (mut ticket, mut args) = (ticket, args);
                let (db, bytes) = (client.db.get(), weight_of_all(&args));
                if ticket.is_placement() && ticket.is_granted() && !must_wait {
                    let placed = Placed::new(&server, &client, id, args, ticket, is_muted);
                    let place = |placed: &Placed, hears: &_, number| placed.place(hears, number);
                    match self.flights.place(placed, bytes, place) {
                        Ok(()) => return None,
                        Err(placed) => (args, ticket) = placed.give_back(),
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
                if must_wait {
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
                }
            }
            _ => {
                let was_off = self.session.replies == Replies::Off;
                let is_muted = self.session.mutes();
                // While a transaction runs, it is not queued any more.
                client.exec_output.set(client.queued_bytes.get());
                if gives_password(command.spec.name, &args) && !self.may_guess().await {
                    return None;
                }
                let running = Running::new(&client);
                let reply = self.session.run(id, &args).await;
                drop(running);
                client.exec_output.set(0);
                self.wait_for_penalty().await;
                self.ending |= client.closing.get();
                // The answer to CLIENT REPLY ON is the first that is sent again, or that to RESET.
                let speaks_again = match command.spec.name {
                    "client|reply" => reply == Reply::OK,
                    name => name == "reset" && was_off,
                };
                let is_muted = (is_muted && !speaks_again) || self.session.replies == Replies::Off;
                if is_muted { Reply::Silence } else { reply }
            }
        };
        match reply {
            Reply::Array(_) if self.flights.is_empty() => {
                self.outbox.push_in_turns(reply, self.session.client.protocol.get()).await;
            }
            reply => self.answer(reply),
        }
        None
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

    fn answer(&mut self, reply: Reply) {
        if self.flights.is_empty() {
            self.outbox.push(&reply, self.session.client.protocol.get());
        } else {
            self.flights.push_done(reply);
        }
    }

    /// The client does not speak the protocol: it is told so, behind what it is owed, and that is
    /// the end. If it wants no replies it gets none here either.
    fn refuse(&mut self, error: ProtocolError) {
        let failure = Failure(format!("ERR {error}").into());
        self.session.server.stats.count_error(&failure);
        tracing::debug!(client = self.session.client.id, "{error}");
        let is_muted = self.session.mutes();
        self.answer(if is_muted { Reply::Silence } else { Reply::Error(failure.0) });
        self.ending = true;
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
        if self.rounds >= ROUNDS || (self.rounds > 1 && turn::is_over()) {
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

    /// Drives the commands under way and gathers the replies whose turn it is.
    fn collect(&mut self, context: &mut Context<'_>) {
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
    fn stream(&mut self, context: &mut Context<'_>) {
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

    /// Sees to it that what was placed gets on its way: together with what others place, unless it
    /// is enough for itself or there are no others.
    fn forward(&mut self) {
        let (placed, server) = (self.flights.placed(), &self.session.server);
        if placed >= PLACED_ALONE || (placed > 0 && server.clients.borrow().len() == 1) {
            self.flights.forward(|| server.store.forward());
        } else if placed > 0 {
            server.store.forward_soon();
        }
    }

    fn poll_write(&mut self, context: &mut Context<'_>) -> io::Result<()> {
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

    /// Ready with false at the end of the input.
    fn poll_read(&mut self, context: &mut Context<'_>) -> Poll<io::Result<bool>> {
        let (server, client) = (&self.session.server, &self.session.client);
        if client.is_quiet.take() {
            self.inbox.shrink();
            self.outbox.shrink();
            self.weigh();
        }
        let is_stranger = self.session.must_authenticate();
        let count = ready!(self.inbox.poll_read(self.outbox.stream(), is_stranger, context))?;
        if count == 0 {
            return Poll::Ready(Ok(false));
        }
        Statistics::add(&server.stats.input, count);
        Statistics::add(&server.stats.reads, 1);
        client.last_active.set(Instant::now());
        self.weigh();
        let query = self.inbox.len() + self.inbox.arguments() + client.queued_bytes.get();
        if query as u64 > server.config.live.max_query.get() {
            repeated!(
                WARN, "a client was closed: its requests are above client-query-buffer-limit" of "",
                "client {} at {} was closed: its requests are above client-query-buffer-limit", client.id, client.peer
            );
            return Poll::Ready(Err(io::ErrorKind::OutOfMemory.into()));
        }
        if is_stranger && client.memory() > MAX_STRANGER {
            repeated!(
                WARN, "a client was closed: it sent too much and no password" of "",
                "client {} at {} was closed: it sent more than {MAX_STRANGER} bytes and no password", client.id, client.peer
            );
            return Poll::Ready(Err(io::ErrorKind::OutOfMemory.into()));
        }
        Poll::Ready(Ok(true))
    }

    /// Brings the client's account up to date.
    fn weigh(&self) {
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

    /// The client is gone; what has begun comes to its end.
    fn poll_rest(&mut self, context: &mut Context<'_>) -> Poll<()> {
        self.session.client.watch(context);
        self.session.server.store.forward_soon();
        self.flights.poll(context);
        while self.flights.pop().is_some() {}
        if self.flights.is_empty() { Poll::Ready(()) } else { Poll::Pending }
    }
}

/// What a request wants of a key, for those that are asked for most.
fn wanted(request: Ahead<'_>) -> Option<(&[u8], Soon)> {
    let soon = match request.name {
        name if name.eq_ignore_ascii_case(b"get") => Soon::Read,
        name if name.eq_ignore_ascii_case(b"set") => Soon::Overwrite,
        _ => return None,
    };
    Some((request.key?, soon))
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

fn gives_password(name: &str, args: &[Bytes]) -> bool {
    name == "auth" || (name == "hello" && args.iter().any(|word| is(word, "auth")))
}

/// A browser that was made to talk to us, as Redis sees it.
fn is_http(args: &[Bytes]) -> bool {
    args.first().is_some_and(|name| name.eq_ignore_ascii_case(b"host:") || name.eq_ignore_ascii_case(b"post"))
}

impl Session {
    /// Runs a command of the session. What is before it is done.
    async fn run(&mut self, id: CommandId, args: &[Bytes]) -> Reply {
        let server = self.server.clone();
        let begun = Instant::now();
        let outcome: Outcome = match server.commands.get(id).run {
            Run::Now(run) => run(self, args),
            Run::Later(run) => run(self, args).await,
            Run::Keys(_) => {
                let (db, client) = (self.db(), self.client.clone());
                return server.run(id, &client, db, args, None).await.unwrap_or_else(|failure| Reply::Error(failure.0));
            }
            Run::Container => Err(crate::session::wrong_arity(server.commands.get(id).spec.name)),
        };
        server.account(id, &self.client, args, begun.elapsed(), &outcome);
        outcome.unwrap_or_else(|failure| Reply::Error(failure.0))
    }

    /// Runs a queued command; EXEC holds the locks.
    pub async fn run_within_exec(&mut self, id: CommandId, args: &[Bytes]) -> Reply {
        let (server, client) = (self.server.clone(), self.client.clone());
        let expected = server.expected(id, self.db(), args).await;
        if let Some(failure) = server.never_has_room_for(expected) {
            return Reply::Error(failure.0);
        }
        let reply = self.run(id, args).await;
        client.exec_output.set(client.exec_output.get() + reply.weight());
        server.weigh(&client);
        // What it has begun is done, but nobody reads the answer.
        if client.is_killed() { Reply::Silence } else { reply }
    }

    /// Whether the next reply is not to be sent; that of one command after CLIENT REPLY SKIP.
    fn mutes(&mut self) -> bool {
        match self.replies {
            Replies::On => false,
            Replies::Off => true,
            Replies::SkipNext => {
                self.replies = Replies::On;
                true
            }
        }
    }

    fn exec_writes(&self, name: &str) -> bool {
        name == "exec" && self.transaction.has(|id| self.server.commands.get(id).spec.flags.write)
    }
}
